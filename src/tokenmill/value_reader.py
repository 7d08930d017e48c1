"""Typed reading of values that come from files: JSON objects, GGUF metadata, headers of sessions and packed models;
paths that users give.

A reader checks the type and range of every value. It returns what the caller asked for, or raises the error class that
it was made with, in one line that names the file, the key and what is allowed. `path_of` does so for a path.
"""

import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from numbers import Integral, Real
from pathlib import Path
from reprlib import Repr
from typing import Any, NoReturn

from tokenmill.errors import ConfigError, SnapshotError, TokenmillError

MAX_COUNT = 1 << 24  # far above every vocabulary and width in use
MAX_POSITIONS = 1 << 31
MAX_TEXT = 1 << 13

_REPR = Repr()
_REPR.maxstring = _REPR.maxother = 200
brief = _REPR.repr
"""A value for a message, cut where it is long."""


def path_of(given: Any) -> Path:
    """Return the given path, `~` expanded. SnapshotError for a path that no file can have."""
    try:
        path = Path(given).expanduser()
        str(path).encode()  # the libraries that read files take no other names
        path.lstat()
    except FileNotFoundError:
        pass
    except (TypeError, OSError, ValueError, RuntimeError) as error:  # a null byte, or the home (~name) of no user
        raise SnapshotError(f"{brief(given)} cannot be used: {getattr(error, 'strerror', None) or error}") from None
    return path


def with_home(given: str | Path) -> Path:
    """Return the given path, `~` expanded; as it stands where no user has that home folder."""
    path = Path(given)
    try:
        return path.expanduser()
    except RuntimeError:
        return path


def folder_of_setting(given: str | Path, where: str) -> Path:
    """Return a folder that a setting names, `~` expanded. ConfigError where no user has that home folder."""
    try:
        return Path(given).expanduser()
    except RuntimeError:
        raise ConfigError("folder", str(given), "a path, or one below ~ or the ~name of a user", where) from None


def without_doubles(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of JSON; ValueError for a key that stands twice in it: one of its values would not count."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {brief(key)} stands twice in one object")
        found[key] = value
    return found


def refuse_constant(name: str) -> NoReturn:
    """Raise ValueError for NaN, Infinity and -Infinity, which Python's parser of JSON takes."""
    raise ValueError(f"{name} is no number of JSON")


class ValueReader:
    """Reads a mapping key by key.

    `where` begins every message; `error` is what is raised. `prefix` stands before every key in the file. `read`
    collects the keys that were asked for. `is_ours`: of a file that tokenmill writes, in which a whole number is never
    written as 32.0. A key that is absent, or null, has its default; without one it is required.
    """

    def __init__(
        self, values: object, where: str, error: type[TokenmillError], prefix: str = "", is_ours: bool = False
    ) -> None:
        self.where, self.error, self.prefix, self.is_ours = where, error, prefix, is_ours
        if not isinstance(values, Mapping):
            raise error(f"{where} must be an object with named values, not {brief(values)}")
        self.values: Mapping[str, Any] = values
        self.read: set[str] = set()

    def name(self, key: str) -> str:
        """Return the key as the file has it."""
        return self.prefix + key

    def take(self, key: str, default: Any = ...) -> Any:
        """Return the value as it is, of any type."""
        name = self.name(key)
        self.read.add(name)
        value = self.values.get(name)
        if value is None and default is ...:
            raise self.error(f"{self.where} has no {name!r}, which is required")
        return default if value is None else value

    def refuse(self, key: str, value: object, allowed: str) -> TokenmillError:
        """Make the error for a value that is not allowed."""
        return self.error(f"{self.where}: {self.name(key)} = {brief(value)} is not allowed: {allowed}")

    def count(self, key: str, default: Any = ..., minimum: int = 1, maximum: int = MAX_COUNT) -> int:
        """Read a whole number in [minimum, maximum], or a default of None; 32.0 is one of other programs."""
        value = self.take(key, default)
        if type(value) is float and value.is_integer() and not self.is_ours:
            value = int(value)
        if value is not None and not (type(value) is int and minimum <= value <= maximum):
            raise self.refuse(key, value, f"a whole number from {minimum} to {maximum}")
        return value  # type: ignore[return-value]

    def number(self, key: str, default: Any = ..., minimum: float = 0.0, maximum: float = 1e30) -> float:
        """Read a finite number in (minimum, maximum], or a default of None."""
        value = self.take(key, default)
        if value is None:
            return value  # type: ignore[return-value]
        if type(value) not in (int, float) or not minimum < value <= maximum:  # NaN compares false
            raise self.refuse(key, value, f"a number above {minimum:g}, at most {maximum:g}")
        return float(value)

    def flag(self, key: str, default: Any = ...) -> bool:
        value = self.take(key, default)
        if type(value) is not bool:
            raise self.refuse(key, value, "true or false")
        return value

    def text(self, key: str, default: Any = ..., longest: float = MAX_TEXT) -> str:
        """Read a text, by default of the length that names and paths have."""
        value = self.take(key, default)
        if not isinstance(value, str) or len(value) > longest:
            raise self.refuse(key, value, "a text")
        return value

    def inside(self, key: str, required: bool = False) -> "ValueReader":
        """Make a reader of the object under `key`; where there is none, of an empty one unless it is required."""
        where = f"{self.where}: {self.name(key)}"
        return ValueReader(self.take(key, ... if required else {}), where, self.error, is_ours=self.is_ours)

    def entries(self, key: str, kind: type, default: Any = ...) -> list[Any]:
        """Read a list whose entries all have exactly this type."""
        value = self.take(key, default)
        if not isinstance(value, list) or not all(type(entry) is kind for entry in value):
            raise self.refuse(key, value, f"a list of {kind.__name__} values")
        return value

    def numbers(self, key: str, minimum: float = 0.0, maximum: float = 1e30) -> list[float]:
        """Read a list of finite numbers in (minimum, maximum]."""
        value = self.take(key)
        if not isinstance(value, list) or not all(type(n) in (int, float) and minimum < n <= maximum for n in value):
            raise self.refuse(key, value, f"a list of numbers above {minimum:g}, at most {maximum:g}")
        return [float(entry) for entry in value]

    def token_ids(self, key: str, vocab_size: int = MAX_COUNT) -> tuple[int, ...]:
        """Read a token id, a list of them, or none; all below `vocab_size`."""
        value = self.take(key, [])
        ids = value if isinstance(value, list) else [value]
        if not all(type(entry) is int and 0 <= entry < vocab_size for entry in ids):
            raise self.refuse(key, value, f"token ids from 0 to {vocab_size - 1}")
        return tuple(ids)

    def expect(self, key: str, default: Any, *others: Any) -> Any:
        """Read a value that must be implemented: the default or one of the others. `...`: no default."""
        value, allowed = self.take(key, default), [choice for choice in (default, *others) if choice is not ...]
        for choice in allowed:
            if value == choice and isinstance(value, bool) == isinstance(choice, bool):  # in Python True equals 1
                return choice
        names = ", ".join(map(repr, allowed))
        raise self.error(f"{self.where}: {self.name(key)} = {brief(value)} is not implemented: only {names}")

    def refuse_unread(self, keys: Iterable[str]) -> None:
        """Raise if one of these keys was not read: it may change what the others mean."""
        left = sorted(set(keys) - self.read)
        if left:
            values = ", ".join(f"{brief(key)[1:-1]} = {brief(self.values[key])}" for key in left[:20])
            raise self.error(f"{self.where} has keys that tokenmill does not know: {values}")


