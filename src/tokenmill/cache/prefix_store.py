"""Published blocks on disk, by their chained hash: a prompt that was computed once is found after a restart.

One file for each block, in a folder for each compatibility header. Several engines and processes may use the same
directory: a file that is gone or damaged, or that says inside that it is another block, counts as never written. The
least recently used blocks of all models are deleted so that the directory stays within its limit. A directory that can
be read but not written serves what it holds; other files in it are neither counted nor touched.
"""

import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from tokenmill.cache.pool import ROWS, STATES, Pool
from tokenmill.cache.prefix_folders import blocks_folder, is_block, note_model
from tokenmill.cache.snapshot import read_snapshot, serialise_bytes, write_buffers
from tokenmill.errors import CapacityError, SnapshotError
from tokenmill.memory.disk_limit import Limit
from tokenmill.schedule.keeps import RowSource
from tokenmill.schedule.sequence import Store
from tokenmill.units import size as as_size
from tokenmill.value_reader import brief

LAYOUT, NAME = 3, "rows"  # one tensor of bytes: with a tensor for each layer, reading and writing took 3 times as long

log = logging.getLogger(__name__)

PREFIX_LIMIT = Limit(4096, 1 / 20)  # prompts of some hundred pages of a 7B model; the rest of the disk is the user's
KEPT = (
    "blocks of prompts are kept in %s for the next start, at most %s of all models; prefix_cache=False keeps none, and "
    "the folder may be deleted"
)


class PrefixStore:
    """Blocks of one pool. header: fields that must be equal for rows to be shared. model: its path, for people.

    SnapshotError without a folder, CapacityError where the limit is less than a block.
    """

    def __init__(self, folder: Path, pool: Pool, header: Mapping[str, Any], limit_bytes: int, model: str = "") -> None:
        self._pool, self._model, self._limit_bytes = pool, model, limit_bytes
        facts = json.dumps(
            {**header, "block_size": pool.spec.block_size, "layout": LAYOUT}, sort_keys=True, default=str
        )
        self._store = hashlib.blake2b(facts.encode(), digest_size=16).hexdigest()
        self._root, self._folder = folder, folder / hashlib.blake2b(facts.encode(), digest_size=8).hexdigest()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if not self._root.is_dir():  # neither written nor read
                raise SnapshotError(f"{self._folder} cannot be made: {error.strerror}") from error
        self._damaged: set[bytes] = set()
        self._blocks = blocks_folder(self._root, limit_bytes)
        self._blocks.can_write = os.access(self._folder, os.W_OK)
        if (size := pool.spec.bytes_per_token * pool.spec.block_size + pool.spec.bytes_per_state) > limit_bytes:
            what, setting = "prefix_limit for one block", "prefix_limit or block_size"
            raise CapacityError(what, size, limit_bytes, setting, in_bytes=True)
        if self._blocks.can_write:
            self._blocks.remove_leftovers()
            self._blocks.recount()

    def find(self, block_hash: bytes, kind: int = ROWS) -> RowSource | None:
        """Find the reader of that block, of a kind of layers, or None if there is no file of it."""
        return (
            partial(self.read, block_hash, kind)
            if block_hash not in self._damaged and self._path(block_hash).is_file()
            else None
        )

    def read(self, block_hash: bytes, kind: int, first: int, last: int) -> Mapping[str, Tensor]:
        """Read entries [first, last) of a block. SnapshotError where the file is gone, damaged or another."""
        path = self._path(block_hash)
        try:
            facts, found = read_snapshot(path)
            for name, wanted in self._facts(block_hash).items():
                if facts.get(name) != wanted:
                    raise SnapshotError(f"{path} is another block: its {name} is {brief(facts.get(name))}")
            if list(found) != [NAME]:
                raise SnapshotError(f"{path} is damaged: it should hold {NAME!r}, and holds {brief(list(found))}")
            rows = self._pool.split(path, found[NAME], kind)
        except SnapshotError:
            self._damaged.add(block_hash)
            raise
        with suppress(OSError):
            os.utime(path)  # the time of the last read decides what is deleted
        return {name: tensor[first:last] for name, tensor in rows.items()}

    def save(self, store: Store) -> None:
        """Write a full block, unless it is there. If the disk refuses, warn once and write no more blocks.

        A state that is not finite is not written: texts that go on from it would fail after each restart. Where another
        file, which no store has written, has that name, only that block is not written.
        """
        path, block_hash = self._path(store.name), store.name
        if not self._blocks.can_write or self.find(block_hash) or (os.path.lexists(path) and not is_block(path)):
            return
        if store.kind == STATES and not self._pool.is_finite(store.block, STATES):
            return  # its text fails at its next logits
        buffers = serialise_bytes(self._facts(block_hash), NAME, self._pool.block_bytes(store.block, store.kind))
        num_bytes = sum(memoryview(buffer).nbytes for buffer in buffers)
        if self._blocks.add(num_bytes, partial(self._write, path, buffers)):
            self._damaged.discard(block_hash)

    def _write(self, path: Path, buffers: Sequence[Any]) -> None:
        """Write a block. With the first of this model its folder is noted and logged, also after a deletion."""
        self._folder.mkdir(parents=True, exist_ok=True)
        write_buffers(path, buffers)
        if note_model(self._folder, self._model):
            log.info(KEPT, self._folder, as_size(self._limit_bytes))

    def _facts(self, block_hash: bytes) -> dict[str, Any]:
        """Name the block and the store of a file. The first stands in OWN_FRONT."""
        return {"block": block_hash.hex(), "store": self._store}

    def _path(self, block_hash: bytes) -> Path:
        return self._folder / f"{block_hash.hex()}.kv"
