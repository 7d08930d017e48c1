"""Packed models as they are read: the header, and the weights as mapped memory. Nothing here imports torch.

The file begins with eight bytes of magic, eight for the place of the header, and eight for its length. From the second
huge page on come the weights, so that they can be mapped in such pages; before them lies a hole, for which file systems
keep no bytes. After the weights come the header in JSON, which describes the weights and names the program and the
model of the file, and the tokenizer.
"""

import mmap
import os
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Thread
from typing import Any, BinaryIO

from tokenmill.errors import PackedModelError, file_errors
from tokenmill.memory.atomic_file import unseal
from tokenmill.memory.pages import HUGE_PAGE, map_file, touch
from tokenmill.value_reader import ValueReader, brief
from tokenmill.weights.packed.verified import facts_of, is_verified, record_of, remember, settle

MAGIC, FORMAT = b"TMIMAGE\n", 9
OLDER = (6, 7, 8)
"""Formats that are read, too: none of them has superblocks, 6 has no layouts with integer scales, and neither 6 nor 7
says whether the model has a layer that drafts.
"""
BEGIN = HUGE_PAGE  # of the weights in the file
REMEDY = "make it again with `tokenmill pack`"
ANY_DTYPE = "any-dtype"
"""The dtype of a packed model that serves in all of them."""


def is_packed_model(path: Path) -> bool:
    """Tell a packed model by its first bytes, whatever its name."""
    try:
        with path.open("rb") as opened:
            return opened.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def read_header(path: Path) -> tuple[dict[str, Any], int]:
    """Read the facts, and where the header ends. PackedModelError if the file is damaged, of another version, or no
    packed model.

    Every fact that this room uses has the right type, and the file has the size that the facts say.
    """
    with file_errors(path, "read"), path.open("rb") as opened:
        return _header_of(path, opened)


def settings_of(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with which a packed model can be used: another value belongs to another packed model."""
    return {name: facts[name] for name in ("program", "dtype", "scheme") if facts[name] != ANY_DTYPE}


def _header_of(path: Path, opened: BinaryIO) -> tuple[dict[str, Any], int]:
    with file_errors(path, "read"):
        front, size = opened.read(len(begin_file(0, 0))), os.fstat(opened.fileno()).st_size
        at, length = (int.from_bytes(front[begin : begin + 8], "little") for begin in (len(MAGIC), len(MAGIC) + 8))
        opened.seek(min(at, size))
        text = opened.read(min(length, size))
    magic = front[: len(MAGIC)]
    if magic != MAGIC:
        raise PackedModelError(f"{path} is no packed model")
    try:
        facts = unseal(text, FORMAT, *OLDER)
    except ValueError as error:
        raise PackedModelError(f"{path} {error}; {REMEDY}") from error
    end = at + len(text)
    reader = ValueReader(facts, f"{path} is damaged", PackedModelError, is_ours=True)
    for name in ("program", "dtype", "scheme", "source", "rounded"):
        reader.text(name)
    reader.text("dequantized", "")
    for name in ("config", "fingerprint", "weights", "shapes"):
        reader.inside(name, required=True)
    for name, least in (("tokenizer_bytes", 0), ("tokenizer_checksum", 0), ("payload_bytes", 1)):
        reader.count(name, minimum=least, maximum=1 << 48)
    shapes = reader.inside("shapes")
    for name in shapes.values:
        if any(size < 0 for size in shapes.entries(name, int)):
            raise shapes.refuse(name, shapes.values[name], "a shape")
    parts = -(-facts["payload_bytes"] // reader.count("part_bytes"))
    if len(reader.entries("checksums", int)) != parts:
        raise reader.refuse("checksums", facts["checksums"], f"{parts} of them")
    found, wanted = (at, length, size), (BEGIN + facts["payload_bytes"], len(text), end + facts["tokenizer_bytes"])
    if found != wanted:
        raise PackedModelError(f"{path} is cut or damaged: sizes {found}, and its header says {wanted}; {REMEDY}")
    return facts, end


def read_tokenizer(path: Path, facts: dict[str, Any], end: int) -> bytes:
    """Read the tokenizer, unverified. facts, end: as read_header has returned them."""
    with file_errors(path, "read"), path.open("rb") as opened:
        return _read_at(opened, end, facts["tokenizer_bytes"])


def _read_at(opened: BinaryIO, begin: int, size: int) -> bytes:
    opened.seek(begin)
    return opened.read(size)


def begin_file(header_at: int, header_bytes: int) -> bytes:
    """Make the first bytes of a packed model."""
    return MAGIC + header_at.to_bytes(8, "little") + header_bytes.to_bytes(8, "little")


class PackedReader:
    """A packed model that is being read: the weights are mapped at once, and read in the background meanwhile.

    Their checksums are verified there, unless they were before and the file is still the same. All is read from the
    file that had this name at first, which others may delete or replace. tokenizer_text: unverified. again: verify
    although that was done before. is_copy: PackedModelError unless the file is the packed copy of that name.
    """

    def __init__(self, path: Path, again: bool = False, is_copy: bool = False) -> None:
        self.path = path
        with file_errors(path, "read"), ExitStack() as until_verified:
            opened = until_verified.enter_context(path.open("rb"))
            self.facts, self.header_end = _header_of(path, opened)
            if is_copy and (name := self.facts.get("copy")) != path.name:
                raise PackedModelError(f"{path} is another file under this name: its copy is {brief(name)}; {REMEDY}")
            self.tokenizer_text = _read_at(opened, self.header_end, self.facts["tokenizer_bytes"])
            self._memory = map_file(opened, BEGIN, self.facts["payload_bytes"])
            self._record = record_of(path)  # now: the directory, or where the cache is, may change until it is verified
            until_verified.pop_all()
        thread = ThreadPoolExecutor(1)  # one thread: the others import torch and make the tokenizer meanwhile
        self._done = thread.submit(self._verify, opened, again)
        thread.shutdown(wait=False)

    def wait(self) -> mmap.mmap:
        """Wait for all weights; PackedModelError names the part that does not match its checksum."""
        self._done.result()
        return self._memory

    def _verify(self, opened: BinaryIO, again: bool) -> None:
        with opened:
            if not again and is_verified(self._record, opened.fileno()):
                touch(self._memory)
                return
            before = facts_of(opened.fileno())
            weights, size = memoryview(self._memory), self.facts["part_bytes"]
            for part, checksum in enumerate(self.facts["checksums"]):
                piece = weights[part * size : (part + 1) * size]
                if zlib.crc32(piece) != checksum:
                    at = f"bytes {part * size} to {part * size + len(piece)} of its weights"
                    raise PackedModelError(f"{self.path} is damaged: {at} do not match their checksum; {REMEDY}")
            remember(self._record, opened.fileno(), before)
            _settle_meanwhile(self._record, opened, before)


def _settle_meanwhile(record: Path, opened: BinaryIO, verified: dict[str, int | str]) -> None:
    """Call `settle` in a background thread; if none can be started, the file is verified again after a restart."""
    with suppress(OSError):  # no descriptor is left
        own = open(os.dup(opened.fileno()), "rb")  # noqa: PTH123, SIM115  (the thread closes it)
        try:
            Thread(target=_settle, args=(record, own, verified), daemon=True).start()
        except RuntimeError:  # no thread is left
            own.close()


def _settle(record: Path, opened: BinaryIO, verified: dict[str, int | str]) -> None:
    with opened:
        settle(record, opened.fileno(), verified)
