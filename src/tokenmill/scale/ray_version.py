"""The version of Ray that replicas need: found without importing it, which takes seconds."""

from importlib.metadata import PackageNotFoundError, version

from tokenmill.errors import TokenmillError

MAJOR, LEAST = 2, (2, 60)
INSTALL = "pip install 'tokenmill[ray]'"


def check_ray() -> None:
    """Raise TokenmillError if Ray is not there, or not in a version that is known to work."""
    try:
        found = version("ray")
    except PackageNotFoundError:
        raise TokenmillError(f"replicas need Ray: {INSTALL}") from None
    numbers = tuple(int(part) for part in found.split(".")[:2] if part.isdecimal())
    if len(numbers) < 2 or numbers[0] != MAJOR or numbers < LEAST:
        least = ".".join(map(str, LEAST))
        raise TokenmillError(f"Ray {found} is installed; replicas need {least} or later, before 3: {INSTALL}")
