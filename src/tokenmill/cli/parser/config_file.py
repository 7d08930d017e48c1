"""`--config FILE` and `--preset NAME`: options out of a TOML file, or out of a table of the user's file of presets.

What is typed goes over them. Keys are the names of options without the dashes, or `model`. Values have TOML's types: a
number is no text. One preset serves chat, generate and serve: a key that only another of these verbs has is left out,
which is said.
"""

import os
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from tokenmill.cli.parser.command import Command
from tokenmill.cli.parser.options import MODEL, Given, Parameter, built_settings, option
from tokenmill.cli.parser.other_names import ALIASES
from tokenmill.cli.process.display import remark
from tokenmill.errors import ConfigError, TokenmillError
from tokenmill.value_reader import folder_of_setting

NOT_IN_FILE = ("config", "preset")


def read_config_file(command: Command, path: Path) -> Given:
    """Read the options that a file has for a verb."""
    return take_values(command, read_toml(path, "config", "--config"), str(path))[0]


def keys_of(command: Command) -> dict[str, Parameter]:
    """Map the keys that a file may have for a verb, options without their dashes, to parameters."""
    return {each.key: each for each in command.parameters if each.name not in NOT_IN_FILE}


def take_values(
    command: Command, table: Mapping[str, Any], where: str, elsewhere: Collection[str] = ()
) -> tuple[Given, list[str]]:
    """Read the values of a table for a verb, and list the keys that were left out because `elsewhere`, the keys of
    other verbs, has them.

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
    """Read a TOML file that an option names, or stands for; ConfigError."""
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(name, str(path), f"a TOML file ({why})", option) from None


FILE = "presets.toml"
PRESET_VERBS = ("chat", "generate", "serve")
"""The verbs that take --preset."""


def presets_file() -> Path:
    """Name presets.toml in TOKENMILL_CONFIG, else in tokenmill below XDG_CONFIG_HOME or ~/.config."""
    if folder := os.environ.get("TOKENMILL_CONFIG"):
        return folder_of_setting(folder, "TOKENMILL_CONFIG") / FILE
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "tokenmill" / FILE


def read_presets() -> dict[str, dict[str, Any]]:
    """Read all presets by name. ConfigError for a file that cannot be read, and a preset that is no table."""
    path = presets_file()
    found = read_toml(path, "preset", "--preset") if path.is_file() else {}
    for name, table in found.items():
        if not isinstance(table, dict):
            allowed = f"only within a preset: a line with [its name] stands before {name}"
            raise ConfigError(name, table, allowed, str(path))
    return found


def read_preset(command: Command, name: str) -> Given:
    """Read the options that a preset has for a verb."""
    presets, path = read_presets(), presets_file()
    if name not in presets:
        near = "".join(f"did you mean {each!r}? " for each in get_close_matches(name, presets, n=1))
        there = f"{path} has {', '.join(presets) or 'none'}" if path.is_file() else f"{path} is not there"
        raise ConfigError("preset", name, f"the name of a preset; {near}{there}", "--preset")
    values, left_out = take_values(command, presets[name], f"{path}, [{name}]", _keys())
    if left_out:
        remark(f"preset {name}: {command.path} has no {', '.join(left_out)}, so that is left out")
    return values


def problem_of(name: str, table: Mapping[str, Any]) -> str:
    """Say what is wrong with a preset whatever verb takes it: a key that no verb has, a value of another type or out of
    its range; or "". What only a loaded model tells, such as an error in a regex, is not found here.
    """
    where, elsewhere = f"{presets_file()}, [{name}]", _keys()
    for command in map(Command, PRESET_VERBS):
        try:
            given, _ = take_values(command, table, where, elsewhere)
            for kind in command.kinds.values():
                built_settings(kind, {key: value for key, (value, _) in given.items()})
        except ConfigError as error:
            return str(ConfigError(error.name, error.value, error.allowed, error.where or where))
        except TokenmillError as error:
            return str(error)
    return ""


def _keys() -> set[str]:
    return {key for verb in PRESET_VERBS for key in keys_of(Command(verb))}


def shown(table: Mapping[str, Any]) -> str:
    """List the settings of a preset in a line, without its model; long texts are cut."""
    parts = [f"{key} {value}" for key, value in table.items() if key not in ("model", "system")]
    return ", ".join(part if len(part) < 40 else f"{part[:40]}…" for part in parts)


PRESET = option(
    None,
    "Take the options of this preset; `tokenmill presets` lists them. What is typed goes over it.",
    MODEL,
    metavar="NAME",
    reads=read_preset,
)
