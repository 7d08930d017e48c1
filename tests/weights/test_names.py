"""Names of files' tensors and the parameters that they fill."""

from dataclasses import replace

import pytest
import torch

from tokenmill.model.families import find_family, read_config
from tokenmill.weights.names import Target, as_stored, expand, is_further, is_ignored, rows_of
from tokenmill.weights.transforms import TRANSFORMS

SIZES = {"vocab_size": 10, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA = {"model_type": "llama", "num_key_value_heads": 2, **SIZES}
MIXTRAL = LLAMA | {"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 1}


def expanded(config, *parameters):
    return expand(find_family(config), read_config(config), parameters)


def test_patterns_are_expanded_for_the_parameters_that_there_are():
    found = expanded(LLAMA, "embedding.weight", "layers.1.attention.qkv.weight", "layers.1.attention.qkv.bias")
    assert found == {
        "embed_tokens.weight": Target("embedding.weight", "", ""),
        "layers.1.self_attn.q_proj.weight": Target("layers.1.attention.qkv.weight", "q", ""),
        "layers.1.self_attn.k_proj.weight": Target("layers.1.attention.qkv.weight", "k", ""),
        "layers.1.self_attn.v_proj.weight": Target("layers.1.attention.qkv.weight", "v", ""),
        "layers.1.self_attn.q_proj.bias": Target("layers.1.attention.qkv.bias", "q", ""),
        "layers.1.self_attn.k_proj.bias": Target("layers.1.attention.qkv.bias", "k", ""),
        "layers.1.self_attn.v_proj.bias": Target("layers.1.attention.qkv.bias", "v", ""),
    }
    assert expanded(LLAMA, "layers.2.attention.qkv.weight", "elsewhere") == {}, "there are two layers"


def test_experts_have_their_own_number():
    found = expanded(MIXTRAL, "layers.0.mlp.experts.1.up.weight", "layers.0.mlp.experts.2.up.weight")
    expert = "layers.0.block_sparse_moe.experts.1."
    assert found == {
        expert + "w1.weight": Target("layers.0.mlp.experts.1.up.weight", "gate", ""),
        expert + "w3.weight": Target("layers.0.mlp.experts.1.up.weight", "up", ""),
    }


def test_transforms_are_named_after_a_bar():
    config = {"model_type": "gpt2", "vocab_size": 10, "n_embd": 8, "n_head": 2, "n_layer": 1, "n_positions": 16}
    found = expanded(config, "layers.0.mlp.up.weight", "norm.bias")
    assert found == {
        "h.0.mlp.c_fc.weight": Target("layers.0.mlp.up.weight", "", "transpose"),
        "ln_f.bias": Target("norm.bias", "", ""),
    }


@pytest.mark.parametrize(
    ("family", "name", "wanted"),
    [
        ("llama", "layers.0.self_attn.rotary_emb.inv_freq", True),
        ("llama", "layers.17.self_attn.rotary_emb.inv_freq", True),
        ("llama", "layers.x.self_attn.rotary_emb.inv_freq", False),
        ("llama", "layers.0.self_attn_rotary_emb.inv_freq", False),
        ("llama", "layers.0.self_attn.rotary_emb.inv_freq.more", False),
        ("llama", "h.0.attn.bias", False),
        ("gpt2", "h.0.attn.bias", True),
        ("gpt2", "h.0.attn.c_attn.bias", False),
    ],
)
def test_buffers_are_ignored(family, name, wanted):
    assert is_ignored(find_family({"model_type": family}), name) is wanted


def test_parts_of_merged_parameters():
    """Four query heads and two of K and V, of two numbers each; gate and up are halves."""
    config, name = read_config(LLAMA), "layers.1.attention.qkv.weight"
    assert rows_of(Target(name, "q", ""), 16, config) == range(8)
    assert rows_of(Target(name, "k", ""), 16, config) == range(8, 12)
    assert rows_of(Target(name, "v", ""), 16, config) == range(12, 16)
    assert rows_of(Target("layers.0.mlp.up.weight", "gate", ""), 24, config) == range(12)
    assert rows_of(Target("layers.0.mlp.up.weight", "up", ""), 24, config) == range(12, 24)
    assert rows_of(Target("norm.weight", "", ""), 8, config) == range(8)


def test_transforms_by_hand():
    config = read_config(LLAMA)
    matrix = torch.arange(24).reshape(24, 1).repeat(1, 2)
    assert TRANSFORMS[""].to_decoder(matrix, config) is matrix
    assert torch.equal(TRANSFORMS["transpose"].to_decoder(matrix, config), matrix.t())
    # Four heads of two numbers, each with its q, k and v: head 0 has rows 0 to 5.
    query = [0, 1, 6, 7, 12, 13, 18, 19]
    wanted = [*query, *(row + 2 for row in query), *(row + 4 for row in query)]
    assert TRANSFORMS["heads_to_qkv"].to_decoder(matrix, config)[:, 0].tolist() == wanted
    assert TRANSFORMS["heads_to_qkv"].to_decoder(matrix, config).shape == (24, 2)
    assert TRANSFORMS["heads_to_qkv"].to_decoder(matrix[:, 0], config).tolist() == wanted, "of a bias too"
    assert TRANSFORMS["bigcode_qkv"].to_decoder(matrix, config) is matrix, "fewer heads of K and V than of Q"
    assert TRANSFORMS["bigcode_qkv"].to_decoder(matrix, replace(config, num_kv_heads=4))[:, 0].tolist() == wanted


def test_parts_in_succession_and_pieces():
    """q and k of 8 rows each, v and z of 12 each; the taps of q, k and v, whole or cut in three."""
    heads = {"linear_num_key_heads": 1, "linear_num_value_heads": 1, "linear_conv_kernel_dim": 2}
    heads |= {"linear_key_head_dim": 8, "linear_value_head_dim": 12, "num_key_value_heads": 2}
    config = read_config({"model_type": "qwen3_5_text", **SIZES, **heads})
    matrix, taps = (f"layers.0.delta_net.{name}" for name in ("qkvz.weight", "conv"))
    assert rows_of(Target(matrix, "qkv", ""), 40, config) == range(28)
    assert rows_of(Target(matrix, "z", ""), 40, config) == range(28, 40)
    assert rows_of(Target(taps, "v", "depthwise"), 28, config) == range(16, 28)
    pieces = [rows_of(Target(taps, f"{number}/3", "depthwise"), 28, config) for number in range(3)]
    assert [len(piece) for piece in pieces] == [len(piece) for piece in torch.arange(28).chunk(3)]
    assert pieces[2] == range(20, 28)


def test_a_name_has_the_target_that_its_layer_has():
    """In OLMo Hybrid each fourth layer attends, and has its norms behind attention and MLP."""
    config = {"model_type": "olmo_hybrid", "num_key_value_heads": 4, **SIZES, "num_hidden_layers": 4}
    family, model = find_family(config), read_config(config)
    stored = {f"layers.{layer}.post_attention_layernorm.weight": (8,) for layer in range(4)}
    norms = ["layers.0.mlp_norm.weight", "layers.3.attention_after_norm.weight"]
    found = expand(as_stored(family, model, stored), model, norms)
    assert {name: target.parameter for name, target in found.items()} == {
        "layers.0.post_attention_layernorm.weight": norms[0],
        "layers.3.post_attention_layernorm.weight": norms[1],
    }
    published = expand(as_stored(family, model, {"layers.3.post_attention_layernorm.weight": (8,)}), model, norms)
    assert {name: target.parameter for name, target in published.items()} == {
        "layers.0.feedforward_layer_norm.weight": norms[0],
        "layers.3.post_attention_layernorm.weight": norms[1],
    }


@pytest.mark.parametrize(
    ("family", "name", "wanted"),
    [
        ("glm4_moe", "layers.2.eh_proj.weight", True),
        ("glm4_moe", "layers.2.self_attn.q_proj.weight", True),
        ("glm4_moe", "layers.1.eh_proj.weight", False),
        ("glm4_moe", "layers.20.eh_proj.weight", False),
        ("ernie4_5_moe", "mtp_block.0.self_attn.q_proj.weight", True),
        ("llama", "layers.2.self_attn.q_proj.weight", False),
    ],
)
def test_layers_that_predict_further_tokens(family, name, wanted):
    assert is_further(find_family({"model_type": family}), read_config(LLAMA), name) is wanted


def test_a_row_for_each_head_and_a_tensor_of_one_row():
    config = {"model_type": "stablelm", "num_key_value_heads": 2, "qk_layernorm": True, "partial_rotary_factor": 1.0}
    config |= SIZES
    found = expanded(config, "layers.1.attention.k_norm.weight")
    norms = "layers.1.self_attn.k_layernorm.norms."
    assert found == {
        f"{norms}{head}.weight": Target("layers.1.attention.k_norm.weight", str(head), "") for head in (0, 1)
    }
    target = found[f"{norms}1.weight"]
    assert rows_of(target, 2, read_config(config)) == range(1, 2)
    model = read_config(config)
    assert target.shape_in_file(1, (2,), model) == (2,)
    assert Target("layers.0.mlp.correction", "", "one row").shape_in_file(5, (), model) == (1, 5)
    assert torch.equal(TRANSFORMS["one row"].to_decoder(torch.ones(1, 5), read_config(config)), torch.ones(5))
