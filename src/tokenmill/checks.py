"""Checks of single settings: each returns the value as a plain one of Python, or raises ConfigError, which says what is
allowed.

`check_fields` does this for a whole dataclass, by the types of its fields and the limits in their metadata.
"""

import math
import os
from collections.abc import Callable, Collection
from dataclasses import fields
from functools import partial
from numbers import Integral, Real
from typing import Any

from tokenmill.errors import ConfigError

__all__ = ["check_choice", "check_fields", "check_flag", "check_number", "check_text", "check_token_id"]


def check_fields(settings: Any) -> None:
    """Check flags, numbers, texts and choices. A whole number is at least 1 unless its field says otherwise."""
    for entry in fields(settings):
        value, check = getattr(settings, entry.name), CHECKS.get(entry.type)
        if check is not None and not (value is None and entry.default is None):
            object.__setattr__(settings, entry.name, check(entry.name, value, **entry.metadata))


def check_flag(name: str, value: Any) -> bool:
    """The value, which must be True or False: any other text or number would count as one of them."""
    if not isinstance(value, bool):
        raise ConfigError(name, value, "true or false")
    return value


def check_number(
    name: str, value: Any, whole: bool = True, minimum: float = 1, maximum: float = math.inf, exclusive: bool = False
) -> Any:
    """The value as a number of Python. exclusive: the minimum itself is not allowed."""
    is_number = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
    if not is_number or not minimum <= value <= maximum or (exclusive and value == minimum):
        kind = "whole number" if whole else "number"
        limits = f"above {minimum} and up" if exclusive else f"from {minimum}"
        allowed = f"a {kind}, {minimum} or more" if maximum == math.inf else f"a {kind} {limits} to {maximum}"
        raise ConfigError(name, value, allowed)
    return value if type(value) in (int, float) else int(value) if whole else float(value)


def check_choice(name: str, value: object, choices: Collection[Any]) -> None:
    """ConfigError, with the choices, for a value that is none of them."""
    if value not in choices:
        raise ConfigError(name, value, f"use one of {', '.join(map(str, choices))}")


def check_text(name: str, value: Any, choices: Collection[str] = ()) -> str:
    """The value, or the path that it is, as a text that is not empty."""
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str) or not text:
        raise ConfigError(name, value, f"use one of {', '.join(choices)}" if choices else "a text that is not empty")
    check_choice(name, text, choices or (text,))
    return text


check_token_id = partial(check_number, minimum=0)
_KINDS: dict[Any, Callable[..., Any]] = {
    bool: check_flag,
    int: check_number,
    float: partial(check_number, whole=False),
    str: check_text,
}
CHECKS = {form: check for kind, check in _KINDS.items() for form in (kind, kind | None)}
