"""A checkpoint whose tensors of the keys and values of all heads are shown head by head.

A file has one tensor [heads · (plain + value), latent], a head's keys before its values. Its rows are
shown as tensors of their own, name[k0], name[v0], name[k1], …
"""

import re
from collections.abc import Iterator, Mapping
from itertools import accumulate
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


def rows_by_head(name: str, block: LatentBlock) -> dict[str, range]:
    """Name the tensors as which the rows of one tensor are shown, in their order."""
    sizes = {"k": block.plain_dim, "v": block.value.outputs}
    each = [(f"{name}[{kind}{head}]", size) for head in range(block.num_heads) for kind, size in sizes.items()]
    ends = accumulate(size for _, size in each)
    return {label: range(end - size, end) for (label, size), end in zip(each, ends, strict=True)}


def place_in_stack(name: str) -> tuple[int, str]:
    """Tell the place of a matrix in the tensor that has several: by expert or head, whose keys go before its values. A
    tensor of one matrix has -1.
    """
    mark = name.partition("[")[2].rstrip("]")
    return int(mark.lstrip("kv") or -1), mark[:1]


def shape_of_stack(pieces: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape of the tensor of several matrices, [experts, …] or [heads, …], or of the rows of all heads."""
    first = next(iter(pieces.values()))
    rows = sum(shape[0] for shape in pieces.values())
    return (rows, *first[1:]) if any(map(is_key, pieces)) else (len(pieces), *first)


def is_key(name: str) -> bool:
    """Tell whether a name is of one head's keys."""
    return re.search(r"\[k\d+\]$", name) is not None


class HeadsCheckpoint(Checkpoint):
    """The tensors of `plain`, with `names` divided. Codes of keys are not kept: they are transposed."""

    def __init__(self, plain: Checkpoint, block: LatentBlock, names: list[str]) -> None:
        self.plain, self.path, self.config, self.num_bytes = plain, plain.path, plain.config, plain.num_bytes
        self.rounded, self.dequantized, self.in_gguf = plain.rounded, plain.dequantized, plain.in_gguf
        self.shapes = {name: shape for name, shape in plain.shapes.items() if name not in names}
        self._rows: dict[str, tuple[str, range]] = {}
        wanted = (block.num_heads * (block.plain_dim + block.value.outputs), block.latent_dim)
        for name in names:
            if plain.shapes[name] != wanted:
                shapes = f"{name} {list(plain.shapes[name])} where {list(wanted)} goes"
                raise CheckpointError(f"{plain.path} does not fit its config", misshapen=[shapes])
            for label, rows in rows_by_head(name, block).items():
                self._rows[label] = name, rows
                self.shapes[label] = (len(rows), block.latent_dim)

    @property
    def family(self) -> Family:
        return self.plain.family

    def dtype_of(self, name: str) -> str:
        return self.plain.dtype_of(self._rows[name][0] if name in self._rows else name)

    def read(self, name: str, dtype: "torch.dtype | None" = None, rows: range | None = None) -> "Tensor":
        return self.plain.read(*self._place(name, dtype, rows))

    def read_codes(self, name: str, rows: range | None = None) -> "Stored | None":
        if is_key(name):
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
