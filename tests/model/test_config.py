"""What a config.json may say: type and range of every value, windows and contexts as the families mean them."""

import json
import math
import re
import shutil

import pytest
import torch
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tests.tiny_models import TINY, config_of, prompt, save
from tokenmill import CheckpointError, load
from tokenmill.model.families import read_config
from tokenmill.model.rope import SCALES, RotaryTable
from tokenmill.model.rope_config import KINDS
from tokenmill.weights.checkpoint import open_checkpoint

LLAMA = {
    "model_type": "llama",
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "vocab_size": 211,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rms_norm_eps": "small"}, "rms_norm_eps = 'small' is not allowed: a number above 0"),
        ({"rms_norm_eps": math.nan}, "rms_norm_eps = nan"),
        ({"hidden_act": ["silu"]}, r"hidden_act = \['silu'\] is not allowed: a text"),
        (
            {"hidden_act": "mish"},
            "hidden_act = 'mish' is not allowed: gelu, gelu_fast, gelu_new, gelu_pytorch_tanh, relu",
        ),
        ({"hidden_act": ""}, "hidden_act = '' is not allowed: gelu, "),  # transformers: KeyError, as for the next ones
        ({"model_type": "gemma", "hidden_act": ""}, "hidden_act = '' is not allowed"),
        ({"model_type": "gemma", "hidden_activation": ""}, "hidden_activation = '' is not allowed"),
        ({"model_type": "gemma2", "hidden_activation": ""}, "hidden_activation = '' is not allowed: gelu, "),
        ({"model_type": "gpt2", "activation_function": ""}, "activation_function = '' is not allowed: gelu, "),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings = 'yes' is not allowed: true or false"),
        ({"attention_bias": 1}, "attention_bias = 1 is not allowed"),
        ({"eos_token_id": "end"}, "eos_token_id = 'end' is not allowed: token ids"),
        ({"eos_token_id": [2, -1]}, "eos_token_id"),
        ({"torch_dtype": ["float32"]}, "torch_dtype"),
        ({"model_type": ["llama"]}, r"model_type \['llama'\] is not implemented"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers = 1000000000 is not allowed: a whole number from 1 to 2048"),
        ({"vocab_size": 2**63}, "vocab_size"),
        ({"num_attention_heads": 7}, "7 heads do not divide a hidden size of 48"),
        ({"rope_scaling": [4]}, "rope_scaling must be an object"),
        ({"rope_scaling": {"rope_type": ["yarn"]}}, "rope_type"),
        ({"rope_scaling": {"rope_type": "linear", "factor": "2"}}, "factor = '2' is not allowed"),
        ({"rope_scaling": {**YARN, "beta_fast": 0}}, "beta_fast = 0 is not allowed"),
        ({"rope_theta": 0}, "rope_theta = 0 is not allowed"),
        ({"rope_theta": True}, "rope_theta = True"),
        ({"quantization_config": "gptq"}, "quantization_config must be an object"),
        ({"stored_as_codes": "many"}, "stored_as_codes = 'many' is not allowed"),
        ({"model_type": "qwen2", "layer_types": 3}, "layer_types = 3 is not allowed: a list"),
        ({"model_type": "qwen2", "max_window_layers": -1}, "max_window_layers = -1"),
        ({"model_type": "mistral", "sliding_window": "wide"}, "sliding_window = 'wide'"),
    ],
)
def test_values_of_the_wrong_type_or_range_are_refused_by_name(changes, message):
    with pytest.raises(CheckpointError, match=message):
        read_config({**LLAMA, **changes})


@pytest.mark.parametrize(
    "keys",
    [
        {"use_mrope": False},  # Qwen2.5-0.5B and every R1 distillation
        {"max_sequence_length": 2048},  # the first conversions of LLaMA
        {"_flash_attn_2_enabled": True, "attn_implementation": "flash_attention_2", "mup": False, "is_causal": True},
        {"layer_types": ["full_attention"] * 2},
        {"original_max_position_embeddings": 32.0, "max_position_embeddings": 64.0},
        {"sliding_window": None, "dual_chunk_attention_config": None},
    ],
    ids=str,
)
def test_keys_that_change_nothing_are_known(keys):
    assert read_config({**LLAMA, **keys}).windows == (None, None)


