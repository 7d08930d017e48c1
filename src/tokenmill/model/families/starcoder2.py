"""StarCoder 2: LayerNorm and a plain MLP, rotary positions, and a window."""

from typing import Any

from tokenmill.model.config import ConfigReader
from tokenmill.model.families import Family, sizes
from tokenmill.model.families.in_gguf import GGUFKeys, InGGUF, like_llama, plain_mlp, window_metadata
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
    return {
        "norm": "layer",
        "gated_mlp": False,
        "windows": (reader.window(),),
        **dict.fromkeys(("qkv_bias", "o_bias", "mlp_bias"), reader.flag("use_bias")),
    }


def _read_gguf(keys: GGUFKeys) -> dict[str, Any]:
    config = like_llama(keys, eps="norm_epsilon")
    window = keys.window()
    return config | {"hidden_act": "gelu_pytorch_tanh", "use_bias": keys.has("attn_q.bias"), "sliding_window": window}


STARCODER2 = Family(
    _NAMES,
    _starcoder2,
    keys={"rms_norm_eps": "norm_epsilon"},
    defaults={
        **sizes(49152, 3072, 12288, 30, 24, 2, context=4096),
        "eos_token_id": 50256,
        "hidden_act": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "use_bias": True,
    },
    expected={"norm_type": "layer_norm", "mlp_type": "default"},
    harmless=("activation_function",),  # of the first conversions; hidden_act counts
    gguf=InGGUF(
        "starcoder2", plain_mlp(), _read_gguf, lambda model: window_metadata(model.windows, 0), needs=("biases",)
    ),
)
