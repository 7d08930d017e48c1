"""`--preset NAME`: options of a verb out of a table of the user's file of presets. What is typed goes over it.

Keys are those that --config takes, the names of options: one table serves chat, generate and serve. A key that only
another of these verbs has is left out, which is said.
"""

import os
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from tokenmill.cli.parser.command import Command
from tokenmill.cli.parser.config_file import keys_of, read_toml, take_values
from tokenmill.cli.parser.options import MODEL, Given, built_settings, option
from tokenmill.cli.process.display import remark
from tokenmill.errors import ConfigError, TokenmillError
from tokenmill.value_reader import folder_of_setting

FILE = "presets.toml"
PRESET_VERBS = ("chat", "generate", "serve")
"""The verbs that take --preset."""


def presets_file() -> Path:
    """presets.toml in TOKENMILL_CONFIG, else in tokenmill below XDG_CONFIG_HOME or ~/.config. It may not be there."""
    if folder := os.environ.get("TOKENMILL_CONFIG"):
        return folder_of_setting(folder, "TOKENMILL_CONFIG") / FILE
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "tokenmill" / FILE


def read_presets() -> dict[str, dict[str, Any]]:
    """All presets by their names; none without a file. ConfigError for a file that cannot be read, or is no table."""
    path = presets_file()
    found = read_toml(path, "preset", "--preset") if path.is_file() else {}
    for name, table in found.items():
        if not isinstance(table, dict):
            allowed = f"only within a preset: a line with [its name] stands before {name}"
            raise ConfigError(name, table, allowed, str(path))
    return found


def read_preset(command: Command, name: str) -> Given:
    """The options that a preset has for a verb."""
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
    """What is wrong with a preset whatever verb takes it: a key that none has, a value of another type or out of its
    range; or "". What only a loaded model tells, such as an error in a regex, is not found here.
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
    """The keys of all verbs that take a preset."""
    return {key for verb in PRESET_VERBS for key in keys_of(Command(verb))}


def shown(table: Mapping[str, Any]) -> str:
    """The settings of a preset in a line, without its model; long texts are cut."""
    parts = [f"{key} {value}" for key, value in table.items() if key not in ("model", "system")]
    return ", ".join(part if len(part) < 40 else f"{part[:40]}…" for part in parts)


PRESET = option(
    None,
    "Take the options of this preset; `tokenmill presets` lists them. What is typed goes over it.",
    MODEL,
    metavar="NAME",
    reads=read_preset,
)
