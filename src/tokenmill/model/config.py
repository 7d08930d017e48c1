"""ModelConfig, the facts of a decoder as data, and the strict reader of config.json.

A family file makes one ModelConfig of a checkpoint's config.json; everything after that (decoder, cache, planner)
reads only this. Families differ in these fields, not in code. Reading is strict: a key that changes the arithmetic
and is not understood is an error, never ignored.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tokenmill.errors import CheckpointError
from tokenmill.registry import CODES, REFUSED_CODES
from tokenmill.settings.engine_config import DTYPES
from tokenmill.value_reader import MAX_POSITIONS, ValueReader, brief

MAX_LAYERS = 1 << 11


@dataclass(frozen=True)
class Rope:
    """Rotary positions. dim: the number of a head's entries that are rotated (head_dim, or fewer)."""

    dim: int
    theta: float
    kind: str = "default"  # a key of model/rope.py's SCALES
    scaling: tuple[tuple[str, Any], ...] = ()  # that kind's own numbers, e.g. (("factor", 8.0), …)

    @property
    def text(self) -> str:
        """Every field, as saved files hold it. Not `repr`: a dataclass's, once interrupted, is "..." for ever."""
        return f"Rope(dim={self.dim!r}, theta={self.theta!r}, kind={self.kind!r}, scaling={self.scaling!r})"

    @property
    def most_short(self) -> int | None:
        """The most positions for which a "longrope" has its divisors for short texts; None for other kinds."""
        most: int | None = dict(self.scaling)["original_max_position_embeddings"] if self.kind == "longrope" else None
        return most

    def is_long(self, num_positions: int) -> bool:
        """Tell whether a "longrope" has its divisors for long texts where texts may have so many positions."""
        return self.most_short is not None and num_positions > self.most_short


@dataclass(frozen=True)
class QKNorm:
    """Norms of queries and keys, of the same kind as the model's other norms.

    over: "head" for each head by itself, "all" for all heads of a token as one row, "own" for each head by itself with
    weights of its own.
    """

    over: str = "head"
    weight: bool = True
    bias: bool = False
    after_rope: bool = False


