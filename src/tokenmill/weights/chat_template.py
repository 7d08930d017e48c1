"""Whether the files of a model have a chat template, read from headers alone: a base model has none."""

from pathlib import Path

from tokenmill.text.templates import templates_from_directory, templates_from_gguf
from tokenmill.text.tokenizer import read_json
from tokenmill.weights.gguf.header import read_header
from tokenmill.weights.packed.reader import is_packed_model
from tokenmill.weights.packed.reader import read_header as read_packed_header


def has_chat_template(path: Path) -> bool:
    """Whether the model at this path has a template for conversations. CheckpointError where its files are damaged."""
    if path.is_dir():
        return "default" in templates_from_directory(path, read_json(path / "tokenizer_config.json"))
    if is_packed_model(path):
        tokenizer = read_packed_header(path)[0].get("tokenizer")
        return isinstance(tokenizer, dict) and tokenizer.get("chat_template") is not None
    return "default" in templates_from_gguf(read_header(path).metadata)