@pytest.mark.parametrize(
    "keys",
    [
        {"use_mrope": True},
        {"is_causal": False},
        {"mup": True},
        {"mup": 0},
        {"layer_types": ["full_attention", "sliding_attention"]},
        {"pruned_heads": {"0": [1]}},
        {"add_cross_attention": True},
        {"embedding_multiplier": 12.0},
    ],
    ids=str,
)
def test_the_same_keys_are_refused_with_another_value(keys):
    with pytest.raises(CheckpointError, match=f"keys that tokenmill does not know: {next(iter(keys))} = "):
        read_config({**LLAMA, **keys})


def test_the_original_length_beside_the_rope_parameters_goes_first():
    values = {**LLAMA, "max_position_embeddings": 128, "rope_scaling": {**YARN, "rope_theta": 1e4}}
    values["original_max_position_embeddings"] = 16
    config = AutoConfig.for_model(**json.loads(json.dumps(values)))
    ROPE_INIT_FUNCTIONS["yarn"](config)  # which settles it
    assert dict(read_config(values).rope.scaling)["original_max_position_embeddings"] == 16
    assert config.rope_parameters["original_max_position_embeddings"] == 16


def test_sizes_far_beyond_the_files_are_refused_before_anything_is_built(tmp_path):
    path = shutil.copytree(save("llama", tmp_path), tmp_path / "model")
    good = json.loads((path / "config.json").read_text())
    for changes in ({"num_hidden_layers": 2048}, {"head_dim": 2**24}, {"vocab_size": 2**24}):
        (path / "config.json").write_text(json.dumps(good | changes))
        with pytest.raises(CheckpointError, match="does not fit its config, which describes"):
            open_checkpoint(path)


