"""The families Mamba 2, whose layers have no attention and no MLP, and Bamba; and the tensor names and config keys that
all families with Mamba 2 layers share.
"""

from collections.abc import Sequence
from math import inf
from typing import Any

from tokenmill.errors import CheckpointError
from tokenmill.model.config import MAX_LAYERS, ConfigReader, ModelConfig
from tokenmill.model.families import Family, sizes
from tokenmill.model.families.hybrids import kv_heads
from tokenmill.model.families.in_gguf import GGUFKeys, InGGUF, has_bias, like_llama, paired
from tokenmill.model.families.llama import NAMES
from tokenmill.model.families.mixers_of import mixer_of
from tokenmill.model.mixers.mamba2 import Mamba2Block, mamba2
from tokenmill.value_reader import MAX_POSITIONS, brief

MAMBA_DEFAULTS: dict[str, Any] = {
    "mamba_conv_bias": True,
    "mamba_d_conv": 4,
    "mamba_d_head": "auto",
    "mamba_d_state": 256,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_n_heads": 128,
    "mamba_proj_bias": False,
}
MAMBA_NULLS: dict[str, Any] = {"mamba_conv_bias": False, "mamba_proj_bias": False}
MAMBA_KEYS = (*MAMBA_DEFAULTS, "time_step_limit")
_NAMES = {
    "in_proj{p}": "inner{p}",
    "conv1d.weight": "conv | depthwise",
    "conv1d.bias": "conv_bias",
    "dt_bias": "dt_bias",
    "A_log": "A_log",
    "D": "D",
    "norm.weight": "norm.weight",
    "out_proj{p}": "out{p}",
}


def mamba_names(prefix: str) -> dict[str, str]:
    """Name the tensors of a Mamba 2 mixer, whose names begin with the prefix."""
    return {f"{prefix}{name}": f"layers.{{i}}.mamba2.{ours}" for name, ours in _NAMES.items()}


# llama.cpp's names, of Mamba 2 without biases in its matrices.
IN_GGUF = {
    f"blk.{{i}}.ssm_{name}": f"layers.{{i}}.mamba2.{target}"
    for name, target in {
        "in.weight": "inner.weight",
        "conv1d.weight": "conv",
        "conv1d.bias": "conv_bias",
        "dt.bias": "dt_bias",
        "a": "A_log | column log of minus",
        "d": "D | as a column",
        "norm.weight": "norm.weight | by groups",
        "out.weight": "out.weight",
    }.items()
}


def read_ssm(keys: GGUFKeys) -> dict[str, int]:
    """Read the numbers of Mamba 2, under their names in mamba2()."""
    heads, width = keys.count("ssm.time_step_rank"), keys.count("ssm.inner_size")
    if width % heads:
        raise keys.refuse("ssm.inner_size", width, f"a multiple of ssm.time_step_rank, {heads}")
    return {
        "num_heads": heads,
        "head_dim": width // heads,
        "num_groups": keys.count("ssm.group_count"),
        "state_dim": keys.count("ssm.state_size"),
        "num_taps": keys.count("ssm.conv_kernel"),
    }


def read_hybrid_ssm(keys: GGUFKeys) -> dict[str, Any]:
    """Read the Mamba 2 layers of Granite 4.0 and Bamba, under the names that read_mamba reads."""
    ssm = read_ssm(keys)
    keys.expect("ssm.inner_size", 2 * keys.count("embedding_length"))  # which llama.cpp requires
    return {
        "mamba_n_heads": ssm["num_heads"],
        "mamba_d_head": ssm["head_dim"],
        "mamba_n_groups": ssm["num_groups"],
        "mamba_d_state": ssm["state_dim"],
        "mamba_d_conv": ssm["num_taps"],
        "mamba_conv_bias": keys.has("ssm_conv1d.bias"),
    }


def ssm_metadata(block: Mamba2Block) -> dict[str, int]:
    """Make the keys of Mamba 2."""
    return {
        "ssm.time_step_rank": block.num_heads,
        "ssm.inner_size": block.width,
        "ssm.group_count": block.num_groups,
        "ssm.state_size": block.state_dim,
        "ssm.conv_kernel": block.num_taps,
    }


