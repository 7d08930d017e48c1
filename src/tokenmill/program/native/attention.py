"""The operations of attention: the products of Q, K and V, head by head; what attends; the matrix that joins the heads.

Where norms take all heads as one row, or values are of another width than keys, the products are stored first. Gates
are stored, too, and multiply the results of the heads.
"""

from collections.abc import Iterable
from typing import Any

from tokenmill.cache.formats.layer import LayerKV
from tokenmill.model.mixers import Mixer
from tokenmill.model.mixers.attention import AttentionBlock
from tokenmill.model.mixers.gated_attention import GatedAttentionBlock
from tokenmill.model.parameters import join
from tokenmill.program.native.layouts import KV_FIELDS
from tokenmill.program.native.op_list import (
    ALL_HEADS,
    ATTEND,
    ATTENDED,
    ATTENTION_IN,
    EACH_HEAD,
    HEADS,
    OWN_HEAD,
    QKV,
    SIGMOID,
    SOFTPLUS,
    STORE,
    OpList,
)
from tokenmill.program.native.position_tables import PositionTables


def add_attention(
    ops: OpList, layer: int, block: AttentionBlock, layer_kv: LayerKV, tables: PositionTables, joins: dict[str, Any]
) -> None:
    """Add the operations of a layer. joins: the fields of the last linear."""
    shape, is_narrow = block.shape, block.value_dim != block.head_dim
    tensors = zip((KV_FIELDS[kind] for kind in layer_kv.kinds), layer_kv.tensors, strict=True)
    cache: dict[str, Any] = {name: tensor.data_ptr() for name, tensor in tensors}
    sizes: dict[str, Any] = {
        "heads": block.num_heads,
        "num_kv_heads": block.num_kv_heads,
        "head_dim": block.head_dim,
        "value_dim": block.value_dim,
        "gated": int(block.gated),
        "kv_parts": len(block.qkv.parts) - 1,
    }
    units: dict[str, Any] = {"unit": block.head_dim, "whole": True}
    heads = cache | sizes | tables.fields(block) | _head_norms(ops, layer, block)
    qkv, out = [(layer, f"{block.name}.qkv")], [(layer, f"{block.name}.out")]
    if is_narrow or heads.get("norm_scope") == ALL_HEADS:
        ops.linear(qkv, block.qkv, STORE, ATTENTION_IN, **({} if is_narrow else {**units, **sizes}))
        ops.add(HEADS, **heads)
    else:
        ops.linear(qkv, block.qkv, QKV, ATTENTION_IN, **units, **heads)
    facts: dict[str, Any] = {"scale": shape.scale, "softcap": shape.softcap or 0.0, "window": shape.window or 0}
    sinks = ops.keep(join(layer, f"{block.name}.sinks")) if shape.sinks else None
    facts |= {"both_ways": int(shape.both_ways), "distance_bias": tables.bias}
    if isinstance(block, GatedAttentionBlock):
        ops.linear([(layer, f"{block.name}.gate")], block.gate, STORE, ATTENTION_IN)
    ops.add(ATTEND, to=ATTENDED, sinks=sinks, **facts, **cache, **sizes | _gates(block))
    column = behind_gates([block]) if joins["epilogue"] == STORE else 0
    ops.linear(out, block.out, source=ATTENDED, column=column, **joins)


def behind_gates(mixers: Iterable[Mixer]) -> int:
    """Find the first stored column behind the gates of attention, which are read while its products are stored."""
    blocks = [mixer for mixer in mixers if isinstance(mixer, AttentionBlock)]
    return max((_gates(block).get("columns", 0) for block in blocks), default=0)


def _gates(block: AttentionBlock) -> dict[str, Any]:
    """Find how the results of the heads are multiplied by stored gates, if they are."""
    if isinstance(block, GatedAttentionBlock):
        activation = {"sigmoid": SIGMOID, "softplus": SOFTPLUS}[block.activation]
        return {"gated": 1, "activation": activation, "columns": block.gate.outputs}
    return {"activation": SIGMOID, "columns": block.out.inputs} if block.gated else {}


def _head_norms(ops: OpList, layer: int, block: AttentionBlock) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, norm in zip(("q_norm", "k_norm"), block.qk_norms, strict=False):
        path = join(layer, f"{block.name}.{name}")
        found[name], found["eps"], found["centred"] = ops.factors(path, norm), norm.eps, norm.kind == "layer"
        if norm.bias:
            found[f"{name}_bias"] = ops.keep(f"{path}.bias")
        own = OWN_HEAD if norm.heads > 1 else EACH_HEAD
        found["norm_scope"] = max(found.get("norm_scope", 0), own if block.norms_heads else ALL_HEADS)
    if block.value_norm is not None:
        found["v_norm"], found["eps"] = ops.factors("", block.value_norm), block.value_norm.eps
    return found | {"norms_after_rope": int(block.norms_after_rope)}
