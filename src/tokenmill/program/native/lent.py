"""The embedding and the head of a decoder: its own, or another model's, with what that model's operations point to."""

from typing import NamedTuple

import torch

from tokenmill.kernels.native_structs import TmOp
from tokenmill.model.description import DecoderDescription
from tokenmill.program.native.layouts import LAYOUTS
from tokenmill.program.native.op_list import EMBED, OpList
from tokenmill.program.native.spec import has_coded_embedding
from tokenmill.program.native.units import Linear
from tokenmill.program.native.weights import SmallTensor
from tokenmill.quant.schemes import GROUP, Scheme
from tokenmill.settings.engine_config import DTYPES


class LentOps(NamedTuple):
    """The first and the last operation of another model, which keeps alive what they point to. num_logits: see Lent; a
    multiple of GROUP.
    """

    embedding: TmOp
    head: TmOp
    num_logits: int


def add_embedding(ops: OpList, decoder: DecoderDescription, scheme: Scheme, dtype: str, lent: LentOps | None) -> TmOp:
    """Add the operation that looks tokens up. Its units are placed with the others, or are the head's."""
    if lent is not None:
        return ops.append(lent.embedding)
    config, weights = decoder.config, ops.weights
    learned = config.positions == "learned"
    positions = ops.keep("position_embedding.weight", in_float32=False) if learned else None
    width, size = decoder.head.inputs, decoder.head.outputs
    multiplier = float(torch.tensor(config.embedding_multiplier, dtype=getattr(torch, dtype)))
    sizes = {"inputs": width, "outputs": size}
    embed = ops.add(EMBED, positions=positions, scheme=LAYOUTS[dtype], scale=multiplier, **sizes)
    if positions is not None:
        embed.positions = positions + config.first_position * width * DTYPES[dtype]
    if config.num_types:
        embed.bias = ops.keep("type_embedding.weight")
    if config.embedding_norm == "plain":
        norm = decoder.embedding_norm
        assert norm is not None, "it was described"
        embed.weight, embed.eps, embed.centred = ops.factors("", norm), norm.eps, int(norm.kind == "layer")
    if not has_coded_embedding(config, scheme):
        embed.table = weights.keep_table(
            SmallTensor("embedding.weight", ops.shapes["embedding.weight"], in_float32=False)
        )
    elif not config.tie_embeddings:
        units = list(range(0, size, GROUP))
        ops.linears.append(Linear(embed, [(None, "embedding")], [size], GROUP, units, [], whole=False))
    return embed


def add_lent_head(ops: OpList, lent: LentOps) -> None:
    """Add the head of another model, or its first rows."""
    head = ops.append(TmOp.from_buffer_copy(lent.head))
    if lent.num_logits:
        head.outputs, head.num_units = lent.num_logits, lent.num_logits // GROUP
