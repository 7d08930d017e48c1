"""Checks of single settings by type, range and choice: each returns the value as a plain one of Python, or raises
ConfigError.

CHECKS has the check of each type that a setting may have. Its keywords are the limits of the setting.
"""

import math
import os
from collections.abc import Callable, Collection, Mapping
from functools import partial
from numbers import Integral, Real
from typing import Any

from tokenmill.errors import ConfigError


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


def _check_list(check: Callable[[str, Any], Any], name: str, value: Any) -> tuple[Any, ...]:
    """A tuple for a list, for one text, and for None."""
    value = (value,) if isinstance(value, str) and check is check_text else value
    if not isinstance(value, list | tuple | None):
        raise ConfigError(name, value, "a list; an empty one for none")
    return tuple(check(name, each) for each in value or ())


def _check_bias(name: str, value: Any) -> dict[int, float]:
    """Ids for the texts that JSON has as keys. Numbers from -1000 to 1000, or -inf."""
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
