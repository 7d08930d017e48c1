"""StarCoder 2: LayerNorm and a plain MLP, rotary positions, and a window."""

from typing import Any

from tokenmill.model.config import ConfigReader
from tokenmill.model.families import Family
from tokenmill.model.families.llama import NAMES

_NAMES = {
    **{name: target for name, target in NAMES.items() if "norm" not in name and ".mlp." not in name},
    "layers.{i}.input_layernorm{p}": "layers.{i}.attention_norm{p}",
    "layers.{i}.post_attention_layernorm{p}": "layers.{i}.mlp_norm{p}",
    "layers.{i}.mlp.c_fc{p}": "layers.{i}.mlp.up{p}",
    "layers.{i}.mlp.c_proj{p}": "layers.{i}.mlp.down{p}",
    "norm{p}": "norm{p}",
}


def _starcoder2(reader: ConfigReader) -> dict[str, Any]:
    reader.expect("norm_type", "layer_norm")
    reader.expect("mlp_type", "default")
    return {
        "norm": "layer",
        "gated_mlp": False,
        "windows": (reader.window(),),
        **dict.fromkeys(("qkv_bias", "o_bias", "mlp_bias"), reader.flag("use_bias", True)),
    }


STARCODER2 = Family(
    _NAMES,
    _starcoder2,
    keys={"rms_norm_eps": "norm_epsilon"},
    defaults={
        "rms_norm_eps": 1e-5,
        "hidden_act": "gelu_pytorch_tanh",
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
    },
    harmless=("activation_function",),  # of the first conversions; hidden_act is what counts
)
