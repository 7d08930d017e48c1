"""`--preset NAME`: options of a verb out of a table of the user's file of presets. What is typed goes over it.

Keys are those that --config takes, the names of options: one table serves chat, generate and serve. A key that only
another of these verbs has is left out, which is said.
"""

import os
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer

from tokenmill.cli.parser.config_file import keys_of, read_toml, take_values
from tokenmill.cli.parser.options import MODEL, built_settings, option
from tokenmill.cli.process.display import remark
from tokenmill.errors import ConfigError, TokenmillError
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.settings.sampling_params import SamplingParams
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


def read_preset(context: typer.Context, name: str | None) -> str | None:
    """The callback of --preset, which is eager: the values become the defaults of this command line."""
    if name is None:
        return None
    presets, path = read_presets(), presets_file()
    if name not in presets:
        near = "".join(f"did you mean {each!r}? " for each in get_close_matches(name, presets, n=1))
        there = f"{path} has {', '.join(presets) or 'none'}" if path.is_file() else f"{path} is not there"
        raise ConfigError("preset", name, f"the name of a preset; {near}{there}", "--preset")
    elsewhere = {key for command in _commands(context) for key in keys_of(command)}
    left_out = take_values(context, presets[name], f"{path}, [{name}]", elsewhere)
    if left_out:
        remark(f"preset {name}: {context.info_name} has no {', '.join(left_out)}, so that is left out")
    return name


def problem_of(context: typer.Context, name: str, table: Mapping[str, Any]) -> str:
    """What is wrong with a preset whatever verb takes it: a key that none has, a value of another type or out of its
    range; or "". What only a loaded model tells, such as an error in a regex, is not found here.
    """
    commands = _commands(context)
    elsewhere = {key for command in commands for key in keys_of(command)}
    where = f"{presets_file()}, [{name}]"
    for command in commands:
        made = type(context)(command)
        try:
            take_values(made, table, where, elsewhere)
            for kind in (SamplingParams, EngineConfig):
                built_settings(kind, made.default_map or {})
        except ConfigError as error:
            return str(ConfigError(error.name, error.value, error.allowed, error.where or where))
        except TokenmillError as error:
            return str(error)
    return ""


def _commands(context: typer.Context) -> list[Any]:
    """The verbs that take a preset, as the parser has them."""
    group: Any = context.find_root().command
    return [group.get_command(context, verb) for verb in PRESET_VERBS]


def shown(table: Mapping[str, Any]) -> str:
    """The settings of a preset in a line, without its model; long texts are cut."""
    parts = [f"{key} {value}" for key, value in table.items() if key not in ("model", "system")]
    return ", ".join(part if len(part) < 40 else f"{part[:40]}…" for part in parts)


Preset = Annotated[
    str | None,
    option(
        MODEL,
        "--preset",
        help="Take the options of this preset; `tokenmill presets` lists them. What is typed goes over it.",
        metavar="NAME",
        is_eager=True,
        callback=read_preset,
    ),
]
