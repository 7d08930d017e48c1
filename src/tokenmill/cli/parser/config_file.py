"""`--config FILE`: options out of a TOML file, and the reading of such tables. What is typed goes over it.

Keys are the names of options without the dashes, or `model`. Types are those of TOML: a number is no text.
"""

import inspect
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import UnionType
from typing import Any, get_args

import typer

from tokenmill.cli.parser.command import ORIGINS
from tokenmill.cli.parser.other_names import ALIASES
from tokenmill.errors import ConfigError

NOT_IN_FILE = ("config", "preset", "help")
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
    if path is not None:
        take_values(context, read_toml(path, "config", "--config"), str(path), is_first=True)
    return path


def keys_of(command: Any) -> dict[str, str]:
    """The keys that a file may have for a verb: an option without its dashes → the parameter."""
    params = {param.name: param for param in command.params if param.name not in NOT_IN_FILE}
    return {max(param.opts, key=len).lstrip("-"): str(name) for name, param in params.items()}


def take_values(
    context: typer.Context,
    table: Mapping[str, Any],
    where: str,
    elsewhere: Collection[str] = (),
    is_first: bool = False,
) -> list[str]:
    """Make values of a table the defaults of this command line, beside those that another file gives.

    elsewhere: keys that other verbs have, which are left out here and returned. is_first: whether the values go over
    those of another file. ConfigError, which names `where`, for an unknown key and a value of another type.
    """
    params, keys = {param.name: param for param in context.command.params}, keys_of(context.command)
    others = {alias.lstrip("-"): keys[name[2:]] for alias, name in ALIASES.items() if name[2:] in keys}
    kinds = inspect.signature(context.command.callback or _no_callback).parameters
    values, left_out = dict[str, Any](), list[str]()
    for key, value in table.items():
        word = key.replace("_", "-")
        name = keys.get(word) or others.get(word)
        if name is None and word in elsewhere:
            left_out.append(key)
            continue
        if name is None:
            hint = "".join(f"did you mean {near!r}? " for near in get_close_matches(word, keys, n=1))
            raise ConfigError(key, value, f"no such option; {hint}there are {', '.join(sorted(keys))}", where)
        if name in values:
            raise ConfigError(key, value, "given once, and another name of it is there too", where)
        values[name] = _check_value(key, value, kinds[name].annotation, where)
        try:
            type(params[name]).process_value(params[name], context, value)
        except typer.BadParameter as error:  # which would name the option and not the file
            raise ConfigError(key, value, error.message, where) from None
    known: dict[str, Any] = dict(context.default_map or {})
    origins: dict[str, str] = context.meta.setdefault(ORIGINS, {})
    for name, value in values.items():
        if is_first or name not in known:
            known[name], origins[name] = value, where
    context.default_map = known
    return left_out


def _no_callback() -> None:
    """A command without one has no options of its own."""


def read_toml(path: Path, name: str, option: str) -> dict[str, Any]:
    """A TOML file that an option names, or stands for; ConfigError."""
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(name, str(path), f"a TOML file ({why})", option) from None


def _check_value(key: str, value: Any, annotation: Any, where: str) -> Any:
    """The value, if its type is that of the option, which is Annotated[kind | None, …] or Annotated[list[kind], …]."""
    (kind, *_) = get_args(annotation) or (annotation,)
    kind = get_args(kind)[0] if isinstance(kind, UnionType) else kind
    is_list = kind == list[str]
    types, wanted = KINDS[str if is_list else kind]
    entries = value if is_list and isinstance(value, list) else [value]
    if not all(type(each) in types for each in entries) or is_list != isinstance(value, list):
        raise ConfigError(key, value, f"{'a list of texts' if is_list else wanted}", where)
    return value
