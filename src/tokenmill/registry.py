"""Registries: plain dicts of "name": "module:object", resolved on first use.

A family, scheme, proposer, cache format, attention kernel or program is one file and one line in its room's dict.
Naming the object as text keeps start-up light: nothing is imported until it is chosen. This is the one place in
the package that imports inside a function.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from tokenmill.errors import ConfigError

__all__ = ["lookup", "resolve"]


def resolve(target: str) -> Any:
    """The object that "package.module:name" names."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def lookup(registry: Mapping[str, str], name: str, setting: str, where: str = "") -> Any:
    """The object registered under `name`; ConfigError with the valid names when there is none."""
    if name not in registry:
        near = get_close_matches(str(name), registry, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ConfigError(setting, name, f"use one of {', '.join(sorted(registry))}{hint}", where)
    return resolve(registry[name])
