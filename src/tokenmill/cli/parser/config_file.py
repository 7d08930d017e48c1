"""`--config FILE`: options out of a TOML file. What is typed goes over what the file says.

Keys are the names of options without the dashes, or `model`. Types are those of TOML: a number is no text.
"""

import inspect
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from types import UnionType
from typing import Any, get_args

import typer

from tokenmill.cli.parser.other_names import ALIASES
from tokenmill.errors import ConfigError

NOT_IN_FILE = ("config", "help")
KINDS: Mapping[Any, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    str: ((str,), "a text, in quotes"),
    Path: ((str,), "a text, in quotes"),
}
"""The type of an option → the types of values that it may have in a file, and how they are called."""


def read_config_file(context: typer.Context, path: Path | None) -> Path | None:
    """The callback of --config, which is eager: the values become the defaults of this command line."""
    if path is None:
        return None
    params = {param.name: param for param in context.command.params if param.name not in NOT_IN_FILE}
    keys = {max(param.opts, key=len).lstrip("-"): str(name) for name, param in params.items()}
    others = {alias.lstrip("-"): keys[name[2:]] for alias, name in ALIASES.items() if name[2:] in keys}
    kinds = inspect.signature(context.command.callback or _no_callback).parameters
    values: dict[str, Any] = {}
    for key, value in _read(path).items():
        word = key.replace("_", "-")
        name = keys.get(word) or others.get(word)
        if name is None:
            hint = "".join(f"did you mean {near!r}? " for near in get_close_matches(word, keys, n=1))
            raise ConfigError(key, value, f"no such option; {hint}there are {', '.join(sorted(keys))}", str(path))
        if name in values:
            raise ConfigError(key, value, "given once, and another name of it is there too", str(path))
        values[name] = _check_value(key, value, kinds[name].annotation, path)
        try:
            type(params[name]).process_value(params[name], context, value)
        except typer.BadParameter as error:  # which would name the option and not the file
            raise ConfigError(key, value, error.message, str(path)) from None
    context.default_map = values
    return path


def _no_callback() -> None:
    """A command without one has no options of its own."""


def _read(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError("config", str(path), f"a TOML file ({why})", "--config") from None


def _check_value(key: str, value: Any, annotation: Any, path: Path) -> Any:
    """The value, if its type is that of the option, which is Annotated[kind | None, …] or Annotated[list[kind], …]."""
    (kind, *_) = get_args(annotation) or (annotation,)
    kind = get_args(kind)[0] if isinstance(kind, UnionType) else kind
    is_list = kind == list[str]
    types, wanted = KINDS[str if is_list else kind]
    entries = value if is_list and isinstance(value, list) else [value]
    if not all(type(each) in types for each in entries) or is_list != isinstance(value, list):
        raise ConfigError(key, value, f"{'a list of texts' if is_list else wanted}", str(path))
    return value
