"""The kind of model that lies at a path: a directory, a packed model, or a file whose reader the registry names.

It is read from a few bytes, so that a wrong file is refused before anything slow is imported.
"""

from pathlib import Path

from tokenmill.errors import CheckpointError, file_errors
from tokenmill.registry import CHECKPOINTS
from tokenmill.weights.packed.reader import is_packed_model

DIRECTORY, PACKED = "directory", "packed model"


def file_kind(path: Path) -> str:
    """Return DIRECTORY, PACKED or a key of CHECKPOINTS. CheckpointError for any other file."""
    if path.is_dir():
        return DIRECTORY
    if path.is_file() and is_packed_model(path):
        return PACKED
    if path.is_file() and (kind := _key(path)) is not None:
        return kind
    named = f"a {path.suffix} file, not a model" if path.suffix else "not a model"
    inside = "; give the directory that it lies in" if path.suffix in (".safetensors", ".bin", ".json") else ""
    raise CheckpointError(
        f"{path} is {named}: give a directory in Hugging Face layout, a .gguf file or a packed model{inside}"
    )


def _key(path: Path) -> str | None:
    """Find the key of CHECKPOINTS with which a file begins, whatever its name: names in Ollama's store tell nothing.

    A file whose suffix is such a key has that kind, too: its reader names the fault.
    """
    with file_errors(path, "read"), path.open("rb") as file:
        magic = file.read(4).decode("latin-1")
    named = (key for key in CHECKPOINTS if path.suffix.lower() == f".{key.lower()}")
    return magic if magic in CHECKPOINTS else next(named, None)
