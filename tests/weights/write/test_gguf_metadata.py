"""The keys that describe a model, by hand, and what of a model they cannot say."""

import math
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
import torch
import transformers

from tokenmill.errors import ConfigError
from tokenmill.model.families import read_config
from tokenmill.weights.gguf.header import TensorInfo, read_header
from tokenmill.weights.write.gguf_metadata import check_read_back, metadata_of, rope_lists, unread_yarn, write_header

Kind = gguf.GGMLQuantizationType
LLAMA = {
    "model_type": "llama",
    "vocab_size": 10,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}
GPT2 = {"model_type": "gpt2", "vocab_size": 10, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}
NEOX = {key: value for key, value in LLAMA.items() if key not in ("num_key_value_heads", "rms_norm_eps")}
NEOX |= {"model_type": "gpt_neox", "rotary_pct": 0.5, "hidden_act": "gelu", "use_parallel_residual": False}


def keys_of(arch: str, **pairs):
    sizes = {"block_count": 2, "context_length": 128, "embedding_length": 64, "vocab_size": 10}
    return {"general.architecture": arch} | {f"{arch}.{key}": value for key, value in (sizes | pairs).items()}


HEADS = {"attention.head_count": 4, "attention.head_count_kv": 2, "feed_forward_length": 96}
RMS = HEADS | {"attention.layer_norm_rms_epsilon": 1e-5, "attention.key_length": 16, "attention.value_length": 16}
ROPE = {"rope.dimension_count": 16, "rope.freq_base": 10000.0}


