"""Attention as data: the projections, norms and rope of a layer, and the settings of its scores."""

from dataclasses import dataclass, replace

from tokenmill.cache.spec import LayerSpec, RowsSpec, StateSpec
from tokenmill.kernels.attend import AttentionShape
from tokenmill.model.blocks import Norm, Projection, norm_of
from tokenmill.model.config import ModelConfig, Rope


@dataclass(frozen=True)
class AttentionBlock:
    """Attention keeps a row of K and of V of each token.

    qk_norms: of Q and of K, or empty. A norm of head_dim entries norms each head by itself, a wider norm all heads
    together. norms_after_rope: they follow the rotation. temperature: see ModelConfig; a third number is an offset.
    gated: the output of each head is multiplied by the sigmoid of a gate; all gates stand before Q in qkv. value_norm,
    value_is_key: see ModelConfig. source: the layer whose rows it reads in the place of its own; qkv is then Q alone.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    qkv: Projection
    out: Projection
    qk_norms: tuple[Norm, ...]
    rope: Rope | None
    shape: AttentionShape
    norms_after_rope: bool = False
    temperature: tuple[float, int] | tuple[float, int, int] | None = None
    gated: bool = False
    value_norm: Norm | None = None
    value_is_key: bool = False
    source: int | None = None

    name = "attention"

    @property
    def keeps(self) -> LayerSpec:
        return self.rows if self.source is None else StateSpec((), ())

    @property
    def rows(self) -> RowsSpec:
        """The rows that it reads. A text that is computed whole reads all of them at once, whatever the window."""
        window = None if self.shape.both_ways else self.shape.window
        return RowsSpec(self.num_kv_heads, self.head_dim, window, value_dim=self.value_dim)

    @property
    def value_dim(self) -> int:
        """The width of a head's values, and of its results."""
        return self.out.inputs // self.num_heads

    @property
    def norms_heads(self) -> bool:
        """Tell whether the norms of Q and K take each head by itself."""
        return bool(self.qk_norms) and self.qk_norms[0].size == self.head_dim

    @property
    def matrices(self) -> dict[str, Projection]:
        return {"qkv": self.qkv, "out": self.out}

    @property
    def norms(self) -> dict[str, Norm]:
        return dict(zip(("q_norm", "k_norm"), self.qk_norms, strict=False))

    @property
    def vectors(self) -> dict[str, tuple[int, ...]]:
        return {"sinks": (self.num_heads,)} if self.shape.sinks else {}


def attention_of(config: ModelConfig, index: int) -> AttentionBlock:
    """Describe the attention of one layer."""
    head_dim = config.layer_head_dims[index] if config.layer_head_dims else config.head_dim
    num_kv_heads = config.layer_kv_heads[index] if config.layer_kv_heads else config.num_kv_heads
    q, kv = config.num_heads * head_dim, num_kv_heads * head_dim
    scale = head_dim**-0.5 if config.attention_scale is None else config.attention_scale
    source = config.kv_sources[index] if config.kv_sources else None
    is_key = bool(config.value_is_key) and config.value_is_key[index]
    norms_values = config.value_norm and source is None
    parts = (q * (1 + config.attention_gate), kv, kv)[: 1 if source is not None else 2 if is_key else 3]
    return AttentionBlock(
        config.num_heads,
        num_kv_heads,
        head_dim,
        qkv=Projection("qkv", config.hidden_size, parts, config.qkv_bias, ("q", "k", "v")[: len(parts)]),
        out=Projection("out", q, (config.hidden_size,), config.o_bias, multipliers=(config.attention_out_multiplier,)),
        qk_norms=_qk_norms(config, head_dim, num_kv_heads)[: 2 if source is None else 1],
        rope=config.ropes[index] if config.ropes else config.rope,
        shape=AttentionShape(
            *(scale, config.windows[index], config.attention_softcap, config.attention_sinks, config.both_ways),
            config.distance_bias is not None,
        ),
        norms_after_rope=config.qk_norm is not None and config.qk_norm.after_rope,
        temperature=config.attention_temperature,
        gated=config.attention_gate,
        value_norm=Norm(head_dim, config.norm, config.norm_eps, weight=False) if norms_values else None,
        value_is_key=is_key,
        source=source,
    )


def _qk_norms(config: ModelConfig, head_dim: int, num_kv_heads: int) -> tuple[Norm, ...]:
    facts = config.qk_norm
    if facts is None:
        return ()
    plain = replace(norm_of(config, head_dim), bias=facts.bias, weight=facts.weight)
    counts = (config.num_heads, num_kv_heads)
    if facts.over == "all":
        return tuple(replace(plain, size=count * head_dim) for count in counts)
    return tuple(replace(plain, heads=count if facts.over == "own" else 1) for count in counts)