@dataclass(frozen=True)
class ModelConfig:
    """The shape and the arithmetic of one model.

    layer_kv_heads, layer_head_dims: of each layer, where they differ; empty where all have num_kv_heads and head_dim.
    mixers: the mixer of each layer, None for attention, or several that read the same input; or empty. mlps: the second
    half of each layer; empty where the fields below say it. value_norm: values are normed, without a weight.
    value_is_key: whether the values of a layer are its keys before norm and rope; empty for none. kv_sources: the layer
    whose rows a layer reads, None for its own; or empty. layer_scalar: the output of a layer is multiplied by its own
    number. per_layer: what each layer has of each token beside its input, if anything; see per_layer.py. num_mtp:
    layers in the files that predict further tokens. has_head: they have a head. mtp_layer: the number in its model of
    the only layer, if that is such a layer; given_width: of the rows that an assistant is given. windows: past tokens
    that a query sees, itself included, None for all; for each layer, or one for all layers. both_ways: it sees as many
    later ones too, as in an encoder. distance_bias: see distance_bias.py. positions: "rope" or "learned"; the row of
    the first position is first_position, in a table that has so many rows more. num_types: rows of a table of token
    types; a token of type t has the id t * vocab_size + id. 0 without. ropes: per layer, where they differ; then `rope`
    tells the context. norm: "rms" or "layer". norm_placement: "before", "after" or "both" sides of attention and of the
    MLP, in all layers or for each. norm_rounds_last: in the model's dtype the norm is rounded after its weight, not
    before. layer_norms: the norms before and after attention and MLP, where they differ from the last norm. first_norm:
    whether the first layer has the norm before attention. embedding_norm: "plain": embeddings are normed without a
    weight, before they are multiplied; "own": by a norm like others, behind positions and types; "" for no norm.
    attention_gate: a matrix whose sigmoid multiplies the output of attention. residual: "serial", or "parallel" where
    attention and MLP read the same input (GPT-NeoX), or "normed" where norms take the sums of what a half reads and
    writes, and the last layer's second one is the last norm (BERT). shared_norm: they read it through one norm.
    attention_out_multiplier, mlp_multipliers: of the output of attention; of the gate of an MLP and of its output.
    attention_temperature: (beta, length): queries are multiplied by 1 + beta * ln(1 + floor(position / length)).
    swiglu: (alpha, limit): the MLP is (clamped up + 1) * gate * sigmoid(alpha * gate), with gate <= limit. mlp_layers:
    which layers have an MLP or experts; empty for all. expert_layers: which of them have experts; empty for all.
    expert_size: the width of an expert, 0 for intermediate_size. expert_latent_size: experts read and write rows of
    this width, with a matrix before them and one after them; 0 without. norm_top_k_eps: is added to the sum by which
    the scores of the chosen experts are divided. router_scores: "softmax" or "sigmoid". router_correction: a number for
    each expert is added to its score where experts are chosen, and only there. router_groups: (number, chosen, best):
    experts are chosen within the groups whose best few have the largest sums. router_scale: the weights of the chosen
    experts are multiplied by it. shared_expert_size: the width of an expert that every token takes; 0 without such an
    expert.
    """

    family: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    max_position_embeddings: int
    norm: str = "rms"
    norm_eps: float = 1e-5
    norm_bias: bool = True  # of "layer" only
    norm_weight: bool = True
    norm_unit_offset: bool = False  # multiply by 1 + weight
    norm_rounds_last: bool = False
    norm_placement: str | tuple[str, ...] = "before"
    layer_norms: tuple[Any, Any] | None = None
    first_norm: bool = True
    embedding_norm: str = ""
    activation: str = "silu"
    gated_mlp: bool = True
    swiglu: tuple[float, float] | None = None
    both_ways: bool = False
    distance_bias: Any = None
    positions: str = "rope"
    first_position: int = 0
    num_types: int = 0
    rope: Rope | None = None
    ropes: tuple[Rope | None, ...] = ()
    residual: str = "serial"
    shared_norm: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    router_bias: bool = False
    qk_norm: QKNorm | None = None
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logit_multiplier: float = 1.0
    attention_out_multiplier: float = 1.0
    mlp_multipliers: tuple[float, float] = (1.0, 1.0)
    attention_scale: float | None = None  # None: head_dim ** -0.5
    attention_softcap: float | None = None
    attention_gate: bool = False
    attention_sinks: bool = False
    attention_temperature: tuple[float, int] | None = None
    logit_softcap: float | None = None
    windows: tuple[int | None, ...] = (None,)
    layer_kv_heads: tuple[int, ...] = ()
    layer_head_dims: tuple[int, ...] = ()
    mixers: tuple[Any, ...] = ()
    mlps: tuple[Any, ...] = ()
    value_norm: bool = False
    value_is_key: tuple[bool, ...] = ()
    kv_sources: tuple[int | None, ...] = ()
    layer_scalar: bool = False
    per_layer: Any = None
    num_mtp: int = 0
    has_head: bool = True
    mtp_layer: int | None = None
    given_width: int = 0
    num_experts: int = 0
    num_experts_per_token: int = 0
    expert_layers: tuple[bool, ...] = ()
    mlp_layers: tuple[bool, ...] = ()
    expert_size: int = 0
    expert_latent_size: int = 0
    expert_bias: bool = False
    norm_top_k: bool = True
    norm_top_k_eps: float = 0.0
    router_scores: str = "softmax"
    router_correction: bool = False
    router_groups: tuple[int, int, int] | None = None
    router_scale: float = 1.0
    shared_expert_size: int = 0
    shared_expert_gate: bool = False
    tie_embeddings: bool = False
    eos_token_ids: tuple[int, ...] = ()
    dtype: str = "float32"  # of the checkpoint, for dtype="auto"
    codes: bool = False  # whether the checkpoint's matrices are stored as integer codes
    embedding_bits: float = 0.0  # per number of the embedding, if the checkpoint has it as codes that are never rounded
    code_bits: float = 0.0  # per number of them, with scales, on average, where that is known
    compact_bits: float = 0.0  # the same with plain matrices among them, as quant.quantized.CompactLinear has them

    def __post_init__(self) -> None:
        for num_kv_heads in (self.num_kv_heads, *self.layer_kv_heads):
            if self.num_heads % num_kv_heads:
                raise CheckpointError(f"num_heads {self.num_heads} is no multiple of num_kv_heads {num_kv_heads}")
        if len(self.windows) == 1:
            object.__setattr__(self, "windows", self.windows * self.num_layers)
        if (chosen := self.num_experts_per_token) > self.num_experts:
            raise CheckpointError(f"config asks for {chosen} experts per token of {self.num_experts}")
        if self.router_groups is not None:
            self._check_groups(*self.router_groups[:2])

    def _check_groups(self, number: int, chosen: int) -> None:
        if (
            self.num_experts % number
            or chosen > number
            or self.num_experts // number * chosen < self.num_experts_per_token
        ):
            raise CheckpointError(
                f"config asks for {self.num_experts_per_token} experts of {chosen} among {number} groups of "
                f"{self.num_experts} experts"
            )

    @property
    def context(self) -> int:
        """The longest sequence for which the model is made; three kinds of rope stretch the length of its training.

        YaRN: its original length times its factor (https://huggingface.co/Qwen/Qwen2.5-7B-Instruct), unless
        max_position_embeddings names the stretched length.
        """
        trained = self.max_position_embeddings
        kind, numbers = ("", {}) if self.rope is None else (self.rope.kind, dict(self.rope.scaling))
        if kind == "yarn":
            return max(trained, int(numbers["original_max_position_embeddings"] * numbers.get("factor", 1)))
        return int(trained * numbers["factor"]) if kind in ("linear", "dynamic") else trained


