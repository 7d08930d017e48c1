"""Tiny random models, one per family, written by transformers: 2 layers, prime vocabulary, float32, seeded.

`save` gives a directory in Hugging Face layout; `reference` the transformers model that wrote it. The weights are drawn
wider than transformers' default, so that logits differ clearly and a greedy token never hangs on a rounding error.
"""

from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers

VOCABULARY = 211
CONTEXT = 128

_SHARED = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_LLAMA = _SHARED | {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
}
_GPT = {key: value for key, value in _SHARED.items() if key != "max_position_embeddings"} | {
    "n_positions": CONTEXT,
    "n_embd": 48,
    "n_layer": 2,
    "n_head": 6,
}
_NEOX = _LLAMA | {"rotary_pct": 0.25, "hidden_act": "gelu"}
del _NEOX["num_key_value_heads"]


def _rope(kind: str, **numbers: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **numbers}}


# name → (model_type, config): every family, and every departure that a family's config can make.
TINY: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", _LLAMA),
    "llama-mha-tied": ("llama", _LLAMA | {"num_key_value_heads": 6, "tie_word_embeddings": True}),
    "llama-mqa": ("llama", _LLAMA | {"num_key_value_heads": 1}),
    "llama-bias": ("llama", _LLAMA | {"attention_bias": True, "mlp_bias": True}),
    "llama-head-dim": ("llama", _LLAMA | {"head_dim": 14}),
    "llama-linear": ("llama", _LLAMA | _rope("linear", factor=2.5)),
    "llama-dynamic": ("llama", _LLAMA | _rope("dynamic", factor=2.0)),
    "llama-llama3": (
        "llama",
        _LLAMA
        | _rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32),
    ),
    "llama-yarn": ("llama", _LLAMA | _rope("yarn", factor=4.0, original_max_position_embeddings=32)),
    "llama-yarn-stretched": (
        "llama",
        _LLAMA | {"max_position_embeddings": 32} | _rope("yarn", factor=4.0, original_max_position_embeddings=32),
    ),
    "mistral": ("mistral", _LLAMA | {"sliding_window": 7}),
    "mistral-long": ("mistral", _LLAMA | {"sliding_window": 8, "max_position_embeddings": 512}),
    "mistral-no-window": ("mistral", _LLAMA | {"sliding_window": None}),
    "mixtral": ("mixtral", _LLAMA | {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "qwen2": ("qwen2", _LLAMA),
    "qwen2-window": ("qwen2", _LLAMA | {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    "qwen3": ("qwen3", _LLAMA | {"head_dim": 12}),
    "gpt_neox": ("gpt_neox", _NEOX),
    "gpt_neox-serial": ("gpt_neox", _NEOX | {"use_parallel_residual": False, "attention_bias": False}),
    "gpt2": ("gpt2", _GPT),
    "gpt2-inner": ("gpt2", _GPT | {"n_inner": 100, "scale_attn_weights": False}),
    "gpt_bigcode": ("gpt_bigcode", _GPT | {"multi_query": True}),
    "gpt_bigcode-mha": ("gpt_bigcode", _GPT | {"multi_query": False}),
}

FAMILY_NAMES = [name for name in TINY if name in {kind for kind, _ in TINY.values()}]


@cache
def reference(name: str) -> transformers.PreTrainedModel:
    """The transformers model, with attention written out so that every shape is allowed."""
    kind, numbers = TINY[name]
    config = transformers.AutoConfig.for_model(kind, **numbers)
    with torch.random.fork_rng():
        torch.manual_seed(20)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        for label, parameter in model.named_parameters():
            # Norm weights and biases too, so that none of them is a silent 1 or 0.
            is_norm = parameter.dim() == 1 and label.endswith("weight")
            torch.nn.init.normal_(parameter, mean=1.0 if is_norm else 0.0, std=0.15)
    return model.float().eval()


def save(name: str, directory: Path, **how: Any) -> Path:
    """The model's directory, written once."""
    path = directory / name
    if not path.exists():
        reference(name).save_pretrained(path, **how)
    return path


def prompt(length: int, seed: int = 0) -> list[int]:
    """Token ids that look like nothing."""
    generator = torch.Generator().manual_seed(1000 * length + seed)
    return torch.randint(0, VOCABULARY, (length,), generator=generator).tolist()
