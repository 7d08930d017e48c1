"""Registries: plain dicts of "name": "module:object", or of "name": "module", resolved on first use.

A family, scheme, proposer, cache format, attention kernel, program or verb is one file and one line in its room's dict.
Naming the object as text keeps start-up light: nothing is imported until it is chosen.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from tokenmill.errors import ConfigError

__all__ = ["lookup"]


def lookup(registry: Mapping[str, str], name: str, setting: str) -> Any:
    """The object or module registered under `name`; ConfigError with the valid names when there is none."""
    if name not in registry:
        near = get_close_matches(str(name), registry, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ConfigError(setting, name, f"use one of {', '.join(sorted(registry))}{hint}")
    module, _, attribute = registry[name].partition(":")
    found = import_module(module)
    return getattr(found, attribute) if attribute else found
