"""A packed model: one file whose matrices are already in the layout that a program multiplies with.

The weights are mapped into memory as they are; nothing in the file is executed (reader.py says how it is laid out). A
packed model is a Checkpoint whose tensors cannot be read one by one.
"""

import zlib
from mmap import mmap
from pathlib import Path
from typing import TYPE_CHECKING

import tokenizers

from tokenmill.errors import PackedModelError
from tokenmill.hub.short_names import sampling_of_file
from tokenmill.model.families import Family, read_config
from tokenmill.model.per_layer import PACKED, STORED_AS
from tokenmill.settings.recommended import Recommended
from tokenmill.text.sentencepiece import TextRules
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.value_reader import ValueReader, brief
from tokenmill.weights.fingerprint import fingerprint, is_full
from tokenmill.weights.generation import checked, defaults_of_directory
from tokenmill.weights.names import as_stored
from tokenmill.weights.packed.reader import FORMAT, REMEDY, PackedReader, read_header, read_tokenizer
from tokenmill.weights.plain import Checkpoint

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class PackedCheckpoint(Checkpoint):
    """A packed model. PackedModelError, by field, if the file is damaged, of another version, or older than its model.

    copy_of: the model, if it is known to be unchanged; it is this checkpoint's path then. facts: the header; only the
    settings for which the file was made can use the weights, see settings_of.
    """

    def __init__(self, path: Path, reader: PackedReader | None = None, copy_of: Path | None = None) -> None:
        self.path, self.file, self.reader = copy_of or path, path, reader
        facts, self._tokenizer_at = read_header(path) if reader is None else (reader.facts, reader.header_end)
        self.facts, self.config, self.rounded = facts, facts["config"], facts["rounded"]
        if STORED_AS in self.config:
            self.config = {**self.config, STORED_AS: PACKED}
        self.dequantized = facts.get("dequantized") or ""
        self.shapes = {name: tuple(shape) for name, shape in facts["shapes"].items()}
        self.num_bytes, self.in_gguf = facts["payload_bytes"], facts.get("in_gguf") is True
        if copy_of is None:
            self._check_source()
        elif facts["format"] != FORMAT:  # a file of the user's is worth keeping, a copy is made again
            raise PackedModelError(f"{path} has format {facts['format']}, and copies are made with {FORMAT}; {REMEDY}")

    @property
    def family(self) -> Family:
        family = super().family
        return family if self.in_gguf else as_stored(family, read_config(self.config), self.shapes)

    @property
    def is_copy(self) -> bool:
        """Tell whether the model's own files are there under `path`."""
        return self.path != self.file

    @property
    def source(self) -> Path:
        """The model of which it was made, which may be gone."""
        return Path(self.facts["source"])

    def _check_source(self) -> None:
        """Refuse a source that has changed since. It may be gone, since the file is complete without it."""
        source = self.source
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

    def read(self, name: str, dtype: "torch.dtype | None" = None, rows: range | None = None) -> "Tensor":
        source = self.facts["source"]
        raise PackedModelError(f"{self.file} is a packed model, whose {name} cannot be read: give the model, {source}")

    def tokenizer(self) -> Tokenizer | None:
        reader = self.reader
        text = reader.tokenizer_text if reader else read_tokenizer(self.file, self.facts, self._tokenizer_at)
        if zlib.crc32(text) != self.facts["tokenizer_checksum"]:
            raise PackedModelError(f"{self.file} is damaged: its tokenizer does not match its checksum; {REMEDY}")
        if not text:
            return None
        facts = ValueReader(self.facts, f"{self.file} is damaged", PackedModelError, is_ours=True)
        header = facts.inside("tokenizer", required=True)
        template = header.take("chat_template", None)
        named, special_texts = (dict(header.inside(key).values) for key in ("named_templates", "special_texts"))
        if not all(isinstance(value, str) for value in (template or "", *named.values(), *special_texts.values())):
            raise PackedModelError(f"{self.file} is damaged: its tokenizer's special tokens are no texts; {REMEDY}")
        try:
            backend = tokenizers.Tokenizer.from_str(text.decode())
            rules = None if (found := header.take("rules", None)) is None else TextRules.from_json(found)
        except Exception as error:  # tokenizers raises bare Exception
            raise PackedModelError(f"{self.file} is damaged: its tokenizer cannot be read; {REMEDY}") from error
        return Tokenizer(
            backend,
            bos_token_id=header.count("bos_token_id", None, minimum=0),
            eos_token_ids=header.token_ids("eos_token_ids"),
            chat_template=template,
            named_templates=named,
            special_texts=special_texts,
            suppressed_ids=header.token_ids("suppressed_ids"),
            rules=rules,
        )

    def generation_defaults(self) -> Recommended:
        if self.is_copy and self.path.is_dir():  # whose own file says more than the values that were allowed
            return defaults_of_directory(self.path)
        reader = ValueReader(self.facts, f"{self.file} is damaged", PackedModelError, is_ours=True)
        found = dict(reader.inside("generation_defaults").values)
        if not found:  # a copy may be older than the table of makers
            return sampling_of_file(self.path)
        return checked(self.file, found, reader.text("generation_origin", "the packed model"))

    def start_reading(self) -> None:
        """Map all weights and verify them in the background, unless that has begun."""
        self.reader = self.reader or PackedReader(self.file)

    def payload(self) -> mmap:
        """Return all weights, verified. Called once."""
        self.start_reading()
        assert self.reader is not None, "started above"
        memory, self.reader = self.reader.wait(), None
        return memory
