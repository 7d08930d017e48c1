"""The exceptions that tokenmill raises on purpose.

The message of a TokenmillError is one line that a person can act on. The command line prints it and exits with 2; any
other exception is a bug of ours.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tokenmill.units import size

AS_TEXT, AS_IDS = "give the prompt as text, not as messages", "give the prompt as token ids"
"""The advice where a conversation, or a text, cannot be encoded. The command line and the server name their own options
and routes in the place of these words."""
NO_HEAD = "this model has no head: it gives vectors of texts (embed), and no text"

MAX_MESSAGE = 10_000  # characters, because a message may quote what a damaged file holds


class TokenmillError(Exception):
    """Catch this to catch everything that tokenmill refuses. Messages are one line and end at MAX_MESSAGE."""

    def __init__(self, message: str = "") -> None:
        super().__init__(" ".join(message[:MAX_MESSAGE].splitlines()) + " …" * (len(message) > MAX_MESSAGE))


class ConfigError(TokenmillError):
    """A setting has a value that is not allowed. `where` says what set it (an option, a file, a keyword)."""

    def __init__(self, name: str, value: object, allowed: str, where: str = "") -> None:
        self.name, self.value, self.allowed, self.where = name, value, allowed, where
        origin = f" (set in {where})" if where else ""
        super().__init__(f"{name} = {value!r}{origin} is not allowed: {allowed}")


class CheckpointError(TokenmillError):
    """A model's files are missing, damaged, or do not hold what its config says. The lists name every such tensor."""

    def __init__(
        self, message: str, missing: Iterable[str] = (), unexpected: Iterable[str] = (), misshapen: Iterable[str] = ()
    ) -> None:
        self.missing, self.unexpected, self.misshapen = sorted(missing), sorted(unexpected), sorted(misshapen)
        lists = {"missing": self.missing, "unexpected": self.unexpected, "misshapen": self.misshapen}
        parts = [f"{len(names)} {kind}: {', '.join(names)}" for kind, names in lists.items() if names]
        super().__init__("; ".join([message, *parts]))


class NumberTooLarge(CheckpointError):
    """A model holds a number that is too large for the dtype that was asked for."""


class PackedModelError(CheckpointError):
    """A packed model is damaged, of another version, or older than the model that it was made of."""


@contextmanager
def file_errors(path: Path, done: str) -> Iterator[None]:
    """Raise what the system says against a file that is to be `done` ("read" or "written") as a CheckpointError."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{path} cannot be {done}: {error.strerror or error}") from error


@contextmanager
def naming(what: Path | str) -> Iterator[None]:
    """Put the path of a model, or the name of a tensor, before what is said against it, where the message does not
    name it.
    """
    try:
        yield
    except CheckpointError as error:
        if str(what) not in str(error):
            error.args = (f"{what}: {error}",)
        raise


class CapacityError(TokenmillError):
    """Something does not fit. `setting` names what to change. in_bytes: both numbers are shown as sizes."""

    def __init__(self, what: str, needed: int, available: int, setting: str, in_bytes: bool = False) -> None:
        self.needed, self.available, self.setting = needed, available, setting
        wanted, left = (size(needed), size(available)) if in_bytes else (needed, available)
        super().__init__(f"{what}: {wanted} needed, {left} available; change {setting}")


class NoKernel(TokenmillError):
    """No attention kernel can serve the cache as configured; `reasons` maps each candidate to why not."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        self.reasons = dict(reasons)
        super().__init__("no attention kernel fits: " + "; ".join(f"{name}: {why}" for name, why in reasons.items()))


class SnapshotError(TokenmillError):
    """A saved session is damaged, or of another model; the message names the field."""


class ReceiptError(TokenmillError):
    """A receipt is damaged, of an unknown format, or cannot be made; the message names the field."""


class PackageMismatch(TokenmillError):
    """An AOT package is damaged, or of another model, torch, device or setting; the message names the field."""


class RequestError(TokenmillError):
    """This one sequence cannot be served; the engine and every other sequence go on.

    setting: the sampling setting that it is about, if it is about one.
    """

    def __init__(self, message: str = "", setting: str | None = None) -> None:
        self.setting = setting
        super().__init__(message)


class DeadlinePassed(RequestError):
    """A request did not end in the time that it was given."""


def overflow_remedy(dtype: str) -> str:
    """Advise where logits of a dtype are no numbers."""
    return "try float32" if dtype != "float32" else "the model's files hold numbers that are out of range"


class RankLost(TokenmillError):
    """A process has ended that computes a part of every step. Only a model that is loaded again can go on."""


class WrongText(Exception):
    """The engine does not say what a trusted reference says. Nothing that the user could put right: exit code 1."""
