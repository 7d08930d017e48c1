"""The share that each rank has of a layer's mixer in program eager, as data: its heads or channels, and the rows of
matrices and vectors, and the parts of the cache, that go with them.

Attention is divided by kv heads with their query heads, Kimi delta attention by heads, a delta net by heads of k with
their heads of v, a short convolution by channels. Mamba 2 is divided by groups with their heads; where there are fewer
groups than ranks, by the heads within a group, each of whose ranks has the B and C of the group.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, NamedTuple

from tokenmill.cache.spec import CacheSpec
from tokenmill.model.blocks import Projection
from tokenmill.model.description import DecoderDescription
from tokenmill.model.mixers import Mixer
from tokenmill.model.mixers.attention import AttentionBlock
from tokenmill.model.mixers.delta_net import DeltaNetBlock
from tokenmill.model.mixers.gated_attention import GatedAttentionBlock
from tokenmill.model.mixers.kda import KimiDeltaBlock
from tokenmill.model.mixers.latent import LatentBlock
from tokenmill.model.mixers.mamba2 import Mamba2Block
from tokenmill.model.mixers.short_conv import ShortConvBlock
from tokenmill.parallel.division import divide, part_rows, shifted, times

Rows = list[range]


class Cut(NamedTuple):
    """The part of a tensor of the cache, [slots, …], that a rank has: ranges of one of its dimensions."""

    dim: int
    ranges: Rows


@dataclass(frozen=True)
class MixerShare:
    """The share of one rank.

    block: the facts of a mixer that has the heads or channels of this rank alone. rows: of the matrices that are
    divided so, by role; all others are divided by tiles of rows. vectors: the rows of other parameters, by name. cuts:
    of the states that the layer keeps, or one for all its rows. joined: the module that takes the results of all ranks,
    empty where each rank has all results.
    """

    block: Mixer
    rows: Mapping[str, Rows] = field(default_factory=dict)
    vectors: Mapping[str, Rows] = field(default_factory=dict)
    cuts: Sequence[Cut] = ()
    joined: str = "out"

    @property
    def width(self) -> int:
        """Count the results of this rank for a token."""
        return self.block.matrices["out"].inputs

    @property
    def num_vectors(self) -> int:
        """Count the numbers in the rows of `vectors`."""
        return sum(_row_sizes(self.block)[name] * sum(map(len, rows)) for name, rows in self.vectors.items())


def _row_sizes(block: Mixer) -> dict[str, int]:
    """Count the numbers in a row of each parameter that is no matrix, by name."""
    of_norms = {f"{role}.{kind}": norm.size for role, norm in block.norms.items() for kind in ("weight", "bias")}
    return of_norms | {name: prod(shape[1:]) for name, shape in block.vectors.items()}


def _with_parts(matrix: Projection, parts: Iterable[Rows]) -> Projection:
    return replace(matrix, parts=tuple(sum(map(len, part)) for part in parts))


def _attention(block: AttentionBlock, rank: int, ranks: int) -> MixerShare:
    kv_heads = divide(block.num_kv_heads, ranks)[rank]
    heads = times(kv_heads, block.num_heads // block.num_kv_heads)
    q, k, v = times(heads, block.head_dim), times(kv_heads, block.head_dim), times(kv_heads, block.value_dim)
    gates = [q, shifted(q, block.out.inputs)] if block.gated else [q]  # before Q
    parts = [gates, [k], [v]][: len(block.qkv.parts)]  # without values that are keys, or rows of another layer
    own = replace(
        block,
        num_heads=len(heads),
        num_kv_heads=len(kv_heads),
        qkv=_with_parts(block.qkv, parts),
        out=replace(block.out, inputs=len(heads) * block.value_dim),
    )
    vectors = {name: [heads] for name in block.vectors}
    for (role, norm), of_role in zip(block.norms.items(), (heads, kv_heads), strict=False):
        kinds = {"weight": norm.weight, "bias": norm.bias}
        vectors |= {f"{role}.{kind}": [of_role] for kind, is_there in kinds.items() if is_there and norm.heads > 1}
    cuts = [Cut(1, [kv_heads])] if block.source is None else []
    return MixerShare(own, {"qkv": part_rows(block.qkv.parts, parts)}, vectors, cuts)


def _gated_attention(block: GatedAttentionBlock, rank: int, ranks: int) -> MixerShare:
    share = _attention(block, rank, ranks)
    kv_heads = divide(block.num_kv_heads, ranks)[rank]
    own = times(kv_heads, block.num_heads // block.num_kv_heads * block.gate_dim)
    of_heads: Any = share.block
    mine = replace(of_heads, gate=_with_parts(block.gate, [[own]]))
    return replace(share, block=mine, rows={**share.rows, "gate": [own]})


def _short_conv(block: ShortConvBlock, rank: int, ranks: int) -> MixerShare:
    own = divide(block.width, ranks)[rank]
    parts = [[own]] * len(block.inner.parts)
    inner, out = _with_parts(block.inner, parts), replace(block.out, inputs=len(own))
    rows = {"inner": part_rows(block.inner.parts, parts)}
    vectors = {name: [own] for name in block.vectors}
    return MixerShare(replace(block, inner=inner, out=out), rows, vectors, [Cut(2, [own])])


def _delta_net(block: DeltaNetBlock, rank: int, ranks: int) -> MixerShare:
    k_heads = divide(block.num_k_heads, ranks)[rank]
    v_heads = times(k_heads, block.num_v_heads // block.num_k_heads)
    keys, values = times(k_heads, block.key_dim), times(v_heads, block.value_dim)
    of_part = {"q": keys, "k": keys, "v": values, "z": values, "b": v_heads, "a": v_heads}
    merged = {role: matrix for role, matrix in block.matrices.items() if role != "out"}
    parts = {role: [[of_part[name]] for name in matrix.names or (role,)] for role, matrix in merged.items()}
    own: dict[str, Any] = {role: _with_parts(matrix, parts[role]) for role, matrix in merged.items()}
    own |= {"num_k_heads": len(k_heads), "num_v_heads": len(v_heads), "out": replace(block.out, inputs=len(values))}
    rows = {role: part_rows(matrix.parts, parts[role]) for role, matrix in merged.items()}
    channels = part_rows(block.qkvz.parts[:3], [[keys], [keys], [values]])
    vectors = {"conv": channels, "A_log": [v_heads], "dt_bias": [v_heads]}
    return MixerShare(replace(block, **own), rows, vectors, [Cut(2, channels), Cut(1, [v_heads])])


def _kda(block: KimiDeltaBlock, rank: int, ranks: int) -> MixerShare:
    heads = divide(block.num_heads, ranks)[rank]
    own = times(heads, block.head_dim)
    parts = {"qkv": [[own]] * 3, "beta": [[heads]], "forget_out": [[own]], "gate_out": [[own]]}
    rows = {role: part_rows(block.matrices[role].parts, each) for role, each in parts.items()}
    rows |= {role: [range(block.matrices[role].outputs)] for role in ("forget_in", "gate_in")}  # in every rank
    mine = replace(
        block,
        num_heads=len(heads),
        qkv=_with_parts(block.qkv, parts["qkv"]),
        beta=_with_parts(block.beta, parts["beta"]),
        forget=(block.forget[0], _with_parts(block.forget[1], parts["forget_out"])),
        gate=(block.gate[0], _with_parts(block.gate[1], parts["gate_out"])),
        out=replace(block.out, inputs=len(own)),
    )
    vectors = {"conv": rows["qkv"], "A_log": [heads], "dt_bias": [own]}
    return MixerShare(mine, rows, vectors, [Cut(2, rows["qkv"]), Cut(1, [heads])])


def _latent(block: LatentBlock, rank: int, ranks: int) -> MixerShare:
    """Every rank attends with all heads: torch's products with fewer heads, which share one row, would have other
    bits. What divides are the products before and after.
    """
    heads = {
        f"{role}.{head}": matrix
        for role, matrix in (("keys", block.key), ("values", block.value))
        for head in range(block.num_heads)
    }
    return MixerShare(
        block, {role: [range(matrix.outputs)] for role, matrix in heads.items()}, {}, [Cut(1, [range(1)])], joined=""
    )


def _mamba2(block: Mamba2Block, rank: int, ranks: int) -> MixerShare:
    groups, heads = _groups_and_heads(block, rank, ranks)
    x, shared = times(heads, block.head_dim), times(groups, block.state_dim)
    parts = [[x], [x], [shared], [shared], [heads]]
    own = replace(
        block,
        num_heads=len(heads),
        num_groups=len(groups),
        inner=_with_parts(block.inner, parts),
        out=replace(block.out, inputs=len(x)),
    )
    channels = part_rows(block.inner.parts[1:4], parts[1:4])
    vectors = {name: channels if name.startswith("conv") else [heads] for name in block.vectors}
    rows, cuts = {"inner": part_rows(block.inner.parts, parts)}, [Cut(2, channels), Cut(1, [heads])]
    return MixerShare(own, rows, vectors, cuts, joined="norm")  # whose groups may be several ranks'


def _groups_and_heads(block: Mamba2Block, rank: int, ranks: int) -> tuple[range, range]:
    of_group = block.num_heads // block.num_groups
    if ranks <= block.num_groups:
        groups = divide(block.num_groups, ranks)[rank]
        return groups, times(groups, of_group)
    group, part = divmod(rank, ranks // block.num_groups)
    return range(group, group + 1), shifted(divide(of_group, ranks // block.num_groups)[part], group * of_group)


def _absent(block: Mixer, rank: int, ranks: int) -> MixerShare:
    return MixerShare(block)


SHARES: dict[str, Callable[[Any, int, int], MixerShare]] = {
    "attention": _attention,
    "gated_attention": _gated_attention,
    "short_conv": _short_conv,
    "delta_net": _delta_net,
    "kda": _kda,
    "latent": _latent,
    "mamba2": _mamba2,
    "absent": _absent,
}


def share_of(block: Mixer, rank: int, ranks: int) -> MixerShare:
    """Find the share of a rank. The mixer must be one that `refuse_division` passes."""
    return SHARES[block.name](block, rank, ranks)


def refuse_division(block: Mixer, ranks: int) -> str | None:
    """Say why a mixer cannot be divided among so many ranks, or None."""
    if block.name not in SHARES:
        return f"does not divide {block.name} among ranks"
    what, of, count = "", "", ranks
    if isinstance(block, AttentionBlock):
        what, count = "kv head", block.num_kv_heads
    elif isinstance(block, KimiDeltaBlock):
        what, of, count = "head", " of each delta attention", block.num_heads
    elif isinstance(block, DeltaNetBlock):
        what, of, count = "k head", " of each delta net", block.num_k_heads
    elif isinstance(block, ShortConvBlock):
        what, of, count = "channel", " of each convolution", block.width
    elif isinstance(block, Mamba2Block):
        what, of, count, groups = "head", " of Mamba 2", block.num_heads, block.num_groups
        if groups < ranks <= count and ranks % groups:
            allowed = f"1 to {groups} ranks or a multiple of {groups}"
            return f"divides the {groups} groups of Mamba 2 among {allowed}, and tensor_parallel is {ranks}"
    if count >= ranks:
        return None
    there = f"{count} {what}{'s' * (count > 1)}{of}"
    return f"gives each rank a {what}{of}, and this model has {there} for tensor_parallel = {ranks}"


def cache_of_rank(spec: CacheSpec, decoder: DecoderDescription, rank: int, ranks: int) -> CacheSpec:
    """Describe the cache of one rank: as many slots, of its own heads or channels."""
    mixers = [mixer for layer in decoder.layers for mixer in layer.mixers]
    return replace(spec, layers=tuple(share_of(mixer, rank, ranks).block.keeps for mixer in mixers))
