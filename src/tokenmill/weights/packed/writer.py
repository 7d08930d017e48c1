"""Packed models as they are written, piece by piece: each piece of the weights goes into the file when it is complete.

So the weights are never in memory twice: the program that packs them reads them from the file, which is mapped. The
header comes after the weights, because it says where they lie. A writer that is closed before `finish` leaves no file.
"""

import os
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tokenmill.errors import CheckpointError, file_errors
from tokenmill.memory.arena import ALIGNMENT
from tokenmill.memory.atomic_file import beside, refuse_other, seal
from tokenmill.memory.pages import map_file, touch
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.weights.packed.reader import BEGIN, FORMAT, MAGIC, begin_file

PART = 8 << 20  # bytes of the weights that are written at once and share a checksum: whole huge pages
AHEAD = 2  # parts that a thread may still have to write
TOKENIZER = ("bos_token_id", "eos_token_ids", "chat_template", "named_templates", "special_texts", "suppressed_ids")


class PackedWriter:
    """An Allocation in a file. CheckpointError where the system refuses to write.

    sync: the file survives a crash of the machine. num_bytes: of the weights, if known; the file is as large from the
    beginning, so that others count it. failed: whether the system has refused to write.
    """

    def __init__(self, path: Path, sync: bool = True, num_bytes: int = 0) -> None:
        self.path, self._sync, self.failed = path, sync, False
        self.used = 0
        self._scratch, self._last = torch.empty(0, dtype=torch.uint8), memoryview(b"")
        self._parts, self._filled = [memoryview(bytearray(PART)) for _ in range(AHEAD + 1)], 0
        self._sums: list[Future[int]] = []
        with file_errors(path, "written"):
            refuse_other(path)
            self._temporary = beside(path)
            self._file = self._temporary.open("x+b", buffering=0)
            self._file.write(MAGIC)
            self._file.truncate(BEGIN + num_bytes)
        self._thread = ThreadPoolExecutor(1)

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """See Allocation. All pieces have the same memory, one after the other."""
        self._append(self._last)
        size = prod(shape) * dtype.itemsize
        if size > len(self._scratch):
            self._scratch = torch.empty(size, dtype=torch.uint8)
        piece = self._scratch[:size].zero_()
        self._last = memoryview(piece.numpy().data)
        self.used += size + -size % ALIGNMENT
        return piece.view(dtype).view(shape)

    @property
    def bytes(self) -> Tensor:
        """See Allocation: a mapping of the file."""
        self._append(self._last)
        self._wait(0)
        self._scratch = torch.empty(0, dtype=torch.uint8)  # not beside all the weights
        with self._errors():
            self._write(self._part[: self._filled], len(self._sums))
            mapped = map_file(self._file, BEGIN, self.used)
        touch(mapped)
        return torch.frombuffer(mapped, dtype=torch.uint8)

    def finish(self, facts: Mapping[str, Any], tokenizer: Tokenizer | None) -> int:
        """Write the header and put the file in its place; its size in bytes.

        `facts`: program, dtype, scheme, source, copy, fingerprint, config, shapes, and all by which the program finds
        the weights. A copy takes the name under "copy", in the folder of the writer's path.
        """
        self._append(self._last)
        if self._filled:
            self._flush()
        self._wait(0)
        text = b"" if tokenizer is None else tokenizer.backend.to_str().encode()
        facts = {
            **facts,
            "tokenizer": None if tokenizer is None else _facts_of(tokenizer),
            "tokenizer_bytes": len(text),
            "tokenizer_checksum": zlib.crc32(text),
            "payload_bytes": self.used,
            "part_bytes": PART,
            "checksums": [part.result() for part in self._sums],
        }
        header = seal(facts, FORMAT).encode()
        with self._errors():
            self._file.truncate(BEGIN + self.used)
            _write_all(self._file.fileno(), memoryview(begin_file(BEGIN + self.used, len(header))), 0)
            _write_all(self._file.fileno(), memoryview(header + text), BEGIN + self.used)
            if self._sync:
                os.fsync(self._file.fileno())
            self._temporary.replace(self.path.with_name(facts.get("copy") or self.path.name))
        return BEGIN + self.used + len(header) + len(text)

    def close(self) -> None:
        """Delete a file that is not finished, and free all memory except the mapping."""
        self._thread.shutdown()
        self._parts.clear()
        self._scratch, self._last = torch.empty(0, dtype=torch.uint8), memoryview(b"")
        self._file.close()
        self._temporary.unlink(missing_ok=True)

    @property
    def _part(self) -> memoryview:
        """The part that is being filled. The thread has written the part that was in this memory before."""
        return self._parts[len(self._sums) % len(self._parts)]

    def _append(self, piece: memoryview) -> None:
        self._last = memoryview(b"")
        for data in (piece, memoryview(bytes(-len(piece) % ALIGNMENT))):
            rest = data
            while rest:
                taken, rest = rest[: PART - self._filled], rest[PART - self._filled :]
                self._part[self._filled : self._filled + len(taken)] = taken
                self._filled += len(taken)
                if self._filled == PART:
                    self._flush()

    def _flush(self) -> None:
        """Have the thread write the part that is being filled."""
        data, number, self._filled = self._part[: self._filled], len(self._sums), 0
        self._sums.append(self._thread.submit(self._write, data, number))
        self._wait(AHEAD)

    def _write(self, data: memoryview, number: int) -> int:
        _write_all(self._file.fileno(), data, BEGIN + number * PART)
        return zlib.crc32(data)

    def _wait(self, left: int) -> None:
        """Wait until the thread has at most so many parts to write."""
        with self._errors():
            if len(self._sums) > left:
                self._sums[-1 - left].result()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            with file_errors(self.path, "written"):
                yield
        except CheckpointError:
            self.failed = True
            raise


def _facts_of(tokenizer: Tokenizer) -> dict[str, Any]:
    rules = None if tokenizer.rules is None else tokenizer.rules.as_json()
    return {**{name: getattr(tokenizer, name) for name in TOKENIZER}, "rules": rules}


def _write_all(file: int, data: memoryview, at: int) -> None:
    while data:
        count = os.pwrite(file, data, at)
        data, at = data[count:], at + count
