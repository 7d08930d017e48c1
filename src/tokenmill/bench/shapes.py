"""Well-known architectures by name, to be measured with random weights and no files.

Speed does not depend on the values of the weights, memory neither; the text is noise. Each entry is what the model's
own config.json says, in Hugging Face's words.
"""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tokenmill.errors import ConfigError
from tokenmill.model.families import find_family, read_config
from tokenmill.settings.recommended import NOTHING, Recommended
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.weights.checkpoint import Checkpoint
from tokenmill.weights.names import expected_tensors

SHAPES: dict[str, dict[str, Any]] = {}
BLOCK = 1 << 20  # random numbers; every matrix is a part of them


def _llama(
    hidden: int, layers: int, heads: int, kv_heads: int, wide: int, vocabulary: int, context: int, **more: Any
) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": wide,
        "vocab_size": vocabulary,
        "max_position_embeddings": context,
        "torch_dtype": "bfloat16",
        **more,
    }


_ROPE_3 = {
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
_QWEN_3_5 = {
    "model_type": "qwen3_5_text",
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
}
_GEMMA_4: dict[str, Any] = {"model_type": "gemma4_text", "hidden_activation": "gelu_pytorch_tanh"}
_GEMMA_4 |= {"final_logit_softcapping": 30.0}
_ATTENDS = "full_attention"
_ROPE_32 = {**_ROPE_3, "rope_scaling": {**_ROPE_3["rope_scaling"], "factor": 32.0}}  # type: ignore[dict-item]

SHAPES |= {
    "smollm2-135m": _llama(576, 30, 9, 3, 1536, 49152, 8192, rope_theta=100000.0, tie_word_embeddings=True),
    "smollm2-360m": _llama(960, 32, 15, 5, 2560, 49152, 8192, rope_theta=100000.0, tie_word_embeddings=True),
    "smollm2-1.7b": _llama(2048, 24, 32, 32, 8192, 49152, 8192, rope_theta=130000.0, tie_word_embeddings=True),
    "tinyllama-1.1b": _llama(2048, 22, 32, 4, 5632, 32000, 2048),
    "llama-1b": _llama(2048, 16, 32, 8, 8192, 128256, 131072, **_ROPE_32, tie_word_embeddings=True),
    "llama-3b": _llama(3072, 28, 24, 8, 8192, 128256, 131072, **_ROPE_32, tie_word_embeddings=True),
    "llama-7b": _llama(4096, 32, 32, 32, 11008, 32000, 4096),
    "llama-8b": _llama(4096, 32, 32, 8, 14336, 128256, 131072, **_ROPE_3),
    "mistral-7b": _llama(4096, 32, 32, 8, 14336, 32000, 32768, rope_theta=1e6),
    "qwen2.5-0.5b": {
        **_llama(896, 24, 14, 2, 4864, 151936, 32768, rope_theta=1e6, tie_word_embeddings=True),
        "model_type": "qwen2",
    },
    "qwen3-0.6b": {
        **_llama(1024, 28, 16, 8, 3072, 151936, 40960, rope_theta=1e6, tie_word_embeddings=True, head_dim=128),
        "model_type": "qwen3",
    },
    "qwen3-4b": {
        **_llama(2560, 36, 32, 8, 9728, 151936, 40960, rope_theta=1e6, tie_word_embeddings=True, head_dim=128),
        "model_type": "qwen3",
    },
    "qwen3.5-4b": {
        **_llama(2560, 32, 16, 4, 9216, 248320, 262144, tie_word_embeddings=True, head_dim=256),
        **_QWEN_3_5,
    },
    "qwen3.6-35b-a3b": {
        **_QWEN_3_5,
        "model_type": "qwen3_5_moe_text",
        "hidden_size": 2048,
        "num_hidden_layers": 40,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "max_position_embeddings": 262144,
        "torch_dtype": "bfloat16",
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    },
    "lfm2-1.2b": {
        **_llama(2048, 16, 32, 8, 12288, 65536, 128000, tie_word_embeddings=True),
        "model_type": "lfm2",
        "layer_types": [_ATTENDS if layer in (2, 5, 8, 10, 12, 14) else "conv" for layer in range(16)],
        "conv_L_cache": 3,
    },
    "gemma-4-e4b": {
        **_llama(2560, 42, 8, 2, 10240, 262144, 131072, tie_word_embeddings=True, head_dim=256, **_GEMMA_4),
        "sliding_window": 512,
        "num_kv_shared_layers": 18,
    },
    "gemma-4-26b-a4b": {
        **_llama(2816, 30, 16, 8, 2112, 262144, 262144, tie_word_embeddings=True, head_dim=256, **_GEMMA_4),
        "attention_k_eq_v": True,
        "enable_moe_block": True,
        "hidden_size_per_layer_input": 0,
        "moe_intermediate_size": 704,
        "num_experts": 128,
        "num_global_key_value_heads": 2,
        "num_kv_shared_layers": 0,
        "sliding_window": 1024,
        "top_k_experts": 8,
    },
    "glm-4.7-flash": {
        **_llama(2048, 47, 20, 20, 10240, 154880, 202752, rope_theta=1e6),
        "model_type": "glm4_moe_lite",
        "q_lora_rank": 768,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 192,
        "qk_rope_head_dim": 64,
        "v_head_dim": 256,
        "moe_intermediate_size": 1536,
        "n_routed_experts": 64,
        "n_shared_experts": 1,
        "num_experts_per_tok": 4,
        "routed_scaling_factor": 1.8,
    },
    "mixtral-8x7b": {
        **_llama(4096, 32, 32, 8, 14336, 32000, 32768, rope_theta=1e6),
        "model_type": "mixtral",
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "qwen3-30b-a3b": {
        **_llama(2048, 48, 32, 4, 6144, 151936, 40960, rope_theta=1e6, head_dim=128),
        "model_type": "qwen3_moe",
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
    },
    "pythia-160m": {
        "model_type": "gpt_neox",
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "vocab_size": 50304,
        "max_position_embeddings": 2048,
        "rotary_pct": 0.25,
        "torch_dtype": "float16",
    },
    "gpt2": {
        "model_type": "gpt2",
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "n_positions": 1024,
        "vocab_size": 50257,
        "torch_dtype": "float32",
    },
    "santacoder-1.1b": {
        "model_type": "gpt_bigcode",
        "n_embd": 2048,
        "n_layer": 24,
        "n_head": 16,
        "n_inner": 8192,
        "n_positions": 2048,
        "vocab_size": 49280,
        "multi_query": True,
        "activation_function": "gelu_pytorch_tanh",
        "torch_dtype": "float32",
    },
}


class Shape(Checkpoint):
    """A Checkpoint without files: a config, random tensors and no tokenizer. more: keys of the config that change."""

    num_bytes = 0

    def __init__(self, name: str, **more: Any) -> None:
        self.path = Path(f"shape-{name}")
        self.config = {"eos_token_id": None, **SHAPES[name], **more}  # no token of a random text ends it
        expected = expected_tensors(find_family(self.config), read_config(self.config))
        self.shapes = {tensor: shape for tensor, (_, shape) in expected.items()}

    def read(self, name: str, dtype: torch.dtype | None = None, rows: range | None = None) -> Tensor:
        """Read random numbers: rows of a matrix overlap in one block, so that no time goes to making them. Norms and
        biases are ones, so that activations stay in range.
        """
        size, *inputs = self.shapes[name]
        if not inputs:
            return torch.ones(size)
        found = _noise().as_strided((size, *inputs), (max((BLOCK - inputs[0]) // size, 1), 1))
        return found if rows is None else found[rows.start : rows.stop]

    def tokenizer(self) -> Tokenizer | None:
        """Return None: prompts are token ids."""
        return None

    def generation_defaults(self) -> Recommended:
        """Return nothing: a shape recommends no settings."""
        return NOTHING


@cache
def _noise() -> Tensor:
    return torch.randn(BLOCK, generator=torch.Generator().manual_seed(0)) * 0.02


def find_shape(text: str) -> Shape:
    """Find the shape of that name, or as many of its layers as follow a colon; ConfigError with the names without."""
    name, colon, layers = text.partition(":")
    if name not in SHAPES:
        raise ConfigError("--shape", text, f"use one of {', '.join(SHAPES)}")
    if not colon:
        return Shape(name)
    if not layers.isdecimal() or not int(layers):
        raise ConfigError("--shape", text, f"a positive number of layers behind the colon, as {name}:4")
    given, count = SHAPES[name], int(layers)
    types = {"layer_types": given["layer_types"][:count]} if "layer_types" in given else {}
    return Shape(name, **{"n_layer" if "n_layer" in given else "num_hidden_layers": count}, **types)
