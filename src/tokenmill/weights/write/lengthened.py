"""A checkpoint whose table of inputs of layers has a row for each token, as llama.cpp wants it. In Gemma 3n tokens
behind the end of the table, which stand for pictures and sounds, have its first row: it is repeated.
"""

import torch
from torch import Tensor

from tokenmill.model.families import Family, read_config
from tokenmill.quant.stored import Stored
from tokenmill.settings.recommended import Recommended
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.weights.names import match_tensors
from tokenmill.weights.plain import Checkpoint


def lengthen(checkpoint: Checkpoint) -> Checkpoint:
    """Repeat the first row up to the last token, where the table ends before."""
    model = read_config(checkpoint.config)
    is_whole = model.per_layer is None or model.per_layer.vocab_size >= model.vocab_size
    return checkpoint if is_whole else LengthenedCheckpoint(checkpoint)


class LengthenedCheckpoint(Checkpoint):
    """The tensors of `plain`, with the longer table."""

    def __init__(self, plain: Checkpoint) -> None:
        self.plain, self.path, model = plain, plain.path, read_config(plain.config)
        self.num_bytes, self.rounded = plain.num_bytes, plain.rounded
        self.config = {**plain.config, "vocab_size_per_layer_input": model.vocab_size}
        targets = match_tensors(plain, model).items()
        (self._table,) = (name for name, target in targets if target.parameter == "per_layer.embedding.weight")
        self._count, width = plain.shapes[self._table]
        self.shapes = {**plain.shapes, self._table: (model.vocab_size, width)}

    @property
    def family(self) -> Family:
        return self.plain.family

    def dtype_of(self, name: str) -> str:
        return self.plain.dtype_of(name)

    def read(self, name: str, dtype: torch.dtype | None = None, rows: range | None = None) -> Tensor:
        if name != self._table:
            return self.plain.read(name, dtype, rows)
        wanted = range(self.shapes[name][0]) if rows is None else rows
        own = range(min(wanted.start, self._count), min(wanted.stop, self._count))
        first = self.plain.read(name, dtype, range(1)).expand(len(wanted) - len(own), -1)
        return torch.cat((self.plain.read(name, dtype, own), first)) if own else first

    def read_codes(self, name: str, rows: range | None = None) -> Stored | None:
        return None if name == self._table else self.plain.read_codes(name, rows)

    def tokenizer(self) -> Tokenizer | None:
        return self.plain.tokenizer()

    def generation_defaults(self) -> Recommended:
        return self.plain.generation_defaults()
