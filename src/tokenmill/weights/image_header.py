"""How an image begins: eight bytes of magic, eight of the header's length, and the header in JSON.

The header says what is inside, for which program, and of which model it was made. Nothing here imports torch.
"""

import json
import sys
import zlib
from pathlib import Path
from typing import Any

from tokenmill.errors import CheckpointError

__all__ = ["FORMAT", "MAGIC", "REMEDY", "checksum_of", "is_image", "read_header"]

MAGIC, FORMAT = b"TMIMAGE\n", 1
REMEDY = "make it again with `tokenmill image`"


def is_image(path: Path) -> bool:
    """By its first bytes, whatever its name."""
    try:
        with path.open("rb") as opened:
            return opened.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def checksum_of(facts: dict[str, Any]) -> int:
    """Of the header itself, which lies beside them."""
    return zlib.crc32(json.dumps(facts, sort_keys=True).encode())


def read_header(path: Path) -> tuple[dict[str, Any], int]:
    """The facts, and where the header ends. CheckpointError for what is no image, damaged, or of another version."""
    try:
        with path.open("rb") as opened:
            magic, length = opened.read(len(MAGIC)), int.from_bytes(opened.read(8), "little")
            text = opened.read(min(length, path.stat().st_size))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    if magic != MAGIC:
        raise CheckpointError(f"{path} is no image")
    try:
        document = json.loads(text)
        facts = document["facts"]
        sound = checksum_of(facts) == document["checksum"]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is cut or damaged: its header cannot be read ({error}); {REMEDY}") from error
    if not sound:
        raise CheckpointError(f"{path} is damaged: its header does not match its checksum; {REMEDY}")
    for name, wanted in (("format", FORMAT), ("byteorder", sys.byteorder)):
        if facts[name] != wanted:
            raise CheckpointError(f"{path} has {name} {facts[name]!r}, and this tokenmill reads {wanted!r}; {REMEDY}")
    return facts, len(MAGIC) + 8 + len(text)
