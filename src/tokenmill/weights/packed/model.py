"""A packed model: one file whose matrices are already in the layout that a program multiplies with.

The file holds the header (header.py), the tokenizer and, from the next page boundary on, the weights. The weights are
read into memory as they are; nothing in the file is executed. A packed model is a Checkpoint whose tensors cannot be
read one by one.
"""

import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers
import torch
from torch import Tensor

from tokenmill.errors import CheckpointError
from tokenmill.memory.arena import ALIGNMENT
from tokenmill.memory.atomic_file import seal, writing
from tokenmill.quant.stored import Stored
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.value_reader import ValueReader, brief
from tokenmill.weights.fingerprint import fingerprint, is_full
from tokenmill.weights.generation import checked
from tokenmill.weights.packed.header import FORMAT, MAGIC, PAGE, REMEDY, read_header
from tokenmill.weights.packed.reader import PackedReader

__all__ = ["PackedCheckpoint", "write_packed_model"]

PART = 8 << 20
"""Bytes of the weights that share a checksum."""

Progress = Callable[[int, int], None]


class PackedCheckpoint:
    """See Checkpoint. CheckpointError, by field, if it is damaged, of another version, or older than its model.

    facts: the header. program, dtype, scheme: what the weights are packed for; nothing else can use them.
    """

    def __init__(self, path: Path, reader: PackedReader | None = None) -> None:
        self.path, self.reader = path, reader
        self.facts, begin = read_header(path) if reader is None else (reader.facts, reader.header_end)
        self.config: dict[str, Any] = self.facts["config"]
        self.rounded: str = self.facts["rounded"]
        self.program, self.dtype, self.scheme = (self.facts[name] for name in ("program", "dtype", "scheme"))
        self.shapes: Mapping[str, tuple[int, ...]] = {k: tuple(v) for k, v in self.facts["shapes"].items()}
        self.num_bytes: int = self.facts["payload_bytes"]
        self._tokenizer_at = begin
        self._check_source()

    def _check_source(self) -> None:
        """Refuse a file whose model has changed since. The model may also be gone: the file is complete without it."""
        source = Path(self.facts["source"])
        try:
            if not source.exists():
                return
        except (OSError, ValueError) as error:  # a name that no file can have
            raise CheckpointError(f"{self.path} is damaged: its source is {brief(str(source))}; {REMEDY}") from error
        then = self.facts["fingerprint"]
        now = fingerprint(source, "full" if is_full(then) else "sampled")
        stale = [name for name, digest in now.items() if then.get(name) != digest]
        if stale:
            raise CheckpointError(f"{self.path} is stale: {' and '.join(stale)} of {source} have changed; {REMEDY}")

    def read(self, name: str) -> Tensor:
        """Refused: the tensors of the model cannot be restored from packed weights."""
        source = self.facts["source"]
        raise CheckpointError(f"{self.path} is a packed model, whose {name} cannot be read: give the model, {source}")

    def read_codes(self, name: str) -> Stored | None:
        """Refused, as read."""
        self.read(name)
        return None

    def tokenizer(self) -> Tokenizer | None:
        """See Checkpoint."""
        with self.path.open("rb") as opened:
            opened.seek(self._tokenizer_at)
            text = opened.read(self.facts["tokenizer_bytes"])
        if zlib.crc32(text) != self.facts["tokenizer_checksum"]:
            raise CheckpointError(f"{self.path} is damaged: its tokenizer does not match its checksum; {REMEDY}")
        if not text:
            return None
        reader = ValueReader(self.facts.get("tokenizer"), f"{self.path} is damaged: tokenizer", CheckpointError)
        template, special_texts = reader.take("chat_template", None), dict(reader.inside("special_texts").values)
        if not all(isinstance(value, str) for value in (template or "", *special_texts.values())):
            raise CheckpointError(f"{self.path} is damaged: its tokenizer's special tokens are no texts; {REMEDY}")
        try:
            backend = tokenizers.Tokenizer.from_str(text.decode())
        except Exception as error:  # tokenizers raises bare Exception
            raise CheckpointError(f"{self.path} is damaged: its tokenizer cannot be read; {REMEDY}") from error
        return Tokenizer(
            backend,
            bos_token_id=reader.count("bos_token_id", None, minimum=0),
            eos_token_ids=reader.token_ids("eos_token_ids"),
            chat_template=template,
            special_texts=special_texts,
        )

    def generation_defaults(self) -> dict[str, Any]:
        """See Checkpoint."""
        found = ValueReader(
            self.facts.get("generation_defaults", {}), f"{self.path}: generation_defaults", CheckpointError
        )
        return checked(self.path, dict(found.values))

    def start_reading(self) -> None:
        """Begin to read all weights in the background, unless that has begun."""
        self.reader = self.reader or PackedReader(self.path)

    def payload(self) -> Tensor:
        """All weights as bytes [N], in huge pages, every part checked. Called once."""
        self.start_reading()
        assert self.reader is not None, "started above"
        memory, self.reader = self.reader.wait(), None
        return torch.frombuffer(memory, dtype=torch.uint8)[: self.num_bytes]


def write_packed_model(
    path: Path, facts: dict[str, Any], tokenizer: Tokenizer | None, tensors: Iterable[Tensor], progress: Progress
) -> int:
    """Write the file atomically; its size in bytes.

    `facts`: program, dtype, scheme, source, fingerprint, config, shapes, and what the program needs to find the
    `tensors`, which lie one after the other, each at the next multiple of ALIGNMENT.
    """
    parts = [tensor.reshape(-1).view(torch.uint8).numpy() for tensor in tensors]
    text = b"" if tokenizer is None else tokenizer.backend.to_str().encode()
    total = sum(len(part) + -len(part) % ALIGNMENT for part in parts)
    facts = {
        **facts,
        "tokenizer": None if tokenizer is None else _describe(tokenizer),
        "tokenizer_bytes": len(text),
        "tokenizer_checksum": zlib.crc32(text),
        "payload_bytes": total,
        "part_bytes": PART,
        "checksums": _checksums(parts),
    }
    header = seal(facts, FORMAT).encode()
    try:
        with writing(path) as out:
            out.write(MAGIC + len(header).to_bytes(8, "little") + header + text)
            out.write(b"\0" * (-out.tell() % PAGE))
            for number, part in enumerate(parts):
                progress(number, len(parts))
                out.write(part.data)
                out.write(b"\0" * (-len(part) % ALIGNMENT))
            size = out.tell()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error.strerror}") from error
    progress(len(parts), len(parts))
    return size


def _describe(tokenizer: Tokenizer) -> dict[str, Any]:
    """The keywords of Tokenizer."""
    return {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_ids": tokenizer.eos_token_ids,
        "chat_template": tokenizer.chat_template,
        "special_texts": tokenizer.special_texts,
    }


def _checksums(parts: list[Any]) -> list[int]:
    """The checksum of every PART bytes of the payload."""
    sums, current, left = [], 0, PART
    for part in parts:
        for data in (memoryview(part.data), memoryview(bytes(-len(part) % ALIGNMENT))):
            begin = 0
            while begin < len(data):
                taken = data[begin : begin + left]
                current = zlib.crc32(taken, current)
                begin, left = begin + len(taken), left - len(taken)
                if left == 0:
                    sums.append(current)
                    current, left = 0, PART
    return [*sums, current] if left < PART else sums
