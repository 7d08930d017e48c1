"""What a decoder computes, told once: its layers in order, the matrices and norms of each, and how they are joined.

`describe` makes the description from a ModelConfig. The eager modules are built from it, the native program makes a
list of operations of it, compiled code is shared by layers whose descriptions are equal, and the counts of parameters,
bytes and operations are sums over it. A program lists the departures that it can compute and refuses any other by name.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Generic, TypeVar

from tokenmill.kernels.attend import AttentionShape
from tokenmill.model.blocks import AttentionBlock, ExpertsBlock, MlpBlock, Norm, Projection
from tokenmill.model.config import ModelConfig, Rope

__all__ = ["Branch", "DecoderDescription", "LayerDescription", "describe"]


Block = TypeVar("Block", bound=AttentionBlock | MlpBlock | ExpertsBlock)


@dataclass(frozen=True)
class Branch(Generic[Block]):
    """One half of a layer: x + multiplier * after(block(before(x)))."""

    block: Block
    before: Norm | None
    after: Norm | None
    multiplier: float = 1.0


@dataclass(frozen=True)
class LayerDescription:
    """Attention, then the MLP of what attention left; where `parallel`, both read the input of the layer."""

    attention: Branch[AttentionBlock]
    mlp: Branch[MlpBlock | ExpertsBlock]
    parallel: bool

    @property
    def branches(self) -> tuple["Branch[AttentionBlock]", "Branch[MlpBlock | ExpertsBlock]"]:
        """Both, in order."""
        return self.attention, self.mlp


@dataclass(frozen=True)
class DecoderDescription:
    """Embed, all layers, norm, head. Logits are multiplied first and capped then.

    num_learned_positions: rows of the position embedding; 0 without one. tied: the head is the embedding.
    """

    vocab_size: int
    hidden_size: int
    embedding_multiplier: float
    num_learned_positions: int
    layers: tuple[LayerDescription, ...]
    norm: Norm
    head: Projection
    tied: bool
    logit_multiplier: float
    logit_softcap: float | None

    @cached_property
    def matrices(self) -> Counter[Projection]:
        """Every matrix that tokens are multiplied with, a tied head among them → how many there are of it."""
        found = Counter([self.head])
        for layer in self.layers:
            for branch in layer.branches:
                found.update(branch.block.matrices)
        return found

    @cached_property
    def ropes(self) -> tuple[Rope, ...]:
        """The different ropes of its layers, in the order of their first use."""
        return tuple(dict.fromkeys(block.rope for block in self.attentions if block.rope is not None))

    @property
    def attention_shapes(self) -> frozenset[AttentionShape]:
        """Every shape that some layer needs."""
        return frozenset(block.shape for block in self.attentions)

    @property
    def mlps(self) -> list[MlpBlock]:
        """Every different MLP, those of experts among them."""
        found: list[MlpBlock | None] = []
        for layer in self.layers:
            block = layer.mlp.block
            found += [block.expert, block.shared] if isinstance(block, ExpertsBlock) else [block]
        return [block for block in dict.fromkeys(found) if block is not None]

    @property
    def attentions(self) -> list[AttentionBlock]:
        """The attention of each layer."""
        return [layer.attention.block for layer in self.layers]

    @property
    def norms(self) -> list[Norm]:
        """Every norm but those of q and k."""
        branches = (branch for layer in self.layers for branch in layer.branches)
        return [norm for branch in branches for norm in (branch.before, branch.after) if norm is not None] + [self.norm]

    def num_read(self, num_tokens: int) -> int:
        """Parameters that a step of so many tokens reads: all but the embeddings and experts that nobody chose.

        A tied head is read. Of the embeddings a step reads a row for each token, which is not counted.
        """
        branches = (branch for layer in self.layers for branch in layer.branches)
        total = sum(branch.block.num_parameters for branch in branches)
        mixtures = (layer.mlp.block for layer in self.layers if isinstance(layer.mlp.block, ExpertsBlock))
        total -= sum(mixture.num_unread(num_tokens) for mixture in mixtures)
        return total + self.head.num_parameters + sum(norm.num_parameters for norm in self.norms)

    def refuse(self, able: Collection[str]) -> str | None:
        """Why a program that can compute the departures `able` cannot run this, or None."""
        missing = sorted(self.departures - set(able))
        return f"has no {missing[0]}" if missing else None

    @cached_property
    def departures(self) -> frozenset[str]:
        """What not every decoder has, by the names that refusals use."""
        branches = [branch for layer in self.layers for branch in layer.branches]
        attentions = self.attentions
        q_norms = [(block, block.q_norm) for block in attentions if block.q_norm is not None]
        mixtures = [layer.mlp.block for layer in self.layers if isinstance(layer.mlp.block, ExpertsBlock)]
        found = {
            "embedding multiplier": self.embedding_multiplier != 1.0,
            "residual multiplier": any(branch.multiplier != 1.0 for branch in branches),
            "logit multiplier": self.logit_multiplier != 1.0,
            "norm after attention or MLP": any(branch.after is not None for branch in branches),
            "attention or MLP without a norm before it": any(branch.before is None for branch in branches),
            "norm with unit offset": self.norm.unit_offset,
            "rope that differs from layer to layer": len({attention.rope for attention in attentions}) > 1,
            "norm over all heads of q and k": any(norm.size != block.head_dim for block, norm in q_norms),
            "LayerNorm of q and k": any(norm.kind == "layer" for _, norm in q_norms),
            "attention sinks": any(attention.shape.sinks for attention in attentions),
            "shared experts": any(mixture.shared is not None for mixture in mixtures),
            "sigmoid scores of experts": any(mixture.scores == "sigmoid" for mixture in mixtures),
            "bias on a router": any(mixture.router.bias for mixture in mixtures),
            "biases within a mixture of experts": any(m.bias for mixture in mixtures for m in mixture.expert.matrices),
        }
        return frozenset(name for name, there in found.items() if there)


@cache
def describe(config: ModelConfig) -> DecoderDescription:
    """The decoder that this config describes."""
    return DecoderDescription(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        embedding_multiplier=config.embedding_multiplier,
        num_learned_positions=config.max_position_embeddings if config.positions == "learned" else 0,
        layers=tuple(_layer(config, index) for index in range(config.num_layers)),
        norm=_norm(config, config.hidden_size),
        head=_matrix("head", config.hidden_size, config.vocab_size, config.head_bias and not config.tie_embeddings),
        tied=config.tie_embeddings,
        logit_multiplier=config.logit_multiplier,
        logit_softcap=config.logit_softcap,
    )


def _layer(config: ModelConfig, index: int) -> LayerDescription:
    norm, where = _norm(config, config.hidden_size), config.norm_placement
    around = (norm if where in ("before", "both") else None, norm if where in ("after", "both") else None)
    mlp = _experts(config) if config.num_experts else _mlp(config, config.intermediate_size)
    return LayerDescription(
        Branch(_attention(config, index), *around, config.residual_multiplier),
        Branch(mlp, *around, config.residual_multiplier),
        parallel=config.residual == "parallel",
    )


def _attention(config: ModelConfig, index: int) -> AttentionBlock:
    heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
    q, kv = heads * head_dim, kv_heads * head_dim
    sizes = {None: None, "head": (head_dim, head_dim), "all": (q, kv)}[config.qk_norm]
    return AttentionBlock(
        heads,
        kv_heads,
        head_dim,
        qkv=Projection("qkv", config.hidden_size, (("q", q), ("k", kv), ("v", kv)), config.qkv_bias),
        out=_matrix("out", q, config.hidden_size, config.o_bias),
        q_norm=None if sizes is None else _norm(config, sizes[0]),
        k_norm=None if sizes is None else _norm(config, sizes[1]),
        rope=config.ropes[index] if config.ropes else config.rope,
        shape=AttentionShape(config.scale, config.windows[index], config.attention_softcap, config.attention_sinks),
    )


def _mlp(config: ModelConfig, width: int) -> MlpBlock:
    parts = (("gate", width), ("up", width)) if config.gated_mlp else (("up", width),)
    return MlpBlock(
        Projection("up", config.hidden_size, parts, config.mlp_bias),
        _matrix("down", width, config.hidden_size, config.mlp_bias),
        config.activation,
    )


def _experts(config: ModelConfig) -> ExpertsBlock:
    shared = config.shared_expert_size
    return ExpertsBlock(
        router=_matrix("router", config.hidden_size, config.num_experts, config.router_bias),
        expert=_mlp(config, config.intermediate_size),
        num=config.num_experts,
        chosen=config.num_experts_per_token,
        normalise=config.norm_top_k,
        scores=config.router_scores,
        shared=_mlp(config, shared) if shared else None,
        shared_gate=_matrix("shared_gate", config.hidden_size, 1) if config.shared_expert_gate else None,
    )


def _norm(config: ModelConfig, size: int) -> Norm:
    bias = config.norm == "layer" and config.norm_bias
    return Norm(size, config.norm, config.norm_eps, bias, config.norm_unit_offset)


def _matrix(role: str, inputs: int, outputs: int, bias: bool = False) -> Projection:
    return Projection(role, inputs, ((role, outputs),), bias)