@pytest.mark.parametrize(
    ("config", "arch", "pairs"),
    [
        (LLAMA, "llama", RMS | ROPE),
        (
            LLAMA | {"head_dim": 8},
            "llama",
            RMS
            | {
                "attention.key_length": 8,
                "attention.value_length": 8,
                "rope.dimension_count": 8,
                "rope.freq_base": 10000.0,
            },
        ),
        (LLAMA | {"model_type": "mistral", "sliding_window": 7}, "llama", RMS | ROPE | {"attention.sliding_window": 7}),
        (
            LLAMA | {"model_type": "mixtral", "num_local_experts": 3, "num_experts_per_tok": 2},
            "llama",
            RMS | {"expert_count": 3, "expert_used_count": 2, "rope.dimension_count": 16, "rope.freq_base": 1e6},
        ),
        (
            NEOX,
            "gptneox",
            HEADS
            | {
                "attention.head_count_kv": 4,
                "attention.layer_norm_epsilon": 1e-5,
                "rope.dimension_count": 8,
                "rope.freq_base": 10000.0,
                "use_parallel_residual": False,
            },
        ),
        (
            GPT2,
            "gpt2",
            HEADS | {"attention.head_count_kv": 4, "feed_forward_length": 256, "attention.layer_norm_epsilon": 1e-5},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_keys_by_hand(config, arch, pairs):
    assert metadata_of(read_config(config)) == keys_of(arch, **pairs)


def scaled(kind: str, **numbers):
    return read_config(LLAMA | {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **numbers}})


YARN = {"factor": 4.0, "original_max_position_embeddings": 32}


@pytest.mark.parametrize(
    ("model", "scaling"),
    [
        (scaled("linear", factor=2), {"type": "linear", "factor": 2.0}),
        (scaled("yarn", **YARN), {"type": "yarn", "factor": 4.0, "original_context_length": 32}),
        (
            scaled("yarn", **YARN, beta_fast=30, attention_factor=0.9),
            {
                "type": "yarn",
                "factor": 4.0,
                "original_context_length": 32,
                "yarn_attn_factor": 0.9,
                "yarn_beta_fast": 30.0,
            },
        ),
        (
            scaled("yarn", **YARN, beta_slow=2.0),
            {"type": "yarn", "factor": 4.0, "original_context_length": 32, "yarn_beta_slow": 2.0},
        ),
        (scaled("dynamic", factor=2.0), {}),
    ],
    ids=str,
)
def test_scalings(model, scaling):
    found = {key: value for key, value in metadata_of(model).items() if ".scaling." in key}
    assert found == {f"llama.rope.scaling.{key}": value for key, value in scaling.items()}
    assert all(type(value) in (str, float, int) for value in found.values())


def test_numbers_of_yarn_that_llama_cpp_does_not_read():
    usual = 0.1 * math.log(4.0) + 1.0
    for numbers, wanted in (
        ({}, {}),
        ({"attention_factor": usual * (1 + 1e-7), "beta_fast": 32, "beta_slow": 1}, {}),
        ({"attention_factor": usual * 1.001}, {"attention_factor": usual * 1.001}),
        ({"beta_fast": 31.0}, {"beta_fast": 31.0}),
        ({"beta_slow": 1.5}, {"beta_slow": 1.5}),
    ):
        assert unread_yarn(scaled("yarn", **YARN, **numbers)) == pytest.approx(wanted, rel=1e-9)
    assert unread_yarn(scaled("linear", factor=2.0)) == {}
    assert unread_yarn(replace(scaled("linear", factor=2.0), rope=None)) == {}


def test_factors_are_those_by_which_transformers_divides_the_frequencies():
    numbers = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
    parameters = {"rope_type": "llama3", "rope_theta": 10000.0, **numbers}
    config = transformers.LlamaConfig(
        **{key: LLAMA[key] for key in LLAMA if key != "model_type"}, rope_parameters=parameters
    )
    theirs, _ = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 10000.0 ** -(torch.arange(8) / 8)
    found = rope_lists(scaled("llama3", **numbers).rope)["rope_freqs.weight"]
    assert len(found) == 8 and found == pytest.approx((plain / theirs).tolist(), rel=1e-5)
    assert found[0] == 1.0 and found[-1] == pytest.approx(8.0)
    given = [1.0] * 7 + [2.0]
    assert rope_lists(scaled("factors", factors=given).rope) == {"rope_freqs.weight": given}
    for rope in (None, scaled("linear", factor=2.0).rope, scaled("default").rope, scaled("yarn", **YARN).rope):
        assert rope_lists(rope) == {}


TENSORS = {"token_embd.weight": (10, 64), "output.weight": (10, 64)}
TENSORS |= {f"blk.{i}.{name}.weight": (1, 1) for i in range(2) for name in ("attn_q", "ffn_up")}


def read_back(model, tensors=TENSORS, **changes) -> None:
    infos = [TensorInfo(name, shape, Kind.F32, 0, 0) for name, shape in tensors.items()]
    pairs = {key: value for key, value in (metadata_of(model) | changes).items() if value is not None}
    check_read_back(Path("x"), model, pairs, infos)


@pytest.mark.parametrize(
    "model",
    [
        read_config(LLAMA),
        scaled("linear", factor=2.5),
        scaled("yarn", **YARN, attention_factor=0.9),
        scaled("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32),
        scaled("factors", factors=[1.0, 1.0, 1.0, 1.0, 1.5, 2.0, 3.0, 4.0]),
        replace(read_config(LLAMA), norm_eps=1e-5 * (1 + 1e-8)),
        replace(read_config(LLAMA), dtype="float16", codes=True, code_bits=4.5, embedding_bits=8.5, eos_token_ids=(7,)),
    ],
    ids=str,
)
def test_a_model_that_the_keys_describe(model):
    read_back(model)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (scaled("dynamic", factor=2.0), "it has no key for rope = "),
        (replace(read_config(LLAMA), activation="gelu"), "it has no key for activation = 'gelu', read as 'silu'"),
        (replace(read_config(LLAMA), attention_scale=0.5), "it has no key for attention_scale = 0.5, read as None"),
        (replace(read_config(LLAMA), tie_embeddings=True), "no key for tie_embeddings = True, read as False"),
        (
            replace(read_config(LLAMA), activation="gelu", mlp_bias=True),
            "no key for mlp_bias = True, read as False; activation = 'gelu', read as 'silu'",
        ),
        (replace(read_config(LLAMA), norm_eps=1.1e-5), None),
    ],
    ids=str,
)
def test_a_model_that_they_do_not_describe(model, message):
    if message is None:
        read_back(model)
        with pytest.raises(ConfigError, match=r"no key for norm_eps = 1.1e-05, read as 1e-05$"):
            read_back(model, **{"llama.attention.layer_norm_rms_epsilon": 1e-5})
        return
    with pytest.raises(ConfigError) as raised:
        read_back(model)
    said = str(raised.value)
    assert said.startswith("model = 'llama' is not allowed: one that GGUF can describe; ")
    parts = message.removeprefix("it has ").removeprefix("no key for ").split("; ")
    assert all(part in said for part in parts)


def test_keys_that_are_refused_are_told_as_the_model_s():
    with pytest.raises(
        ConfigError, match=r"one that GGUF can describe: x: block_count is 3, but there are tensors of 2"
    ):
        read_back(read_config(LLAMA), **{"llama.block_count": 3})
    with pytest.raises(ConfigError, match="no key for rope = "):
        read_back(scaled("linear", factor=2.5), **{"llama.rope.scaling.factor": 2.6})


def test_a_header_is_read_as_it_was_written(tmp_path):
    metadata = {
        "general.architecture": "llama",
        "a.flag": True,
        "a.count": 3,
        "a.number": 0.5,
        "a.text": "x",
        "a.list": [1, 2],
    }
    infos = [
        TensorInfo("one.weight", (2, 3), Kind.F32, 0, 24),
        TensorInfo("two.weight", (4, 64), Kind.Q8_0, 32, 4 * 2 * 34),
        TensorInfo("three.weight", (5,), Kind.F16, 32 + 288, 10),
    ]
    file = tmp_path / "x.gguf"
    write_header(file, metadata, infos)
    size = file.stat().st_size
    with file.open("ab") as out:
        out.write(bytes(-size % 32 + 32 + 288 + 10))
    found = read_header(file)
    assert found.metadata == metadata and list(found.tensors.values()) == infos
    assert found.data_offset == size + -size % 32
