"""A checkpoint whose tensors of the keys and values of all heads are shown head by head.

A file has one tensor [heads · (plain + value), latent], a head's keys before its values. Its rows are
shown as tensors of their own, name[k0], name[v0], name[k1], …
"""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tokenmill.errors import CheckpointError
from tokenmill.model.config import ModelConfig
from tokenmill.model.families import Family
from tokenmill.model.families.mixers_of import mixer_of
from tokenmill.model.mixers.latent import LatentBlock
from tokenmill.settings.recommended import Recommended
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.weights.plain import Checkpoint

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from tokenmill.quant.stored import Stored

KEYS = "[k{h}]"


def by_heads(plain: Checkpoint, model: ModelConfig) -> Checkpoint:
    """Show the tensors of heads one by one, where the model has such tensors. CheckpointError for other shapes."""
    block = mixer_of(model, LatentBlock)
    ends = {re.split(r"\{[in]\}", name)[-1].removesuffix(KEYS) for name in plain.family.names if name.endswith(KEYS)}
    found = [name for name in plain.shapes if ends and name.endswith(tuple(ends))]
    return plain if block is None or not found else HeadsCheckpoint(plain, block, found)


class HeadsCheckpoint(Checkpoint):
    """The tensors of `plain`, with `names` divided. Codes of keys are not kept: they are transposed."""

    def __init__(self, plain: Checkpoint, block: LatentBlock, names: list[str]) -> None:
        self.plain, self.path, self.config, self.num_bytes = plain, plain.path, plain.config, plain.num_bytes
        self.rounded, self.dequantized, self.in_gguf = plain.rounded, plain.dequantized, plain.in_gguf
        self.shapes = {name: shape for name, shape in plain.shapes.items() if name not in names}
        self._rows: dict[str, tuple[str, range]] = {}
        sizes = {"k": block.plain_dim, "v": block.value.outputs}
        wanted = (block.num_heads * sum(sizes.values()), block.latent_dim)
        for name in names:
            if plain.shapes[name] != wanted:
                shapes = f"{name} {list(plain.shapes[name])} where {list(wanted)} goes"
                raise CheckpointError(f"{plain.path} does not fit its config", misshapen=[shapes])
            first = 0
            for head in range(block.num_heads):
                for kind, size in sizes.items():
                    self._rows[f"{name}[{kind}{head}]"] = name, range(first, first := first + size)
                    self.shapes[f"{name}[{kind}{head}]"] = (size, block.latent_dim)

    @property
    def family(self) -> Family:
        return self.plain.family

    def dtype_of(self, name: str) -> str:
        return self.plain.dtype_of(self._rows[name][0] if name in self._rows else name)

    def read(self, name: str, dtype: "torch.dtype | None" = None, rows: range | None = None) -> "Tensor":
        return self.plain.read(*self._place(name, dtype, rows))

    def read_codes(self, name: str, rows: range | None = None) -> "Stored | None":
        if name in self._rows and name.startswith(f"{self._rows[name][0]}[k"):
            return None
        source, _, part = self._place(name, None, rows)
        return self.plain.read_codes(source, part)

    def stored_bytes(self, name: str) -> Iterator[bytes] | None:
        return None if name in self._rows else self.plain.stored_bytes(name)

    def tokenizer(self) -> Tokenizer | None:
        return self.plain.tokenizer()

    def generation_defaults(self) -> Recommended:
        return self.plain.generation_defaults()

    def _place(self, name: str, dtype: "torch.dtype | None", rows: range | None) -> tuple[str, Any, range | None]:
        if name not in self._rows:
            return name, dtype, rows
        source, own = self._rows[name]
        return source, dtype, own if rows is None else own[rows.start : rows.stop]
