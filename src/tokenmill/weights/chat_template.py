"""The chat template of a model's files, found by headers alone.

It stands apart from checkpoint.py, since a start from a packed copy reads no GGUF file and imports nothing for one.
"""

from pathlib import Path

from tokenmill.text.templates import templates_from_directory, templates_from_gguf
from tokenmill.text.tokenizer import read_json
from tokenmill.weights.file_kind import DIRECTORY, PACKED, file_kind
from tokenmill.weights.gguf.header import read_header
from tokenmill.weights.packed.reader import read_header as read_packed_header


def has_chat_template(path: Path) -> bool:
    """Tell by headers alone whether the model at a path has a template for conversations; a base model has none.
    CheckpointError where there is no model, or a damaged one.
    """
    kind = file_kind(path)
    if kind == DIRECTORY:
        return "default" in templates_from_directory(path, read_json(path / "tokenizer_config.json"))
    if kind == PACKED:
        tokenizer = read_packed_header(path)[0].get("tokenizer")
        return isinstance(tokenizer, dict) and tokenizer.get("chat_template") is not None
    return "default" in templates_from_gguf(read_header(path).metadata)
