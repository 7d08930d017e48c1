"""A checkpoint with its multipliers folded into its weights, for file formats that have no keys for multipliers.

The products are computed in float32 and rounded to the tensor's dtype: in bfloat16 the written model is another
rounding of the same weights.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tokenmill.model.config import ModelConfig
from tokenmill.model.description import describe
from tokenmill.model.families import Family, read_config
from tokenmill.model.mixers.attention import AttentionBlock
from tokenmill.model.parameters import join, matrices_of
from tokenmill.settings.recommended import Recommended
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.weights.names import match_tensors, rows_of
from tokenmill.weights.plain import Checkpoint


def fold(checkpoint: Checkpoint, ones: Mapping[str, Any]) -> Checkpoint:
    """Multiply all multipliers into the weights. ones: the keys of config.json that have them, with the values that
    change nothing.

    A checkpoint without multipliers stays as it is, and one whose head is its embedding, which cannot have both the
    multiplier of embeddings and the multiplier of logits.
    """
    model = read_config(checkpoint.config)
    if model.tie_embeddings or model == read_config({**checkpoint.config, **ones}):
        return checkpoint
    return FoldedCheckpoint(checkpoint, model, ones)


class FoldedCheckpoint(Checkpoint):
    """The tensors of `plain`, multiplied. Codes are not kept."""

    def __init__(self, plain: Checkpoint, model: ModelConfig, ones: Mapping[str, Any]) -> None:
        self.plain, self.path, self.shapes = plain, plain.path, plain.shapes
        self.config, self.num_bytes, self.rounded = {**plain.config, **ones}, plain.num_bytes, plain.rounded
        self._factors: dict[str, Tensor] = {}
        factors_F = _factors_of(model)
        for name, target in match_tensors(plain, model).items():
            found = factors_F.get(target.parameter.rpartition(".")[0])
            if found is not None:
                assert not target.transform, "a matrix with multipliers is stored as it is"
                rows = rows_of(target, len(found), model)
                self._factors[name] = found[rows.start : rows.stop]

    @property
    def family(self) -> Family:
        return self.plain.family

    def dtype_of(self, name: str) -> str:
        return self.plain.dtype_of(name)

    def read(self, name: str, dtype: torch.dtype | None = None, rows: range | None = None) -> Tensor:
        tensor, factors_F = self.plain.read(name, dtype, rows), self._factors.get(name)
        if factors_F is None:
            return tensor
        own_F = factors_F if rows is None else factors_F[rows.start : rows.stop]
        return (tensor.float() * own_F.view(-1, *[1] * (tensor.dim() - 1))).to(tensor.dtype)

    def tokenizer(self) -> Tokenizer | None:
        return self.plain.tokenizer()

    def generation_defaults(self) -> Recommended:
        return self.plain.generation_defaults()


def _factors_of(model: ModelConfig) -> dict[str, Tensor]:
    """Find the factor of each row of the matrices that have multipliers, by their paths."""
    decoder, found = describe(model), dict[str, tuple[tuple[int, ...], tuple[float, ...]]]()
    for path, multiplier in (("embedding", model.embedding_multiplier), ("head", model.logit_multiplier)):
        found[path] = (model.vocab_size,), (multiplier,)
    found |= {path: (each.parts, each.multipliers) for path, each in matrices_of(decoder).items() if each.is_scaled}
    for number, layer in enumerate(decoder.layers):
        for block in layer.mixers:
            if isinstance(block, AttentionBlock):  # scores have their scale by K
                own = (1.0, block.shape.scale * block.head_dim**0.5, 1.0)
                found[join(number, f"{block.name}.qkv")] = block.qkv.parts, own
    return {
        path: torch.cat([torch.full((rows,), factor) for rows, factor in zip(parts, multipliers, strict=True)])
        for path, (parts, multipliers) in found.items()
    }
