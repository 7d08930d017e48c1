"""The weights of a packed model, read into memory in the background.

Nothing here imports torch, so that reading goes on while torch is imported.
"""

import mmap
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tokenmill.errors import CheckpointError
from tokenmill.memory.pages import map_pages
from tokenmill.weights.packed.header import REMEDY, payload_begin, read_header

__all__ = ["PackedReader"]


class PackedReader:
    """Begins to read when it is made. CheckpointError for what is no packed model."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.facts, self.header_end = read_header(path)
        self._begin = payload_begin(self.facts, self.header_end)
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
            opened.seek(self._begin)
            for part, checksum in enumerate(self.facts["checksums"]):
                piece = memoryview(self._memory)[part * size : min(total, (part + 1) * size)]
                if opened.readinto(piece) != len(piece) or zlib.crc32(piece) != checksum:
                    at = f"bytes {part * size} to {part * size + len(piece)} of its weights"
                    raise CheckpointError(f"{self.path} is damaged: {at} do not match their checksum; {REMEDY}")
