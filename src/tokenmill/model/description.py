"""The description of a decoder, made from a ModelConfig: its layers in order, the matrices and norms of each, and how
they are joined; modules, programs and counts follow it.

`describe` makes the description. The eager modules are built from it, the native program makes a list of operations of
it, compiled code is shared by layers whose descriptions are equal, and the counts of parameters, bytes and operations
are sums over it. features.py names the departures from a plain decoder. layers.py says how each block is computed.
"""

from collections import Counter
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import count
from typing import Any

from tokenmill.cache.spec import LayerSpec
from tokenmill.kernels.attend import AttentionShape
from tokenmill.model.blocks import Norm, Projection, norm_of
from tokenmill.model.config import ModelConfig, Rope
from tokenmill.model.mixers import Mixer
from tokenmill.model.mixers.attention import AttentionBlock, attention_of
from tokenmill.registry import MLPS, lookup


@dataclass(frozen=True)
class MlpBlock:
    """down(act(gate(x)) * up(x)), with gate and up in one matrix; without a gate down(act(up(x))).

    swiglu: see ModelConfig.
    """

    up: Projection
    down: Projection
    activation: str
    gated: bool
    swiglu: tuple[float, float] | None = None

    name = "mlp"

    @property
    def act_parameters(self) -> tuple[str, ...]:
        """The learned numbers of the activation."""
        return ("alpha_p", "alpha_n") if self.activation == "xielu" else ()

    @property
    def matrices(self) -> Counter[Projection]:
        return Counter([self.up, self.down])

    @property
    def mlps(self) -> list["MlpBlock"]:
        return [self]

    @property
    def norms(self) -> dict[str, Norm]:
        return {}

    @property
    def vectors(self) -> dict[str, tuple[int, ...]]:
        return {f"act.{name}": (1,) for name in self.act_parameters}

    def roles(self) -> dict[str, Projection]:
        """Name its matrices by their roles."""
        return {"up": self.up, "down": self.down}


SHARED_ROWS, VALUES = "rows that layers share", "values that are normed or keys"
SEVERAL, DISTANCES, UNEQUAL = "several mixers", "a bias of scores by distance", "values of another width than keys"
BESIDE, PER_LAYER, SCALAR = "experts beside an MLP", "an input of each token for each layer", "a number behind a layer"
STREAMS, SPARSE = "several streams of each token", "gates of which the largest are kept"
BOTH_WAYS, NORMED_SUMS = "attention to later tokens", "norms of sums"
OF_DECODERS: tuple[str, ...] = (SEVERAL, SHARED_ROWS, VALUES, BESIDE, PER_LAYER, SCALAR, STREAMS, SPARSE, UNEQUAL)
RARITIES = (*OF_DECODERS, BOTH_WAYS, NORMED_SUMS, DISTANCES)


@dataclass(frozen=True)
class LayerDescription:
    """Two halves, each x + multiplier * after(block(before(x))): the mixer, attention or another, then the MLP. One of
    them may be missing. The outputs of several mixers are added up.

    parallel: both read the input of the layer; otherwise the MLP reads the mixer's sum. shared_norm: both read it
    through one norm. per_layer: adds what a token's input of this layer says, behind both. scalar: the output is
    multiplied by a number. norms_sums: `after` takes x + multiplier * block(before(x)). left_out: the roles of norms
    that this layer lacks.
    """

    mixers: tuple[Mixer, ...]
    mlp: Any
    before: Norm | None
    after: Norm | None
    multiplier: float
    parallel: bool
    shared_norm: bool = False
    per_layer: Any = None
    scalar: bool = False
    norms_sums: bool = False
    left_out: tuple[str, ...] = ()

    @property
    def mlps(self) -> list[MlpBlock]:
        """Its MLP, or the different ones of its mixture of experts."""
        return [] if self.mlp is None else list(self.mlp.mlps)

    @property
    def rarities(self) -> list[str]:
        """Name what few families have, and not every program computes."""
        blocks = [mixer for mixer in self.mixers if isinstance(mixer, AttentionBlock)]
        halves = [getattr(half, "rarity", None) for half in (self.mlp, self.per_layer)]
        there = {
            SEVERAL: len(self.mixers) > 1,
            SHARED_ROWS: any(block.source is not None for block in blocks),
            VALUES: any(block.value_norm is not None or block.value_is_key for block in blocks),
            UNEQUAL: any(block.value_dim != block.head_dim for block in blocks),
            SCALAR: self.scalar,
            BOTH_WAYS: any(block.shape.both_ways for block in blocks),
            NORMED_SUMS: self.norms_sums,
            DISTANCES: any(block.shape.distances for block in blocks),
        }
        return [rarity for rarity in RARITIES if there.get(rarity, rarity in halves)]

    @property
    def mixes(self) -> bool:
        """Tell whether the layer has a mixer."""
        return self.mixers[0].name != "absent"

    @property
    def rope(self) -> Rope | None:
        """The rope of its attention."""
        return next((mixer.rope for mixer in self.mixers if mixer.rope is not None), None)

    @property
    def norms(self) -> dict[str, Norm]:
        """Its norms without the mixers', by their roles, in the order in which they are computed."""
        found = {
            "attention_norm": self.before if self.mixes else None,
            "attention_after_norm": self.after if self.mixes else None,
            "mlp_norm": None if self.shared_norm or self.mlp is None or self.mlp.norms else self.before,
            "mlp_after_norm": None if self.mlp is None else self.after,
        }
        return {role: norm for role, norm in found.items() if norm is not None and role not in self.left_out}