def read_mamba(reader: ConfigReader, width: int | None = None) -> Mamba2Block:
    """Read the Mamba 2 layers of Granite 4.0, Bamba and Falcon-H1. width: of the heads together; None for a multiple of
    the hidden size.
    """
    hidden, num_heads = reader.count("hidden_size"), reader.count("mamba_n_heads")
    told, given = "mamba_d_ssm", reader.take("mamba_d_head")
    if width is None:
        told, width = "mamba_expand * hidden_size", reader.count("mamba_expand") * hidden
    reader.read.add("mamba_expand")
    head_dim = width // num_heads if given == "auto" else reader.count("mamba_d_head")
    if head_dim * num_heads != width:
        raise CheckpointError(
            f"{reader.where}: {num_heads} Mamba heads of {brief(given)} are not as wide as {told}, {width}"
        )
    num_groups = reader.count("mamba_n_groups")
    if num_heads % num_groups:
        raise reader.refuse("mamba_n_groups", num_groups, f"a divisor of mamba_n_heads, {num_heads}")
    return mamba2(
        hidden,
        num_heads=num_heads,
        head_dim=head_dim,
        num_groups=num_groups,
        state_dim=reader.count("mamba_d_state"),
        num_taps=reader.count("mamba_d_conv", minimum=2),
        eps=reader.number("rms_norm_eps", maximum=1.0),
        bias=reader.flag("mamba_proj_bias"),
        conv_bias=reader.flag("mamba_conv_bias"),
        dt_limits=read_limits(reader, "time_step_limit"),
    )


def read_limits(reader: ConfigReader, key: str) -> tuple[float, float]:
    """Read the limits of a head's step; infinity where the key is absent, and as transformers 5 writes it."""
    given = reader.take(key, None)
    found = [0.0, inf] if given is None else [_limit(each) for each in given] if isinstance(given, list) else []
    if len(found) != 2 or None in found or not 0 <= found[0] < found[1]:
        raise reader.refuse(key, given, "two numbers, of which the first is at least 0 and the second above it")
    return found[0], found[1]


def _limit(value: Any) -> Any:
    if value == {"__float__": "Infinity"}:
        return inf
    return float(value) if type(value) in (int, float) else None


def _mamba2(reader: ConfigReader) -> dict[str, Any]:
    num_layers, hidden = reader.num_layers(), reader.count("hidden_size")
    block = mamba2(
        hidden,
        num_heads=reader.count("num_heads"),
        head_dim=reader.count("head_dim"),
        num_groups=reader.count("n_groups"),
        state_dim=reader.count("state_size"),
        num_taps=reader.count("conv_kernel", minimum=2),
        eps=reader.number("rms_norm_eps", maximum=1.0),
        bias=reader.flag("use_bias"),
        conv_bias=reader.flag("use_conv_bias"),
        dt_limits=read_limits(reader, "time_step_limit"),
    )
    if block.width != reader.count("expand") * hidden or block.num_heads % block.num_groups:
        raise CheckpointError(
            f"{reader.where}: num_heads {block.num_heads} must be a multiple of n_groups {block.num_groups}, and times "
            f"head_dim {block.head_dim} it must be expand * hidden_size"
        )
    return {
        "mixers": (block,) * num_layers,
        "mlp_layers": (False,) * num_layers,
        "intermediate_size": 1,
        "rope": None,
        "ropes": (None,) * num_layers,
    }


_NO_ATTENTION = (
    *("feed_forward_length", "attention.head_count", "attention.head_count_kv"),
    *("attention.key_length", "attention.value_length"),
)  # and no MLP


def _read_gguf(keys: GGUFKeys) -> dict[str, Any]:
    keys.read.update(key for key in keys.values if key.startswith(keys.name("rope.")))  # which no layer has
    for key in _NO_ATTENTION:
        keys.expect(key, 0)
    ssm, hidden, width = read_ssm(keys), keys.count("embedding_length"), keys.count("ssm.inner_size")
    if width % hidden:
        raise keys.refuse("ssm.inner_size", width, f"a multiple of embedding_length, {hidden}")
    return {
        "model_type": keys.family,
        "hidden_size": hidden,
        "num_hidden_layers": keys.count("block_count", maximum=MAX_LAYERS),
        "max_position_embeddings": keys.count("context_length", maximum=MAX_POSITIONS),
        "layer_norm_epsilon": keys.positive("attention.layer_norm_rms_epsilon"),
        "expand": width // hidden,
        "num_heads": ssm["num_heads"],
        "head_dim": ssm["head_dim"],
        "n_groups": ssm["num_groups"],
        "state_size": ssm["state_dim"],
        "conv_kernel": ssm["num_taps"],
        "use_conv_bias": keys.has("ssm_conv1d.bias"),
    }


def _metadata(model: ModelConfig) -> dict[str, Any]:
    return {**dict.fromkeys(_NO_ATTENTION, 0), **ssm_metadata(model.mixers[0])}  # all layers have the same mixer


