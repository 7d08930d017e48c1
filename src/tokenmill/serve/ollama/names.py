"""Names of models, times and durations, as Ollama writes them."""

import re
from datetime import UTC, datetime

from tokenmill.serve.http.errors import ApiError
from tokenmill.serve.request.fields import LATEST
from tokenmill.value_reader import brief

VERSION = "0.13.0"  # of Ollama's API that these routes follow; clients refuse versions that are too old for them
DURATION = re.compile(r"[-+]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:ns|us|µs|μs|ms|s|m|h))+|[-+]?\d+(?:\.\d*)?", re.ASCII)


def tagged(name: str) -> str:
    """A name with its tag, which is `latest` where it has none."""
    return name if ":" in name.rpartition("/")[2] else f"{name}{LATEST}"


def check_served(asked: str, served: str) -> None:
    """ApiError 404 for another model than the one that is served. Letters may be of either case, as in Ollama."""
    if tagged(asked).casefold() != tagged(served).casefold():
        raise ApiError(
            404, f"model {brief(asked)} not found: {served!r} is served here, and `tokenmill serve` serves another"
        )


def now() -> str:
    """The time, for `created_at`."""
    return written(datetime.now(UTC))


def written(time: datetime) -> str:
    """A time in UTC as RFC 3339 has it."""
    return time.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def nanoseconds(seconds: float) -> int:
    """A duration, which is at least one nanosecond: clients divide by it."""
    return max(round(seconds * 1e9), 1)


def unloads(keep_alive: float | str | None) -> bool:
    """Whether a request wants the model to be unloaded after it. ApiError for what is no duration."""
    if keep_alive is None or keep_alive == "":
        return False
    if isinstance(keep_alive, str):
        if not DURATION.fullmatch(keep_alive):
            message = f'keep_alive = {brief(keep_alive)} is not allowed: seconds, or a duration such as "5m"'
            raise ApiError(400, message, "keep_alive")
        return not any(digit in keep_alive for digit in "123456789")
    return keep_alive == 0