@dataclass(frozen=True)
class DecoderDescription:
    """Embed, all layers, norm, head, if the model has one. Logits are multiplied and capped.

    mtp: what stands between the embedding and the only layer of a model that predicts further tokens.
    """

    config: ModelConfig
    layers: tuple[LayerDescription, ...]
    norm: Norm
    head: Projection
    per_layer: Any = None
    embedding_norm: Norm | None = None
    mtp: Any = None

    @cached_property
    def matrices(self) -> Counter[Projection]:
        """Every matrix that tokens are multiplied with, a tied head among them, and the number of such matrices."""
        found = Counter([self.head] if self.config.has_head else [])
        for layer in self.layers:
            found.update(matrix for mixer in layer.mixers for matrix in mixer.matrices.values())
            for half in (layer.mlp, layer.per_layer):
                found.update({} if half is None else half.matrices)
        for part in (self.per_layer, self.mtp):
            found.update({} if part is None else part.matrices)
        return found

    @cached_property
    def ropes(self) -> tuple[Rope, ...]:
        """The different ropes of its layers, in the order of their first use."""
        return tuple(dict.fromkeys(layer.rope for layer in self.layers if layer.rope is not None))

    @property
    def keeps(self) -> tuple[LayerSpec, ...]:
        """The rows or states that each mixer keeps in the cache, layer by layer: the layers of the cache."""
        return tuple(mixer.keeps for layer in self.layers for mixer in layer.mixers)

    @cached_property
    def kept_by(self) -> list[list[int]]:
        """The layer of the cache that each mixer of each layer reads: its own, or another layer's."""
        numbers = count()
        own = [[next(numbers) for _ in layer.mixers] for layer in self.layers]
        sources = [[getattr(mixer, "source", None) for mixer in layer.mixers] for layer in self.layers]
        return [
            [number if source is None else own[source][0] for number, source in zip(*of_layer, strict=True)]
            for of_layer in zip(own, sources, strict=True)
        ]

    @property
    def attention_shapes(self) -> frozenset[AttentionShape]:
        return frozenset(mixer.shape for layer in self.layers for mixer in layer.mixers if hasattr(mixer, "shape"))

    @property
    def attentions(self) -> list[AttentionBlock]:
        """The attention of every layer that has attention."""
        return [mixer for layer in self.layers for mixer in layer.mixers if isinstance(mixer, AttentionBlock)]


@cache
def describe(config: ModelConfig) -> DecoderDescription:
    norm = norm_of(config, config.hidden_size)
    dense = mlp_of(config, config.intermediate_size, config.mlp_bias)
    experts = lookup(MLPS, "experts", "mlp").of(config) if config.num_experts else dense
    has_experts = config.expert_layers or (True,) * config.num_layers
    parallel = config.residual == "parallel"
    layers = []
    for index in range(config.num_layers):
        given = config.mixers[index] if config.mixers else None
        mixers = [mixer or attention_of(config, index) for mixer in (given if isinstance(given, tuple) else [given])]
        mlp = None if config.mlp_layers and not config.mlp_layers[index] else experts if has_experts[index] else dense
        mlp = config.mlps[index] if config.mlps else mlp
        sides = config.norm_placement if isinstance(config.norm_placement, str) else config.norm_placement[index]
        of_sides = zip(("before", "after"), config.layer_norms or (norm, norm), strict=True)
        before, after = (each if sides in (side, "both") else None for side, each in of_sides)
        joined = (config.residual_multiplier, parallel, parallel and config.shared_norm)
        norms_sums = config.residual == "normed"
        lacks = {"mlp_after_norm": norms_sums and index == config.num_layers - 1}  # it is the last norm
        lacks["attention_norm"] = not (index or config.first_norm)
        left_out = tuple(role for role in lacks if lacks[role])
        more = config.per_layer and config.per_layer.block, config.layer_scalar, norms_sums
        layers.append(LayerDescription(tuple(mixers), mlp, before, after, *joined, *more, left_out=left_out))
    bias = config.head_bias and not config.tie_embeddings
    head = Projection("head", config.hidden_size, (config.vocab_size,), bias)
    plain = replace(norm, weight=False, bias=False)
    of_embedding = {"": None, "plain": plain, "own": norm}[config.embedding_norm]
    is_plain = config.mtp_layer is None and not config.given_width
    mtp = None if is_plain else lookup(MLPS, "mtp_input", "mlp").of(norm, config.given_width)
    return DecoderDescription(config, tuple(layers), norm, head, config.per_layer, of_embedding, mtp)


def mlp_of(config: ModelConfig, width: int, bias: bool, outer: int = 0) -> MlpBlock:
    """Describe an MLP. outer: the width of what it reads and writes; 0 for hidden_size."""
    role, parts = ("gate_up", (width, width)) if config.gated_mlp else ("up", (width,))
    outer, (gate, down) = outer or config.hidden_size, config.mlp_multipliers
    return MlpBlock(
        Projection(role, outer, parts, bias, multipliers=(gate, 1.0) if config.gated_mlp else ()),
        Projection("down", width, (outer,), bias, multipliers=(down,)),
        config.activation,
        config.gated_mlp,
        config.swiglu,
    )