def _bamba(reader: ConfigReader) -> dict[str, Any]:
    # Its class overwrites what a config says of the rotated part, and published files say it under another key.
    reader.values = {**reader.values, "partial_rotary_factor": 0.5}
    reader.expect("attn_rotary_emb", reader.head_dim() // 2)
    attends = reader.entries("attn_layer_indices", int, [])
    block = read_mamba(reader)
    mixers = tuple(None if layer in attends else block for layer in range(reader.num_layers()))
    return {**reader.attention_bias(), "mlp_bias": reader.flag("mlp_bias"), "mixers": mixers}


def read_bamba_gguf(keys: GGUFKeys, attends: Sequence[bool]) -> dict[str, Any]:
    """Read a file of Granite 4.0's architecture that rotates half of each head, which Bamba alone does. It has none of
    Granite's multipliers, nor experts.
    """
    config = like_llama(keys, rotates_all=False) | has_bias(keys) | has_bias(keys, "mlp_bias", "ffn_up.bias")
    keys.expect("rope.dimension_count", config["head_dim"], config["head_dim"] // 2)
    keys.expect("rope.scaling.finetuned", True)  # this architecture's switch of rotary positions
    for key in ("embedding_scale", "residual_scale", "logit_scale"):
        keys.expect(key, 1.0, 0.0)
    for key in ("attention.scale", "expert_count", "expert_used_count", "expert_shared_feed_forward_length"):
        keys.expect(key, 0)
    layers = [layer for layer, each in enumerate(attends) if each]
    return config | read_hybrid_ssm(keys) | {"model_type": "bamba", "attn_layer_indices": layers}


def _bamba_metadata(model: ModelConfig) -> dict[str, Any]:
    block = mixer_of(model, Mamba2Block)
    keys = {} if block is None else ssm_metadata(block)  # without, the keys are refused when they are read back
    return keys | kv_heads(model) | {"rope.scaling.finetuned": True}


_LAYER = "layers.{i}."
MAMBA2 = Family(
    {
        "embeddings.weight": "embedding.weight",
        _LAYER + "norm.weight": _LAYER + "attention_norm.weight",
        **mamba_names(_LAYER + "mixer."),
        "norm_f.weight": "norm.weight",
        "lm_head.weight": "head.weight",
    },
    _mamba2,
    keys={"rms_norm_eps": "layer_norm_epsilon"},
    defaults={
        # It lacks attention and an MLP: ones stand for their sizes. No position limits it; llama.cpp writes 2^20.
        **sizes(32768, 4096, 1, 64, 1, 1, head_dim=64, context=1 << 20),
        "conv_kernel": 4,
        "expand": 2,
        "n_groups": 8,
        "num_heads": 128,
        "rms_norm_eps": 1e-5,
        "state_size": 128,
        "use_bias": False,
        "use_conv_bias": True,
    },
    harmless=(
        *("residual_in_fp32", "time_step_rank", "time_step_min", "time_step_max", "time_step_floor", "chunk_size"),
        "rescale_prenorm_residual",
    ),
    expected={"hidden_act": "silu"},
    prefix="backbone.",
    gguf=InGGUF(
        "mamba2",
        {
            "token_embd.weight": "embedding.weight",
            "output_norm.weight": "norm.weight",
            "output.weight": "head.weight",
            "blk.{i}.attn_norm.weight": _LAYER + "attention_norm.weight",
            **IN_GGUF,
        },
        _read_gguf,
        _metadata,
        needs=("no state bias", "conv bias"),
    ),
)
_ELSEWHERE = ("norm.weight", "layers.{i}.post_attention_layernorm.weight")
BAMBA = Family(
    {
        **{name.replace(".mlp.", ".feed_forward."): target for name, target in NAMES.items() if name not in _ELSEWHERE},
        _LAYER + "pre_ff_layernorm.weight": _LAYER + "mlp_norm.weight",
        **mamba_names(_LAYER + "mamba."),
        "final_layernorm.weight": "norm.weight",
    },
    _bamba,
    defaults={
        **sizes(128000, 4096, 14336, 32, 32, 8, context=262144),
        **MAMBA_DEFAULTS,
        "attn_layer_indices": None,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-5,
    },
    nulls={"num_key_value_heads": None, **MAMBA_NULLS},
    harmless=("mamba_chunk_size", "num_logits_to_keep", "z_loss_coefficient"),
    gguf=InGGUF(
        "granitehybrid", {**paired(), **IN_GGUF}, metadata=_bamba_metadata, needs=("no state bias", "conv bias")
    ),
)