def check_flag(name: str, value: Any) -> bool:
    """Return the value, which must be True or False: any other text or number would count as one of them."""
    if not isinstance(value, bool):
        raise ConfigError(name, value, "true or false")
    return value


def check_number(
    name: str, value: Any, whole: bool = True, minimum: float = 1, maximum: float = math.inf, exclusive: bool = False
) -> Any:
    """Return the value as a number of Python. exclusive: the minimum itself is not allowed."""
    is_number = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
    if not is_number or not minimum <= value <= maximum or (exclusive and value == minimum):
        kind = "whole number" if whole else "number"
        limits = f"above {minimum} and up" if exclusive else f"from {minimum}"
        allowed = f"a {kind}, {minimum} or more" if maximum == math.inf else f"a {kind} {limits} to {maximum}"
        raise ConfigError(name, value, allowed)
    return value if type(value) in (int, float) else int(value) if whole else float(value)


def check_choice(name: str, value: object, choices: Collection[Any]) -> None:
    """Raise ConfigError, with the choices, for a value that is not among them."""
    if value not in choices:
        raise ConfigError(name, value, f"use one of {', '.join(map(str, choices))}")


def check_text(name: str, value: Any, choices: Collection[str] = ()) -> str:
    """Return the value, or the path that it is, as a text that is not empty."""
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str) or not text:
        raise ConfigError(name, value, f"use one of {', '.join(choices)}" if choices else "a text that is not empty")
    check_choice(name, text, choices or (text,))
    return text


check_token_id = partial(check_number, minimum=0)


def _check_list(check: Callable[[str, Any], Any], name: str, value: Any) -> tuple[Any, ...]:
    """Make a tuple of a list, of one text, and of None."""
    value = (value,) if isinstance(value, str) and check is check_text else value
    if not isinstance(value, list | tuple | None):
        raise ConfigError(name, value, "a list; an empty one for none")
    return tuple(check(name, each) for each in value or ())


def _check_bias(name: str, value: Any) -> dict[int, float]:
    """Make ids of the texts that JSON has as keys. Numbers from -1000 to 1000, or -inf."""
    bias = {}
    if not isinstance(value, Mapping | None):
        raise ConfigError(name, value, "a mapping of token ids to numbers")
    for key, amount in (value or {}).items():
        is_text = isinstance(key, str) and key.isdecimal() and len(key) < 20
        token = check_token_id(f"{name} token id", int(key) if is_text else key)
        least = -math.inf if isinstance(amount, Real) and amount == -math.inf else -1000
        bias[token] = check_number(f"{name}[{token}]", amount, False, least, 1000)
    return bias


_KINDS: dict[Any, Callable[..., Any]] = {
    bool: check_flag,
    int: check_number,
    float: partial(check_number, whole=False),
    str: check_text,
    tuple[str, ...]: partial(_check_list, check_text),
    tuple[int, ...]: partial(_check_list, check_token_id),
    Mapping[int, float]: _check_bias,
}
CHECKS = {form: check for kind, check in _KINDS.items() for form in (kind, kind | None)}
