"""How a packed model begins: eight bytes of magic, eight of the header's length, and the header in JSON.

The header says what is inside, for which program, and of which model it was made. Nothing here imports torch.
"""

from pathlib import Path
from typing import Any

from tokenmill.errors import CheckpointError
from tokenmill.memory.atomic_file import unseal

__all__ = ["FORMAT", "MAGIC", "REMEDY", "is_packed_model", "read_header"]

MAGIC, FORMAT = b"TMIMAGE\n", 1
REMEDY = "make it again with `tokenmill pack`"


def is_packed_model(path: Path) -> bool:
    """By its first bytes, whatever its name."""
    try:
        with path.open("rb") as opened:
            return opened.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def read_header(path: Path) -> tuple[dict[str, Any], int]:
    """The facts, and where the header ends. CheckpointError if it is none, damaged, or of another version."""
    try:
        with path.open("rb") as opened:
            magic, length = opened.read(len(MAGIC)), int.from_bytes(opened.read(8), "little")
            text = opened.read(min(length, path.stat().st_size))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    if magic != MAGIC:
        raise CheckpointError(f"{path} is no packed model")
    try:
        facts = unseal(text, FORMAT)
    except ValueError as error:
        raise CheckpointError(f"{path} {error}; {REMEDY}") from error
    return facts, len(MAGIC) + 8 + len(text)
