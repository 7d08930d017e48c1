"""Reads packed models: the header, and the weights in the background. Nothing here imports torch.

The file begins with eight bytes of magic, eight of the header's length, and the header in JSON. It says what is inside,
for which program, and of which model it was made. After it come the tokenizer and, from the next page on, the weights.
"""

import mmap
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tokenmill.errors import CheckpointError, file_errors
from tokenmill.memory.atomic_file import unseal
from tokenmill.memory.pages import map_pages
from tokenmill.value_reader import ValueReader

__all__ = ["FORMAT", "MAGIC", "PAGE", "REMEDY", "PackedReader", "is_packed_model", "read_header"]

MAGIC, FORMAT = b"TMIMAGE\n", 1
PAGE = 4096
REMEDY = "make it again with `tokenmill pack`"


def is_packed_model(path: Path) -> bool:
    """By its first bytes, whatever its name."""
    try:
        with path.open("rb") as opened:
            return opened.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def read_header(path: Path) -> tuple[dict[str, Any], int]:
    """The facts, and where the header ends. CheckpointError if it is none, damaged, or of another version.

    Every fact that this room uses has the right type, and the file the size that they say.
    """
    with file_errors(path, "read"), path.open("rb") as opened:
        magic, length = opened.read(len(MAGIC)), int.from_bytes(opened.read(8), "little")
        size = path.stat().st_size
        text = opened.read(min(length, size))
    if magic != MAGIC:
        raise CheckpointError(f"{path} is no packed model")
    try:
        facts = unseal(text, FORMAT)
    except ValueError as error:
        raise CheckpointError(f"{path} {error}; {REMEDY}") from error
    end = len(MAGIC) + 8 + len(text)
    reader = ValueReader(facts, f"{path} is damaged", CheckpointError)
    for name in ("program", "dtype", "scheme", "source", "rounded"):
        reader.text(name)
    for name in ("config", "fingerprint", "weights", "shapes"):
        reader.inside(name, required=True)
    for name in ("tokenizer_bytes", "tokenizer_checksum", "payload_bytes"):
        reader.count(name, minimum=0, maximum=1 << 48)
    shapes = reader.inside("shapes")
    for name in shapes.values:
        if any(size < 0 for size in shapes.entries(name, int)):
            raise shapes.refuse(name, shapes.values[name], "a shape")
    parts = -(-facts["payload_bytes"] // reader.count("part_bytes"))
    if len(reader.entries("checksums", int)) != parts:
        raise reader.refuse("checksums", facts["checksums"], f"{parts} of them")
    wanted = _payload_begin(facts, end) + facts["payload_bytes"]
    if size != wanted:
        raise CheckpointError(f"{path} is cut or damaged: size {size}, and its header says {wanted}; {REMEDY}")
    return facts, end


def _payload_begin(facts: dict[str, Any], header_end: int) -> int:
    """Where the weights begin in the file: after the tokenizer, on a whole page."""
    return -(-(header_end + int(facts["tokenizer_bytes"])) // PAGE) * PAGE


class PackedReader:
    """Begins to read the weights when it is made, so that reading goes on while torch is imported."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.facts, self.header_end = read_header(path)
        self._memory = map_pages(self.facts["payload_bytes"])
        thread = ThreadPoolExecutor(1)  # one thread: the others import torch and make the tokenizer meanwhile
        self._done = thread.submit(self._read)
        thread.shutdown(wait=False)

    def wait(self) -> mmap.mmap:
        """All weights, in huge pages; CheckpointError names the part that does not match its checksum."""
        self._done.result()
        return self._memory

    def _read(self) -> None:
        size, total = self.facts["part_bytes"], self.facts["payload_bytes"]
        with self.path.open("rb", buffering=0) as opened:
            opened.seek(_payload_begin(self.facts, self.header_end))
            for part, checksum in enumerate(self.facts["checksums"]):
                piece = memoryview(self._memory)[part * size : min(total, (part + 1) * size)]
                if opened.readinto(piece) != len(piece) or zlib.crc32(piece) != checksum:
                    at = f"bytes {part * size} to {part * size + len(piece)} of its weights"
                    raise CheckpointError(f"{self.path} is damaged: {at} do not match their checksum; {REMEDY}")
