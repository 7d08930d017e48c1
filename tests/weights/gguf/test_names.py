"""GGUF's names of tensors, and the orders of rows that llama.cpp's converters write."""

import pytest
import torch

from tokenmill.errors import CheckpointError
from tokenmill.weights.gguf.names import find_transform, hf_bases

LAYER, HF = "blk.{i}.", "model.layers.{i}."
ATTENTION = {LAYER + f"attn_{letter}": HF + f"self_attn.{letter}_proj" for letter in "qkv"}
LLAMA = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    **ATTENTION,
    LAYER + "attn_output": HF + "self_attn.o_proj",
    LAYER + "attn_norm": HF + "input_layernorm",
    LAYER + "ffn_norm": HF + "post_attention_layernorm",
    LAYER + "ffn_gate": HF + "mlp.gate_proj",
    LAYER + "ffn_up": HF + "mlp.up_proj",
    LAYER + "ffn_down": HF + "mlp.down_proj",
}
QWEN3 = LLAMA | {LAYER + f"attn_{letter}_norm": HF + f"self_attn.{letter}_norm" for letter in "qk"}
EXPERTS = {"gate": "w1", "up": "w3", "down": "w2"}
MIXTRAL = {name: base for name, base in LLAMA.items() if "ffn_" not in name or "norm" in name} | {
    LAYER + "ffn_gate_inp": HF + "block_sparse_moe.gate",
    **{LAYER + f"ffn_{ours}_exps": HF + f"block_sparse_moe.experts.{{e}}.{hf}" for ours, hf in EXPERTS.items()},
}
GPT2 = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    LAYER + "attn_norm": "transformer.h.{i}.ln_1",
    LAYER + "attn_qkv": "transformer.h.{i}.attn.c_attn",
    LAYER + "attn_output": "transformer.h.{i}.attn.c_proj",
    LAYER + "ffn_norm": "transformer.h.{i}.ln_2",
    LAYER + "ffn_up": "transformer.h.{i}.mlp.c_fc",
    LAYER + "ffn_down": "transformer.h.{i}.mlp.c_proj",
}


@pytest.mark.parametrize(
    ("family", "wanted"), [("llama", LLAMA), ("qwen3", QWEN3), ("mixtral", MIXTRAL), ("gpt2", GPT2)]
)
def test_names(family, wanted):
    found = hf_bases(family)
    assert {name: found.get(name) for name in wanted} == wanted
    assert not {name for name in found.keys() - wanted.keys() if not name.endswith(("_q_norm", "_k_norm"))}


def rows(count: int) -> torch.Tensor:
    """A matrix whose rows are told by their numbers."""
    return torch.arange(count)[:, None].repeat(1, 3)


CONFIG = {"num_attention_heads": 2, "num_key_value_heads": 1}


@pytest.mark.parametrize(
    ("family", "kind", "wanted"),
    [
        ("llama", "blk.{i}.attn_q", [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]),
        ("llama", "blk.{i}.attn_k", [0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11]),
        ("llama", "blk.{i}.attn_v", list(range(12))),
        ("qwen2", "blk.{i}.attn_q", list(range(12))),
        ("gpt_neox", "blk.{i}.attn_qkv", [0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11]),
        ("gpt_bigcode", "blk.{i}.attn_qkv", list(range(12))),
    ],
)
def test_orders_of_rows(family, kind, wanted):
    transform = find_transform(family, kind)
    found = transform.to_hf(rows(12), CONFIG)
    assert found[:, 0].tolist() == wanted and found.shape == (12, 3)
    assert transform.to_hf(rows(12)[:, 0], CONFIG).tolist() == wanted, "a bias is ordered as the rows are"
    assert torch.equal(transform.to_gguf(found, CONFIG), rows(12))
    assert transform.transposes is False


def test_gpt2_is_transposed():
    for name in ("attn_qkv", "attn_output", "ffn_up", "ffn_down"):
        transform = find_transform("gpt2", f"blk.{{i}}.{name}")
        assert transform.transposes is True
        assert torch.equal(transform.to_hf(rows(4), CONFIG), rows(4).t())
        assert torch.equal(transform.to_gguf(rows(4).t(), CONFIG), rows(4))
    assert find_transform("gpt2", "token_embd").transposes is False


def test_rows_that_no_heads_divide_stay_as_they_are():
    for family, kind in (("llama", "blk.{i}.attn_q"), ("gpt_neox", "blk.{i}.attn_qkv")):
        transform = find_transform(family, kind)
        assert torch.equal(transform.to_hf(rows(7), CONFIG), rows(7))
        assert torch.equal(transform.to_gguf(rows(7), CONFIG), rows(7))


def test_a_family_that_no_gguf_file_holds_is_named():
    with pytest.raises(CheckpointError, match="model_type 'mamba' is not implemented"):
        hf_bases("mamba")
