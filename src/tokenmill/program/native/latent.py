"""The operations of latent attention: all products of a token are stored beside each other, and the numbers of a head
that its own matrix multiplies are gathered head by head, as rows of experts are.
"""

from typing import Any

from tokenmill.cache.formats.layer import LayerKV
from tokenmill.model.blocks import Projection
from tokenmill.model.mixers.latent import LatentBlock
from tokenmill.model.parameters import join
from tokenmill.program.native.layouts import KV_FIELDS
from tokenmill.program.native.op_list import (
    ATTEND,
    ATTENDED,
    ATTENTION_IN,
    GATE,
    GATHERED,
    IDENTITY,
    LATENT,
    LATENT_ROWS,
    NORM,
    QUERY,
    STORE,
    TO_BUFFER,
    OpList,
)

NO_GATE = -1  # in the place of the column of gates


def add_latent(
    ops: OpList, layer: int, block: LatentBlock, layer_kv: LayerKV, positions: dict[str, Any], joins: dict[str, Any]
) -> None:
    """Add the operations of a layer. positions: the fields of its tables. joins: the fields of the last linear."""
    places = dict(zip(layer_kv.kinds, (tensor.data_ptr() for tensor in layer_kv.tensors), strict=True))
    cache: dict[str, Any] = {KV_FIELDS[kind]: place for kind, place in places.items()}
    cache |= {KV_FIELDS[f"v{kind[1:]}"]: place for kind, place in places.items()}
    heads: dict[str, Any] = {"experts": block.num_heads, "chosen": block.num_heads}
    sizes: dict[str, Any] = {"heads": block.num_heads, "num_kv_heads": 1}
    sizes |= dict.fromkeys(("head_dim", "value_dim"), block.row_dim)

    def of_heads(role: str, matrix: Projection, epilogue: int, **fields: Any) -> None:
        matrices = [(layer, f"latent.{role}.{head}") for head in range(block.num_heads)]
        ops.linear(matrices, matrix, epilogue, GATHERED, by_head=1, **heads, **fields)

    ops.linear([(layer, "latent.down")], block.down, STORE, ATTENTION_IN)
    query, key = 0, block.down.parts[0]
    if block.q_up is not None:
        assert block.q_norm is not None, "what has two matrices has a norm between them"
        query, path = block.down.outputs, join(layer, "latent.q_norm")
        norm = {"weight": ops.factors(path, block.q_norm), "eps": block.q_norm.eps}
        ops.add(NORM, to=LATENT, epilogue=TO_BUFFER, outputs=block.q_norm.size, **norm)
        ops.linear([(layer, "latent.q_up")], block.q_up, STORE, LATENT, column=query)
    norm = {"weight": ops.factors(join(layer, "latent.kv_norm"), block.kv_norm), "eps": block.kv_norm.eps}
    parts = {"block": block.rope_dim, "columns": block.plain_dim, "query": query, "key": key, "by_head": 1}
    ops.add(LATENT_ROWS, to=GATHERED, **heads, **sizes, **parts, **norm, **cache, **positions)
    of_heads("keys", block.key, QUERY, head_dim=block.row_dim, heads=block.num_heads)
    shape = block.shape
    facts = {"scale": shape.scale, "softcap": shape.softcap or 0.0, "window": shape.window or 0}
    ops.add(ATTEND, to=GATHERED, by_head=block.latent_dim, **facts, **heads, **cache, **sizes)
    of_heads("values", block.value, STORE)
    ops.add(GATE, to=ATTENDED, gate=NO_GATE, outputs=block.out.inputs, activation=IDENTITY)
    ops.linear([(layer, "latent.out")], block.out, source=ATTENDED, **joins)
