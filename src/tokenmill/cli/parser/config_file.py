"""`--config FILE`: options out of a TOML file, and the reading of such tables. What is typed goes over it.

Keys are the names of options without the dashes, or `model`. Types are those of TOML: a number is no text.
"""

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from tokenmill.cli.parser.command import Command
from tokenmill.cli.parser.options import Given, Parameter
from tokenmill.cli.parser.other_names import ALIASES
from tokenmill.errors import ConfigError

NOT_IN_FILE = ("config", "preset")


def read_config_file(command: Command, path: Path) -> Given:
    """The options that a file has for a verb."""
    return take_values(command, read_toml(path, "config", "--config"), str(path))[0]


def keys_of(command: Command) -> dict[str, Parameter]:
    """The keys that a file may have for a verb: an option without its dashes → the parameter."""
    return {each.key: each for each in command.parameters if each.name not in NOT_IN_FILE}


def take_values(
    command: Command, table: Mapping[str, Any], where: str, elsewhere: Collection[str] = ()
) -> tuple[Given, list[str]]:
    """The values of a table for a verb, and the keys that were left out: those of `elsewhere`, which other verbs have.

    ConfigError, which names `where`, for an unknown key and a value of another type or out of its range.
    """
    keys = keys_of(command)
    others = {alias.lstrip("-"): keys[name[2:]] for alias, name in ALIASES.items() if name[2:] in keys}
    values, left_out = Given(), list[str]()
    for key, value in table.items():
        word = key.replace("_", "-")
        found = keys.get(word) or others.get(word)
        if found is None and word in elsewhere:
            left_out.append(key)
            continue
        if found is None:
            hint = "".join(f"did you mean {near!r}? " for near in get_close_matches(word, keys, n=1))
            raise ConfigError(key, value, f"no such option; {hint}there are {', '.join(sorted(keys))}", where)
        if found.name in values:
            raise ConfigError(key, value, "given once, and another name of it is there too", where)
        values[found.name] = found.check_from_file(key, value, where), where
    return values, left_out


def read_toml(path: Path, name: str, option: str) -> dict[str, Any]:
    """A TOML file that an option names, or stands for; ConfigError."""
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(name, str(path), f"a TOML file ({why})", option) from None
