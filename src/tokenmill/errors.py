"""Every error that tokenmill raises on purpose, in one tree.

    TokenmillError
    ├── ConfigError      a setting is wrong: its name, its value, what is allowed, where it was set
    ├── CheckpointError  a model file is missing, damaged, or does not fit its config
    ├── CapacityError    something does not fit: needed, available, and the setting that moves the limit
    ├── SnapshotError    a saved session is damaged, or of another model
    ├── PackageMismatch  compiled code on disk is damaged, or was made for another model, torch, device or setting
    ├── NoKernel         no attention kernel serves this cache: every candidate with its reason
    └── RequestError     one sequence cannot be served; the others go on

    WrongText            beside the tree: the engine itself was found wrong, by a benchmark that compares its text

Each message is one line that a person can act on. The command line prints it and exits with 2; an exception
that is not in this tree is a bug of ours.
"""

from collections.abc import Iterable, Mapping

__all__ = [
    "CapacityError",
    "CheckpointError",
    "ConfigError",
    "NoKernel",
    "PackageMismatch",
    "RequestError",
    "SnapshotError",
    "TokenmillError",
    "WrongText",
]


MAX_MESSAGE = 10_000
"""Of an error. What a damaged file holds may be quoted in it, by us or by the library that read the file."""


class TokenmillError(Exception):
    """Root of the tree: catch this to catch everything tokenmill refuses. Messages end at MAX_MESSAGE."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]} …")


class ConfigError(TokenmillError):
    """A setting has a value that is not allowed.

    `allowed` says what would be accepted; `where` says who set it (an option, a file, a keyword).
    """

    def __init__(self, name: str, value: object, allowed: str, where: str = "") -> None:
        self.name, self.value, self.allowed, self.where = name, value, allowed, where
        origin = f" (set in {where})" if where else ""
        super().__init__(f"{name} = {value!r}{origin} is not allowed: {allowed}")


class CheckpointError(TokenmillError):
    """A model's files cannot be read, or do not hold what its config says.

    The three lists name every tensor concerned, so that one run shows the whole difference.
    """

    def __init__(
        self,
        message: str,
        missing: Iterable[str] = (),
        unexpected: Iterable[str] = (),
        misshapen: Iterable[str] = (),
    ) -> None:
        self.missing, self.unexpected, self.misshapen = sorted(missing), sorted(unexpected), sorted(misshapen)
        lists = {"missing": self.missing, "unexpected": self.unexpected, "misshapen": self.misshapen}
        parts = [f"{len(names)} {kind}: {', '.join(names)}" for kind, names in lists.items() if names]
        super().__init__("; ".join([message, *parts]))


class CapacityError(TokenmillError):
    """Something does not fit. `setting` names what to change."""

    def __init__(self, what: str, needed: int, available: int, setting: str) -> None:
        self.needed, self.available, self.setting = needed, available, setting
        super().__init__(f"{what}: {needed} needed, {available} available; change {setting}")


class NoKernel(TokenmillError):
    """No attention kernel can serve the cache as configured; `reasons` maps each candidate to why not."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        self.reasons = dict(reasons)
        super().__init__("no attention kernel fits: " + "; ".join(f"{name}: {why}" for name, why in reasons.items()))


class SnapshotError(TokenmillError):
    """A saved session cannot be read, or does not belong to this engine; the message names the field."""


class PackageMismatch(TokenmillError):
    """An AOT package cannot be used here; the message names the field."""


class RequestError(TokenmillError):
    """This one sequence cannot be served; the engine and every other sequence go on."""


class WrongText(Exception):
    """The engine does not say what a trusted reference says. Nothing that the user could put right: exit code 1."""