class ConfigReader(ValueReader):
    """Reads a config.json key by key.

    keys: Llama's name of a key → the family's own. defaults: by Llama's names, the values of keys that are absent.
    nulls: the values of keys that are null, where null is allowed beside another default. A key whose value there is
    None has the default that its reader names, which is computed from other keys.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        keys: Mapping[str, str],
        defaults: Mapping[str, Any],
        nulls: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        super().__init__(config, "config.json", CheckpointError)
        self._keys, self.defaults, self._nulls = keys, defaults, nulls
        self.family = self.text("model_type")
        self.where = f"config.json of this {self.family} model"
        self.read.add("quantization_config")
        quant_method(config)  # refuses unknown methods

    def name(self, key: str) -> str:
        return self._keys.get(key, key)

    def take(self, key: str, default: Any = ...) -> Any:
        """See ValueReader. CheckpointError for a null where the family's class has no meaning for it."""
        meaning, name = self.defaults.get(key), self.name(key)
        if name in self.values and self.values[name] is None:
            if meaning is not None and key not in self._nulls:
                raise self.refuse(key, None, f"a value is needed; where the key is left out, it is {brief(meaning)}")
            meaning = self._nulls.get(key)
        return super().take(key, default if meaning is None else meaning)

    def given(self, key: str) -> bool:
        """Tell whether the config has a value for this key, so that it is not the default."""
        return self.values.get(self.name(key)) is not None

    def head_dim(self) -> int:
        return self.count("head_dim", None) or self.split_hidden()

    def split_hidden(self) -> int:
        """Divide the hidden size by the heads, the width of a head where no key gives it. CheckpointError for a
        rest.
        """
        hidden, heads = self.count("hidden_size"), self.count("num_attention_heads")
        if hidden % heads:
            raise CheckpointError(f"{self.where}: {heads} heads do not divide a hidden size of {hidden}")
        return hidden // heads

    def attention_bias(self) -> dict[str, Any]:
        """Read whether the matrices of attention have biases, all of them or none."""
        return dict.fromkeys(("qkv_bias", "o_bias"), self.flag("attention_bias"))

    def num_layers(self) -> int:
        return self.count("num_hidden_layers", maximum=MAX_LAYERS)

    def context(self) -> int:
        return self.count("max_position_embeddings", maximum=MAX_POSITIONS)

    def window(self) -> int | None:
        """Read how many past tokens a query sees in layers with a window; None without."""
        return self.count("sliding_window", None, maximum=MAX_POSITIONS)

    def layer_types(self, default: Sequence[str], *known: str) -> list[str]:
        """Read `layer_types`, one of the `known` kinds for each layer; `default` where the key is absent."""
        types = self.entries("layer_types", str, list(default))
        num_layers = self.num_layers()
        if not set(types) <= set(known) or len(types) != num_layers:
            raise self.refuse("layer_types", types, f"{num_layers} of {', '.join(known)}")
        return types

    def windows(self, window: int | None, slides: Iterable[bool]) -> tuple[int | None, ...]:
        """Read the window of each layer, None for layers that attend to all tokens.

        slides: whether each layer has a window where the config has no `layer_types`.
        """
        full, sliding = "full_attention", "sliding_attention"
        types = self.layer_types([sliding if each else full for each in slides], full, sliding)
        return tuple(window if kind == sliding else None for kind in types)

    def dtype(self) -> str:
        older = self.text("torch_dtype", "float32")
        value = self.text("dtype", older).removeprefix("torch.")
        if value not in DTYPES:
            raise CheckpointError(f"{self.where}: dtype {brief(value)} is not implemented: only {', '.join(DTYPES)}")
        return value


def quant_method(config: Mapping[str, Any]) -> str | None:
    """Read the method that made the codes of a quantised directory, None for plain numbers; CheckpointError for an
    unknown method.
    """
    settings = config.get("quantization_config")
    if settings is None:
        return None
    reader = ValueReader(settings, "config.json: quantization_config", CheckpointError)
    method = reader.take("quant_method", None)
    if isinstance(method, str) and method in REFUSED_CODES:
        raise CheckpointError(
            f"config.json: quant_method {brief(method)} ({REFUSED_CODES[method]}) is not implemented: give the model "
            "that it was made of, or an export of that as GGUF, GPTQ or AWQ"
        )
    if not isinstance(method, str) or method not in CODES:
        known = ", ".join(CODES)
        raise CheckpointError(f"config.json: quant_method {brief(method)} is not implemented: only {known}")
    return method