def test_qwen2_without_a_window_has_none():
    qwen2 = {**LLAMA, "model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 1}
    assert read_config(qwen2).windows == (None, 4096)
    assert read_config({**qwen2, "sliding_window": None}).windows == (None, None)
    assert read_config({**qwen2, "sliding_window": 9}).windows == (None, 9)


@pytest.mark.parametrize(
    "numbers",
    [
        {},
        {"attn_factor": 0.8782488562869419, "beta_fast": 32.0, "beta_slow": 1.0},  # DeepSeek-R1-0528-Qwen3-8B
        {"extrapolation_factor": 1.0, "finetuned": True, "attn_factor": 1.0},
        {"attention_factor": 0.9},
        {"mscale": 0.7, "mscale_all_dim": 1.0},
        {"mscale": 0.7},
        {"beta_fast": 20, "beta_slow": 2},
        {"original_max_position_embeddings": 32.0},
    ],
    ids=str,
)
def test_yarn_is_what_transformers_makes_of_the_same_numbers(caplog, numbers):
    values = {**LLAMA, "max_position_embeddings": 128, "rope_scaling": {**YARN, "rope_theta": 1e4, **numbers}}
    expected, factor = ROPE_INIT_FUNCTIONS["yarn"](AutoConfig.for_model(**json.loads(json.dumps(values))))
    table = RotaryTable(read_config(values).rope, 40, torch.float32, torch.device("cpu"))
    angles = torch.arange(40.0)[:, None] * expected
    torch.testing.assert_close(table.cos_PH, torch.cat((angles, angles), -1).cos() * factor)
    assert ("has no effect, as in transformers" in caplog.text) == ("attn_factor" in numbers)


def test_yarn_reaches_its_original_length_times_its_factor(tmp_path):
    """As Qwen 2.5 documents it: max_position_embeddings stays the original length."""
    qwen = {**LLAMA, "max_position_embeddings": 32, "rope_scaling": YARN}
    assert read_config(qwen).context == 128
    assert read_config({**qwen, "max_position_embeddings": 128}).context == 128
    assert read_config({**qwen, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}).context == 128
    assert "llama-yarn-stretched" in TINY  # law 1 compares it with transformers beyond its original length
    engine = load(save("llama-yarn-stretched", tmp_path), max_length=128)
    assert len(engine.generate(prompt(60), max_new_tokens=30, ignore_eos=True).tokens) == 30


def test_every_kind_of_rope_has_its_numbers_and_its_scale():
    assert KINDS.keys() | {"proportional"} == SCALES.keys()  # which Gemma 4 reads by itself


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("gemma4_text", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, "rope_parameters has keys"),
        ("gemma4_text", {"head_dim": 7, "per_layer_config": {}}, "head_dim = 7 is not allowed: an even number"),
        (
            "gemma4_unified_text",
            {"hidden_size_per_layer_input": 8},
            "hidden_size_per_layer_input = 8 is not implemented",
        ),
        ("gemma4_unified_text", {"enable_moe_block": True}, "enable_moe_block = True is not implemented"),
        ("gemma3n_text", {"altup_num_inputs": 3}, "altup_num_inputs = 3 is not implemented: only 4"),
        ("gemma3n_text", {"altup_active_idx": 1}, "altup_active_idx = 1 is not implemented: only 0"),
        (
            "gemma3n_text",
            {"activation_sparsity_pattern": [0.5, 1.0, 0, 0, 0]},
            "is not allowed: a number from 0 to below 1 for each of 5 layers",
        ),
        ("gemma3n_text", {"activation_sparsity_pattern": 0.95}, "a number from 0 to below 1 for each of 5 layers"),
        (
            "gemma3n_text",
            {"intermediate_size": [80, 80]},
            "is not allowed: a width for each of 5 layers, or one for all",
        ),
        ("gemma3n_text", {"intermediate_size": [80, 80, 0, 80, 80]}, "intermediate_size[2] = 0 is not allowed"),
        ("gemma4_text", {"use_bidirectional_attention": "some"}, "use_bidirectional_attention = 'some'"),
        ("falcon_h1", {"mamba_n_groups": 4}, "mamba_n_groups = 4 is not allowed: a divisor of mamba_n_heads, 6"),
        ("bamba", {"mamba_n_groups": 3}, "mamba_n_groups = 3 is not allowed: a divisor of mamba_n_heads, 8"),
        ("falcon_h1", {"mamba_d_conv": 1}, "mamba_d_conv = 1 is not allowed: a whole number from 2"),
        ("nemotron_h", {"conv_kernel": 1}, "conv_kernel = 1 is not allowed: a whole number from 2"),
        (
            "qwen3_next",
            {"linear_conv_kernel_dim": 1},
            "linear_conv_kernel_dim = 1 is not allowed: a whole number from 2",
        ),
        (
            "kimi_linear",
            {"linear_attn_config": {"full_attn_layers": [1], "kda_layers": [2], "short_conv_kernel_size": 1}},
            "short_conv_kernel_size = 1 is not allowed: a whole number from 2",
        ),
        ("lfm2", {"conv_L_cache": 1}, "conv_L_cache = 1 is not allowed: a whole number from 2"),
    ],
)
def test_what_would_be_read_otherwise_than_it_says_is_refused(name, changes, message):
    with pytest.raises(CheckpointError, match=re.escape(message)):
        read_config({**config_of(*TINY[name]).to_dict(), **changes})


def test_an_empty_list_of_layers_means_that_all_are_alike():
    """As transformers reads it: without the key, global_head_dim holds, or its default."""
    config = config_of(*TINY["gemma4_text"]).to_dict() | {"per_layer_config": {}, "head_dim": 16}
    assert set(read_config(config).layer_head_dims) == {16}
