"""`tokenmill presets`: the presets of the user, with what they set and what is wrong with them."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from tokenmill.cli.parser.config_file import presets_file, problem_of, read_presets, shown
from tokenmill.cli.parser.options import JSON
from tokenmill.cli.process.display import echo, for_stdout, print_json, print_table
from tokenmill.settings.engine_config import DEFAULT_MODEL

EXAMPLES = ("tokenmill presets", "tokenmill presets --json", "tokenmill chat --preset miller")
HEADER = ("preset", "model", "system", "settings")
EXPENDABLE = ("system", "settings")


def command(json: bool = JSON) -> None:
    """Show the presets: tables of options by name, which chat, generate and serve take with --preset.

    They stand in presets.toml, in TOKENMILL_CONFIG, else in tokenmill below XDG_CONFIG_HOME or ~/.config.
    """
    path, presets = presets_file(), read_presets()
    problems = {name: problem_of(name, table) for name, table in presets.items()}
    if json:
        found = [
            {"name": name, "problem": problems[name] or None, "options": _as_json(table)}
            for name, table in presets.items()
        ]
        print_json({"path": str(path), "presets": found})
        return
    if not presets:
        echo(f"{path} {'has no presets' if path.is_file() else 'is not there, so there are no presets'}")
        return
    print_table(str(path), [_row(name, table) for name, table in presets.items()], HEADER, EXPENDABLE)
    for name, problem in problems.items():
        if problem:
            echo(for_stdout(f"{name}: {problem}"))


def _as_json(value: Any) -> Any:
    """Convert a value of TOML; a date, an infinity or a NaN, for which JSON has no form, becomes its text in TOML."""
    if isinstance(value, dict):
        return {key: _as_json(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_as_json(each) for each in value]
    if isinstance(value, str | int) or (isinstance(value, float) and isfinite(value)):
        return value
    return str(value)


def _row(name: str, table: Mapping[str, Any]) -> tuple[str, ...]:
    system = str(table.get("system", ""))
    return name, str(table.get("model", DEFAULT_MODEL)), system if len(system) < 30 else f"{system[:30]}…", shown(table)
