"""A packed model: one file whose matrices are already in the layout that a program multiplies with.

The weights are mapped into memory as they are; nothing in the file is executed (reader.py says how it is laid out). A
packed model is a Checkpoint whose tensors cannot be read one by one.
"""

import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import tokenizers
import torch
from torch import Tensor

from tokenmill.errors import PackedModelError, file_errors
from tokenmill.memory.arena import ALIGNMENT
from tokenmill.memory.atomic_file import seal, writing
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.value_reader import ValueReader, brief
from tokenmill.weights.fingerprint import fingerprint, is_full
from tokenmill.weights.generation import checked
from tokenmill.weights.packed.reader import FORMAT, MAGIC, REMEDY, PackedReader, payload_begin, read_header
from tokenmill.weights.plain import Checkpoint

__all__ = ["PackedCheckpoint", "write_packed_model"]

PART = 8 << 20  # bytes of the weights that share a checksum
Progress = Callable[[int, int], None]


class PackedCheckpoint(Checkpoint):
    """PackedModelError, by field, if the file is damaged, of another version, or older than its model.

    facts: the header; only the program, dtype and scheme that it names can use the weights.
    """

    def __init__(self, path: Path, reader: PackedReader | None = None, copy_of: Path | None = None) -> None:
        """copy_of: the model, if it is known to be unchanged; then that is this checkpoint's path."""
        self.path, self.file, self.reader = copy_of or path, path, reader
        facts, self._tokenizer_at = read_header(path) if reader is None else (reader.facts, reader.header_end)
        self.facts, self.config, self.rounded = facts, facts["config"], facts["rounded"]
        self.shapes = {name: tuple(shape) for name, shape in facts["shapes"].items()}
        self.num_bytes = facts["payload_bytes"]
        if copy_of is None:
            self._check_source()

    @property
    def is_copy(self) -> bool:
        """Whether the model's own files are there under `path`."""
        return self.path != self.file

    def _check_source(self) -> None:
        """A model that has changed since is refused. It may also be gone: the file is complete without it."""
        source = Path(self.facts["source"])
        try:
            if not source.exists():
                return
        except (OSError, ValueError) as error:  # a name that no file can have
            raise PackedModelError(f"{self.file} is damaged: its source is {brief(str(source))}; {REMEDY}") from error
        then = self.facts["fingerprint"]
        now = fingerprint(source, "full" if is_full(then) else "sampled")
        stale = [name for name, digest in now.items() if then.get(name) != digest]
        if stale:
            raise PackedModelError(f"{self.file} is stale: {' and '.join(stale)} of {source} have changed; {REMEDY}")

    def read(self, name: str, dtype: torch.dtype = torch.float32) -> Tensor:
        source = self.facts["source"]
        raise PackedModelError(f"{self.file} is a packed model, whose {name} cannot be read: give the model, {source}")

    def tokenizer(self) -> Tokenizer | None:
        with self.file.open("rb") as opened:
            opened.seek(self._tokenizer_at)
            text = opened.read(self.facts["tokenizer_bytes"])
        if zlib.crc32(text) != self.facts["tokenizer_checksum"]:
            raise PackedModelError(f"{self.file} is damaged: its tokenizer does not match its checksum; {REMEDY}")
        if not text:
            return None
        reader = ValueReader(self.facts, f"{self.file} is damaged", PackedModelError).inside("tokenizer", required=True)
        template, special_texts = reader.take("chat_template", None), dict(reader.inside("special_texts").values)
        if not all(isinstance(value, str) for value in (template or "", *special_texts.values())):
            raise PackedModelError(f"{self.file} is damaged: its tokenizer's special tokens are no texts; {REMEDY}")
        try:
            backend = tokenizers.Tokenizer.from_str(text.decode())
        except Exception as error:  # tokenizers raises bare Exception
            raise PackedModelError(f"{self.file} is damaged: its tokenizer cannot be read; {REMEDY}") from error
        return Tokenizer(
            backend,
            bos_token_id=reader.count("bos_token_id", None, minimum=0),
            eos_token_ids=reader.token_ids("eos_token_ids"),
            chat_template=template,
            special_texts=special_texts,
        )

    def generation_defaults(self) -> dict[str, Any]:
        reader = ValueReader(self.facts, f"{self.file} is damaged", PackedModelError)
        return checked(self.file, dict(reader.inside("generation_defaults").values))

    def start_reading(self) -> None:
        """Map all weights and verify them in the background, unless that has begun."""
        self.reader = self.reader or PackedReader(self.file)

    def payload(self) -> Tensor:
        """All weights as bytes [N], verified. Called once."""
        self.start_reading()
        assert self.reader is not None, "started above"
        memory, self.reader = self.reader.wait(), None
        return torch.frombuffer(memory, dtype=torch.uint8)


def write_packed_model(
    path: Path,
    facts: dict[str, Any],
    tokenizer: Tokenizer | None,
    tensors: Iterable[Tensor],
    progress: Progress,
    sync: bool = True,
) -> int:
    """Write the file atomically, and with `sync` so that it survives a crash of the machine; its size in bytes.

    `facts`: program, dtype, scheme, source, fingerprint, config, shapes, and what the program needs to find the
    `tensors`, which lie one after the other, each at the next multiple of ALIGNMENT.
    """
    payload = []
    for tensor in tensors:
        data = memoryview(tensor.reshape(-1).view(torch.uint8).numpy().data)
        payload += [data, memoryview(bytes(-len(data) % ALIGNMENT))]
    text = b"" if tokenizer is None else tokenizer.backend.to_str().encode()
    names = ("bos_token_id", "eos_token_ids", "chat_template", "special_texts")
    facts = {
        **facts,
        "tokenizer": None if tokenizer is None else {name: getattr(tokenizer, name) for name in names},
        "tokenizer_bytes": len(text),
        "tokenizer_checksum": zlib.crc32(text),
        "payload_bytes": sum(map(len, payload)),
        "part_bytes": PART,
        "checksums": _checksums(payload),
    }
    header = seal(facts, FORMAT).encode()
    with file_errors(path, "written"), writing(path, sync) as out:
        out.write(MAGIC + len(header).to_bytes(8, "little") + header + text)
        out.seek(payload_begin(out.tell()))
        total, begin = facts["payload_bytes"], out.tell()
        progress(0, total)
        for data in payload:
            for at in range(0, len(data), PART):  # one part at a time, because people watch
                out.write(data[at : at + PART])
                progress(out.tell() - begin, total)
        return out.tell()


def _checksums(payload: Iterable[memoryview]) -> list[int]:
    sums, current, left = [], 0, PART
    for data in payload:
        rest = data
        while rest:
            taken, rest = rest[:left], rest[left:]
            current, left = zlib.crc32(taken, current), left - len(taken)
            if left == 0:
                sums.append(current)
                current, left = 0, PART
    return [*sums, current] if left < PART else sums
