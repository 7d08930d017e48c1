"""The chat templates that a model brings: one named "default", and others for special uses, such as "tool_use".

transformers' order: template files of a directory stand in the place of whatever tokenizer_config.json says. Templates
are read as texts here; text/chat.py compiles and runs them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenmill.errors import CheckpointError
from tokenmill.value_reader import ValueReader, brief

FILE, FOLDER = "chat_template.jinja", "additional_chat_templates"
KEY, NAMES = "tokenizer.chat_template", "tokenizer.chat_templates"  # of GGUF


def templates_from_directory(path: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the templates of a directory's template files by name; without them, of its tokenizer_config.json."""
    files = {"default": path / FILE} if (path / FILE).is_file() else {}
    files |= {file.name.removesuffix(".jinja"): file for file in sorted((path / FOLDER).glob("*.jinja"))}
    return {name: _text(file) for name, file in files.items()} or _from_config(config.get("chat_template"))


def templates_from_gguf(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the templates by name, out of the metadata of a GGUF file."""
    keys = ValueReader(metadata, "GGUF metadata", CheckpointError)
    found = {"default": KEY} if metadata.get(KEY) is not None else {}
    found |= {key.removeprefix(f"{KEY}."): key for key in metadata if key.startswith(f"{KEY}.")}
    return {name: keys.text(key, longest=float("inf")) for name, key in found.items()}


def templates_to_gguf(default: str | None, named: Mapping[str, str]) -> dict[str, Any]:
    """Return the metadata of a GGUF file for these templates."""
    keys: dict[str, Any] = {} if default is None else {KEY: default}
    keys |= {f"{KEY}.{name}": template for name, template in named.items()}
    return keys | ({NAMES: list(named)} if named else {})


def _from_config(given: Any) -> dict[str, str]:
    """Return the templates in a key of tokenizer_config.json: one text, or several as a list of objects or by names."""
    if given is None:
        return {}
    where = "tokenizer_config.json: chat_template"
    if isinstance(given, str):
        return {"default": given}
    if isinstance(given, list):
        entries = [
            ValueReader(entry, f"{where}: entry {number}", CheckpointError) for number, entry in enumerate(given)
        ]
        given = {entry.text("name"): entry.take("template") for entry in entries}
    if not isinstance(given, dict):
        raise CheckpointError(f"{where} = {brief(given)} is not allowed: a text, or a list of named ones")
    return {name: ValueReader(given, where, CheckpointError).text(name, longest=float("inf")) for name in given}


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{file} cannot be read as text in UTF-8: {error}") from error
