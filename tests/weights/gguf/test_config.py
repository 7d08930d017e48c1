"""The config that GGUF metadata mean, from headers that are made here: no file is written."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from tokenmill.errors import CheckpointError
from tokenmill.model.families import read_config
from tokenmill.weights.gguf.config import read_gguf_config
from tokenmill.weights.gguf.header import Header, TensorInfo

Kind = gguf.GGMLQuantizationType
EPS = float(np.float32(1e-5))  # as a float32 of a file is read
SIZES = {
    "block_count": 2,
    "context_length": 128,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.head_count": 4,
}
RMS = SIZES | {"attention.layer_norm_rms_epsilon": EPS}
LAYER = SIZES | {"attention.layer_norm_epsilon": EPS}
TENSORS = {"token_embd.weight": (10, 64), "blk.0.ffn_up.weight": (96, 64), "blk.1.ffn_up.weight": (96, 64)}


def tensors_of(shapes: dict[str, Any], kind=Kind.F32) -> dict[str, TensorInfo]:
    """A shape may stand in a pair with a kind of its own."""
    told = {name: each if isinstance(each[0], tuple) else (each, kind) for name, each in shapes.items()}
    return {name: TensorInfo(name, shape, of, 0, 0) for name, (shape, of) in told.items()}


def config_of(
    arch: str,
    pairs: dict[str, Any],
    tensors: dict[str, Any] = TENSORS,
    factors: Sequence[float] | None = None,
    warned: list[str] | None = None,
    **others: Any,
) -> dict[str, Any]:
    """`pairs` are named without the architecture; None leaves one out. `others` are named with two underscores."""
    metadata = {"general.architecture": arch} | {f"{arch}.{key}": value for key, value in pairs.items()}
    metadata |= {key.replace("__", "."): value for key, value in others.items()}
    metadata = {key: value for key, value in metadata.items() if value is not None}
    said: list[str] = [] if warned is None else warned
    header = Header(metadata, tensors_of(tensors), 0)
    lists = None if factors is None else {"rope_freqs.weight": factors}
    found = read_gguf_config(Path("x.gguf"), header, lists, warn=lambda text, *values: said.append(text % values))
    assert warned is not None or not said
    return found


def refused(*given, **named) -> str:
    with pytest.raises(CheckpointError) as raised:
        config_of(*given, **named)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 1000
    return str(raised.value)


LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "vocab_size": 10,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "pad_token_id": None,
    "eos_token_id": None,
    "torch_dtype": "float32",
}

SHARED = ("vocab_size", "tie_word_embeddings", "bos_token_id", "pad_token_id", "eos_token_id", "torch_dtype")


def test_llama_with_nothing_but_what_it_must_say():
    assert config_of("llama", RMS) == LLAMA


@pytest.mark.parametrize("arch", ["qwen2", "qwen3"])
def test_what_is_read_as_llama_is(arch):
    assert config_of(arch, RMS) == LLAMA | {"model_type": arch}


@pytest.mark.parametrize(
    ("pairs", "changes"),
    [
        ({"attention.head_count_kv": 2}, {"num_key_value_heads": 2}),
        ({"attention.head_count_kv": [2, 2]}, {"num_key_value_heads": 2}),
        ({"attention.head_count_kv": [2]}, {"num_key_value_heads": 2}),
        ({"attention.key_length": 32, "attention.value_length": 32, "rope.dimension_count": 32}, {"head_dim": 32}),
        ({"rope.freq_base": 500000.0}, {"rope_theta": 500000.0}),
        ({"attention.layer_norm_rms_epsilon": float(np.float32(1e-6))}, {"rms_norm_eps": 1e-06}),
        ({"context_length": 1 << 31}, {"max_position_embeddings": 1 << 31}),
        ({"feed_forward_length": 1 << 24}, {"intermediate_size": 1 << 24}),
        ({"vocab_size": 10, "tensor_data_layout": "Meta AI original pth", "attention.causal": True}, {}),
        ({"attention.sliding_window": 0, "expert_count": 0, "expert_used_count": 0}, {}),
        ({"attention.sliding_window": 7}, {"model_type": "mistral", "sliding_window": 7}),
        ({"attention.sliding_window": 1 << 31}, {"model_type": "mistral", "sliding_window": 1 << 31}),
    ],
    ids=str,
)
def test_other_numbers_of_llama(pairs, changes):
    assert config_of("llama", RMS | pairs) == LLAMA | changes


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ({"context_length": (1 << 31) + 1}, f"x.gguf: llama.context_length = {(1 << 31) + 1} is not allowed"),
        ({"embedding_length": (1 << 24) + 1}, f"llama.embedding_length = {(1 << 24) + 1} is not allowed"),
        (
            {"attention.sliding_window": (1 << 31) + 1},
            "sliding_window = 2147483649 is not allowed: a whole number from 0",
        ),
        ({"attention.head_count_kv": []}, "llama.attention.head_count_kv = [] is not allowed: it differs by layer"),
        ({"attention.head_count_kv": [2, 1]}, "head_count_kv = [2, 1] is not allowed: it differs by layer"),
        ({"attention.key_length": 32}, "llama.attention.value_length"),
        ({"attention.causal": False}, "llama.attention.causal = False is not implemented: only True"),
        ({"expert_used_count": 2}, "llama.expert_used_count = 2 is not implemented: only 0"),
        ({"novel": 3}, "x.gguf has keys that tokenmill does not know: llama.novel = 3"),
        ({"vocab_size": 11}, "x.gguf: llama.vocab_size is 11, but token_embd.weight has 10 rows"),
        ({"block_count": 3}, "x.gguf: block_count is 3, but there are tensors of 2 layers"),
        ({"rope.freq_base": 0.0}, "llama.rope.freq_base = 0.0 is not allowed"),
        ({"vocab_size": "\n" * 5000}, "llama.vocab_size is '"),
        ({"block_count": None}, "no 'llama.block_count', which is required"),
        ({"embedding_length": 0}, "llama.embedding_length = 0 is not allowed"),
        ({"attention.head_count": "four"}, "'four' is not allowed"),
        ({"attention.layer_norm_rms_epsilon": -1.0}, "-1.0 is not allowed"),
        ({"attention.value_length": 8}, "attention.value_length = 8 is not implemented: only 16"),
        ({"rope.dimension_count": 8}, "rope.dimension_count = 8 is not implemented"),
        ({"rope.scaling.type": "longrope"}, "'longrope' is not implemented: only 'linear', 'none', 'yarn'"),
        ({"rope.scaling.factor": -4.0}, "rope.scaling.factor = -4.0 is not allowed"),
    ],
    ids=str,
)
def test_numbers_of_llama_that_are_refused(pairs, message):
    if "attention.key_length" in pairs:
        pairs = pairs | {"attention.value_length": 16}
    assert message in refused("llama", RMS | pairs)


def test_keys_of_another_architecture_are_not_read():
    assert config_of("llama", RMS, mamba__novel=3) == LLAMA


def test_keys_that_only_describe_are_warned_of():
    warned: list[str] = []
    assert config_of("llama", RMS, warned=warned, general__novel="x") == LLAMA
    assert warned == ["x.gguf: keys that tokenmill does not know are ignored: general.novel = 'x'"]


@pytest.mark.parametrize(
    ("others", "message"),
    [
        (
            {"general__type": "adapter"},
            "x.gguf is an adapter, not a model: give the model, and this file with --adapter",
        ),
        ({"general__type": "imatrix"}, "general.type = 'imatrix' is not implemented: only 'model'"),
        ({"general__architecture": ["llama"]}, "general.architecture = ['llama'] is not allowed: a text"),
        (
            {"general__architecture": "mamba"},
            "general.architecture = 'mamba' is not implemented: its layers keep a state",
        ),
        ({"tokenizer__ggml__tokens": ["a"] * 11}, "x.gguf: the number of tokenizer.ggml.tokens is 11, but token_embd"),
    ],
)
def test_files_that_are_no_whole_model_of_a_known_kind(others, message):
    assert message in refused("llama", RMS, **others)


def test_a_model_in_one_part_may_say_so():
    for count in (0, 1):
        assert config_of("llama", RMS, split__count=count, general__type="model") == LLAMA


def test_what_only_the_tensors_tell_of_llama():
    head = TENSORS | {"output.weight": (10, 64)}
    assert config_of("llama", RMS, head)["tie_word_embeddings"] is False
    biases = TENSORS | {"blk.0.attn_q.bias": (64,)}
    assert config_of("llama", RMS, biases) == LLAMA | {"attention_bias": True}
    assert config_of("qwen2", RMS, biases) == LLAMA | {"model_type": "qwen2"}, "which always has them"
    assert config_of("llama", RMS, TENSORS | {"blk.0.ffn_up.bias": (96,)}) == LLAMA | {"mlp_bias": True}
    with_window = config_of("llama", RMS | {"attention.sliding_window": 7}, TENSORS | {"blk.0.ffn_up.bias": (96,)})
    assert "mlp_bias" not in with_window
    assert "lacks a tensor that every llama model has; 1 missing: token_embd.weight" in refused(
        "llama", RMS, {name: shape for name, shape in TENSORS.items() if name != "token_embd.weight"}
    )


@pytest.mark.parametrize(
    ("kinds", "dtype"),
    [
        ((Kind.F32, Kind.F32), "float32"),
        ((Kind.F16, Kind.F16), "float16"),
        ((Kind.BF16, Kind.BF16), "bfloat16"),
        ((Kind.F16, Kind.F32), "bfloat16"),
        ((Kind.Q8_0, Kind.Q8_0), "bfloat16"),
    ],
)
def test_the_dtype_is_that_of_all_matrices(kinds, dtype):
    shapes = list(TENSORS.items())
    tensors = {name: (shape, kinds[number % 2]) for number, (name, shape) in enumerate(shapes)}
    tensors |= {"output_norm.weight": ((64,), Kind.F32)}
    assert config_of("llama", RMS, tensors)["torch_dtype"] == dtype


def test_a_padding_token_is_one_of_the_vocabulary_or_none():
    """transformers takes an id of its own for phi3 where none is said, and makes no embedding that lacks it."""
    assert config_of("llama", RMS, tokenizer__ggml__padding_token_id=9)["pad_token_id"] == 9
    assert config_of("llama", RMS, tokenizer__ggml__padding_token_id=10)["pad_token_id"] is None


def test_ends_are_one_id_or_several():
    one = config_of("llama", RMS, tokenizer__ggml__eos_token_id=3, tokenizer__ggml__bos_token_id=1)
    assert (one["bos_token_id"], one["eos_token_id"]) == (1, 3)
    two = config_of("llama", RMS, tokenizer__ggml__eos_token_id=3, tokenizer__ggml__eot_token_id=5)
    assert two["eos_token_id"] == [3, 5]
    numbers = {
        "tokenizer__ggml__eos_token_id": 0,
        "tokenizer__ggml__eot_token_id": 5,
        "tokenizer__ggml__eom_token_id": 7,
    }
    turns = config_of("llama", RMS, **numbers)
    assert turns["eos_token_id"] == [0, 5, 7]


EXPERTS = RMS | {"expert_count": 3, "expert_used_count": 2}
MIXTRAL = LLAMA | {"model_type": "mixtral", "num_local_experts": 3, "num_experts_per_tok": 2, "sliding_window": None}


@pytest.mark.parametrize(
    ("pairs", "changes"),
    [
        ({}, {}),
        ({"attention.sliding_window": 7}, {"sliding_window": 7}),
        ({"expert_feed_forward_length": 96, "expert_weights_norm": True, "expert_weights_scale": 1.0}, {}),
        ({"expert_feed_forward_length": 0, "expert_weights_norm": False, "expert_weights_scale": 0.0}, {}),
        ({"expert_gating_func": 1}, {}),  # softmax
        ({"expert_gating_func": 0}, {}),
    ],
    ids=str,
)
def test_experts(pairs, changes):
    assert config_of("llama", EXPERTS | pairs) == MIXTRAL | changes


def test_the_shared_experts_of_ernie_are_as_wide_as_the_others():
    widths = {"expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 64, "expert_shared_count": 2}
    assert config_of("ernie4_5-moe", EXPERTS | widths)["moe_num_shared_experts"] == 2
    widths["expert_shared_feed_forward_length"] = 65
    said = "ernie4_5-moe.expert_shared_feed_forward_length = 65 is not implemented: only 64"
    assert said in refused("ernie4_5-moe", EXPERTS | widths)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("expert_feed_forward_length", 64),
        ("expert_weights_scale", 2.0),
        ("expert_weights_norm", 1),
        ("expert_weights_norm", "no"),
        ("expert_gating_func", 2),  # sigmoid
    ],
)
def test_experts_that_are_computed_otherwise(key, value):
    assert f"llama.{key} = {value!r} is not implemented" in refused("llama", EXPERTS | {key: value})


NEOX = {
    "model_type": "gpt_neox",
    **{key: LLAMA[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")},
    "max_position_embeddings": 128,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-05,
    "rotary_pct": 0.25,
    "rotary_emb_base": 10000.0,
    "use_parallel_residual": True,
    "attention_bias": False,
    **{key: LLAMA[key] for key in SHARED},
}


@pytest.mark.parametrize(
    ("pairs", "changes"),
    [
        ({}, {}),
        ({"use_parallel_residual": False, "attention.head_count_kv": 4}, {"use_parallel_residual": False}),
        ({"rope.freq_base": 20000.0, "rope.dimension_count": 16}, {"rotary_emb_base": 20000.0, "rotary_pct": 1.0}),
    ],
    ids=str,
)
def test_gpt_neox(pairs, changes):
    assert config_of("gptneox", LAYER | {"rope.dimension_count": 4} | pairs) == NEOX | changes
    tensors = TENSORS | {"blk.0.attn_qkv.bias": (192,)}
    assert config_of("gptneox", LAYER | {"rope.dimension_count": 4}, tensors) == NEOX | {"attention_bias": True}


def test_the_rotated_part_of_a_head_comes_back_as_whole_entries():
    """2 / 98 times 98 is less than 2 in floating point; what readers cut off must be 2."""
    assert int(2 / 98 * 98) == 1
    pairs = LAYER | {"embedding_length": 4 * 98, "rope.dimension_count": 2}
    part = config_of("gptneox", pairs)["rotary_pct"]
    assert part == math.nextafter(2 / 98, 1) and int(part * 98) == 2
    narrow = LAYER | {"embedding_length": 4, "rope.dimension_count": 1}
    assert config_of("gptneox", narrow)["rotary_pct"] == 1.0


def test_gpt_neox_says_what_is_rotated():
    assert "no 'gptneox.rope.dimension_count'" in refused("gptneox", LAYER)


def test_qwen2_has_no_window():
    message = refused("qwen2", RMS | {"attention.sliding_window": 7})
    assert "does not know: qwen2.attention.sliding_window = 7" in message


def test_gpt_neox_with_fewer_heads_for_keys_is_refused():
    pairs = LAYER | {"rope.dimension_count": 4, "attention.head_count_kv": 2}
    assert "gptneox.attention.head_count_kv = 2 is not implemented: only 4" in refused("gptneox", pairs)
    assert "gptneox.attention.key_length = 8 is not implemented: only 16" in refused(
        "gptneox", LAYER | {"rope.dimension_count": 4, "attention.key_length": 8}
    )


GPT2 = {
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 128,
    "n_inner": 96,
    "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2",
    "activation_function": "gelu_new",
    **{key: LLAMA[key] for key in SHARED},
}
BIGCODE = GPT2 | {"model_type": "gpt_bigcode", "activation_function": "gelu_pytorch_tanh", "multi_query": True}


def test_gpt2_and_starcoder():
    assert config_of("gpt2", LAYER) == GPT2
    more = {"feed_forward_length": 256, "rope.freq_base": 3.5, "attention.head_count_kv": 4, "attention.key_length": 16}
    assert config_of("gpt2", LAYER | more) == GPT2, "the width is that of the tensor, and nothing is rotated"
    assert config_of("starcoder", LAYER | {"attention.head_count_kv": 1}) == BIGCODE
    assert config_of("starcoder", LAYER) == BIGCODE
    assert "gpt2.attention.head_count_kv = 1 is not implemented: only 4" in refused(
        "gpt2", LAYER | {"attention.head_count_kv": 1}
    )
    assert "starcoder.attention.head_count_kv = 4 is not implemented: only 1" in refused(
        "starcoder", LAYER | {"attention.head_count_kv": 4}
    )
    assert "gpt2.attention.value_length = 8" in refused("gpt2", LAYER | {"attention.value_length": 8})
    assert "1 missing: blk.0.ffn_up.weight" in refused("gpt2", LAYER, {"token_embd.weight": (10, 64)})


def scaling_of(factors: Sequence[float] | None = None, warned: list[str] | None = None, **numbers: Any):
    pairs = {f"rope.scaling.{key}": value for key, value in numbers.items()}
    found = config_of("llama", RMS | pairs, factors=factors, warned=warned)
    assert {key: value for key, value in found.items() if key != "rope_scaling"} == LLAMA
    return found.get("rope_scaling")


YARN_REMARKS = {"original_context_length": 32, "yarn_ext_factor": 0.5, "yarn_attn_factor": 3.0}


@pytest.mark.parametrize(
    ("numbers", "wanted"),
    [
        ({}, None),
        ({"type": "none", "factor": 4.0, "finetuned": True, **YARN_REMARKS}, None),
        ({"type": "linear", "factor": 1.0, "yarn_beta_fast": 3.0, "yarn_beta_slow": 3.0}, None),
        ({"type": "linear", "factor": 0.0}, None),
        ({"factor": 2.5}, {"rope_type": "linear", "factor": 2.5}),
        ({"type": "yarn", "factor": 1.0}, {"rope_type": "yarn", "factor": 1.0}),
        (
            {"type": "yarn", "factor": 4.0, "original_context_length": 1 << 31},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1 << 31},
        ),
    ],
    ids=str,
)
def test_scalings(numbers, wanted):
    assert scaling_of(**numbers) == wanted


def test_an_older_name_of_the_factor():
    found = [config_of("llama", RMS | {"rope.scale_linear": 4.0} | more) for more in ({}, {"rope.scaling.factor": 2.0})]
    assert [each["rope_scaling"]["factor"] for each in found] == [4.0, 2.0]
    assert "rope_scaling" not in config_of("llama", RMS | {"rope.scale_linear": 0.0})
    assert "llama.rope.scale_linear = -4.0 is not allowed" in refused("llama", RMS | {"rope.scale_linear": -4.0})


FACTORS = [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5]


def test_factors_of_a_tensor_are_one_for_each_pair():
    for numbers in ({}, {"type": "none", "factor": 4.0}, {"type": "linear", "factor": 1.0}):
        assert scaling_of(FACTORS, **numbers) == {"rope_type": "factors", "factors": FACTORS}


@pytest.mark.parametrize(
    ("factors", "numbers"),
    [
        (FACTORS[:-1], {}),
        ([*FACTORS, 5.0], {}),
        ([*FACTORS[:-1], 0.0], {}),
        ([*FACTORS[:-1], math.inf], {}),
        ([*FACTORS[:-1], math.nan], {}),
        (FACTORS, {"factor": 2.0}),
        (FACTORS, {"type": "yarn"}),
    ],
    ids=str,
)
def test_factors_that_do_not_fit(factors, numbers):
    message = refused("llama", RMS | {f"rope.scaling.{key}": value for key, value in numbers.items()}, factors=factors)
    wanted = f"rope_freqs.weight has {len(factors)}, needed are 8 positive numbers and no rope.scaling.type"
    assert message == f"x.gguf: {wanted}"


USUAL = 0.1 * math.log(4.0) + 1.0  # of YaRN's paper, for a stretch of 4


@pytest.mark.parametrize(
    ("numbers", "used", "warning"),
    [
        ({"yarn_attn_factor": USUAL}, {"attention_factor": USUAL}, ""),
        ({"yarn_attn_factor": 1 / USUAL}, {}, ""),
        ({"yarn_attn_factor": 1 / USUAL * 1.001}, {"attention_factor": 1 / USUAL * 1.001}, "yarn_attn_factor"),
        ({"yarn_attn_factor": 1.0, "yarn_ext_factor": -1.0}, {}, ""),
        ({"yarn_attn_factor": 1.0, "yarn_ext_factor": 1.0}, {"attention_factor": 1.0}, "'yarn_attn_factor': 1.0} is"),
        ({"yarn_attn_factor": 0.9, "yarn_ext_factor": -1.0}, {"attention_factor": 0.9}, "'yarn_attn_factor': 0.9} is"),
        ({"yarn_beta_fast": 32.0, "yarn_beta_slow": 1.0}, {"beta_fast": 32.0, "beta_slow": 1.0}, ""),
        ({"yarn_beta_fast": 30.0}, {"beta_fast": 30.0}, "{'yarn_beta_fast': 30.0} is used as transformers does"),
        ({"yarn_beta_slow": 2.0}, {"beta_slow": 2.0}, "{'yarn_beta_slow': 2.0} is used as transformers does"),
        ({"yarn_ext_factor": 0.5}, {}, "rope.scaling.yarn_ext_factor = 0.5 has no effect, as in llama.cpp"),
        ({"yarn_ext_factor": 1.0}, {}, ""),
        ({"yarn_ext_factor": -1.0}, {}, ""),
    ],
    ids=str,
)
def test_the_numbers_of_yarn(numbers, used, warning):
    warned: list[str] = []
    found = scaling_of(warned=warned, type="yarn", factor=4.0, **numbers)
    assert found.pop("rope_type") == "yarn" and found == pytest.approx({"factor": 4.0} | used, rel=1e-6)
    assert len(warned) == bool(warning)
    assert warning in "".join(warned) and all(each.startswith("x.gguf: ") for each in warned)


GEMMA = RMS | {"attention.key_length": 16, "attention.value_length": 16}


def test_what_llama_cpp_itself_writes_for_later_families():
    """llama_model_save_to_file writes 0 for what is not there, and numbers that stand in its code."""
    gemma3 = config_of("gemma3", GEMMA | {"final_logit_softcapping": 0.0, "attn_logit_softcapping": 50.0})
    assert gemma3["final_logit_softcapping"] is None and gemma3["sliding_window"] is None
    assert gemma3["layer_types"] == ["full_attention"] * 2, "no window is none, and Gemma 2 has 4096"
    gemma2 = config_of("gemma2", GEMMA | {"attention.scale": 0.25, "attention.sliding_window_pattern": [1, 0]})
    assert (gemma2["sliding_window"], gemma2["query_pre_attn_scalar"], gemma2["attn_logit_softcapping"]) == (
        4096,
        16,
        50,
    )
    experts = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 0}
    tensors = TENSORS | {"blk.0.ffn_down_exps.weight": (4, 64, 24)}
    assert config_of("olmoe", RMS | experts, tensors)["intermediate_size"] == 24
    hunyuan = RMS | experts | {"expert_shared_count": 0, "expert_shared_feed_forward_length": 24}
    assert config_of("hunyuan-moe", hunyuan, tensors)["moe_topk"] == 2


@pytest.mark.parametrize(
    ("arch", "pairs", "message"),
    [
        (
            "gemma2",
            GEMMA | {"attention.scale": 0.3},
            "attention.scale = 0.3 is not allowed: llama.cpp computes with 0.25",
        ),
        ("olmo", LAYER | {"attention.layer_norm_epsilon": 1e-6}, "only 1e-05 is implemented, as in transformers"),
        ("olmo", LAYER | {"attention.clamp_kqv": -8.0}, "olmo.attention.clamp_kqv = -8.0 is not allowed"),
        ("llama4", RMS | {"attention.sliding_window": 0}, "llama4.attention.sliding_window = 0 is not implemented"),
        ("afmoe", RMS | {"expert_weights_norm": False}, "afmoe.expert_weights_norm = False is not implemented"),
        ("muse-glimmer", RMS | {"attention.sliding_window": 4}, "the norms of Q must have one number for all weights"),
        ("olmo2", RMS | {"attention.sliding_window": 4, "rope.freq_base_swa": 5e5}, "only 10000.0, as of the others"),
        ("glm4moe", RMS | {"expert_gating_func": 1}, "glm4moe.expert_gating_func = 1 is not implemented: only 2"),
        ("dots1", RMS, "no 'dots1.expert_gating_func', which is required"),
        ("apertus", RMS | {"rope.novel": 1}, "keys that tokenmill does not know: apertus.rope.novel = 1"),
        ("granite", RMS, "no 'granite.logit_scale', which is required"),
        ("laguna", RMS | {"attention.head_count": [4, 2, 2]}, "or a whole number, for each of 2 layers"),
        ("laguna", RMS | {"expert_weights_norm": False}, "laguna.expert_weights_norm = False is not implemented"),
        (
            "mimo2",
            RMS | {"attention.key_length": 16},
            "mimo2.attention.sliding_window_pattern = None is not allowed: a list that says which layers have a window",
        ),
        (
            "mimo2",
            RMS
            | {"attention.key_length": 16, "attention.sliding_window_pattern": [0, 1], "attention.head_count_kv": 2},
            "mimo2.attention.head_count_kv = [2, 2] is not allowed: twice as many in layers with a window",
        ),
        ("mistral3", RMS | {"attention.temperature_scale": -0.1}, "temperature_scale = -0.1 is not allowed"),
        ("exaone4", RMS | {"attention.sliding_window": 4, "attention.sliding_window_pattern": [True]}, "for each of 2"),
    ],
)
def test_later_families_are_read_as_strictly(arch, pairs, message):
    assert message in refused(arch, pairs)


def test_the_first_of_four_layers_of_laguna_has_no_window_where_no_key_says_otherwise():
    keys = RMS | EXPERTS | {"attention.sliding_window": 4, "leading_dense_block_count": 1}
    keys |= {"expert_feed_forward_length": 24, "expert_shared_feed_forward_length": 24, "expert_weights_norm": True}
    tensors = TENSORS | {"blk.0.attn_gate.weight": (4, 64)}
    found = config_of("laguna", keys, tensors)
    assert found["layer_types"] == ["full_attention", "sliding_attention"]
    assert found["gating"] == "per-head" and found["mlp_layer_types"] == ["dense", "sparse"]
    for pattern in (2, [False, True]):
        assert config_of("laguna", keys | {"attention.sliding_window_pattern": pattern}, tensors) == found


def test_numbers_of_xielu_are_those_of_transformers():
    with pytest.raises(CheckpointError, match=r"xielu.beta = \[0.5, 0.6\] is not implemented: only 0.5"):
        config_of("apertus", RMS, xielu__beta=[0.5, 0.6])


@pytest.mark.parametrize(("arch", "family"), [("qwen2vl", "qwen2"), ("qwen3vl", "qwen3")])
def test_the_text_part_of_qwen_that_sees_is_qwen(arch, family):
    """llama.cpp gives a token of text equal positions in all sections, and adds nothing to its first layers."""
    sections = gguf.Keys.Rope.DIMENSION_SECTIONS.removeprefix("{arch}.")
    deepstack = gguf.Keys.LLM.NUM_DEEPSTACK_LAYERS.removeprefix("{arch}.")
    found = config_of(arch, RMS | {sections: [4, 2, 2, 0], deepstack: 3})
    assert found == LLAMA | {"model_type": family}
    assert arch in gguf.MODEL_ARCH_NAMES.values()


def test_the_text_part_of_qwen_that_sees_may_have_experts():
    experts = EXPERTS | {"expert_feed_forward_length": 40}
    found = config_of("qwen3vlmoe", experts | {"rope.dimension_sections": [4, 2, 2, 0], "n_deepstack_layers": 3})
    assert found == config_of("qwen3moe", experts)
    assert found["model_type"] == "qwen3_moe" and found["norm_topk_prob"] is True


# The metadata of two files of IBM's, shortened to what this architecture is read by: 4.0 micro has Mamba's sizes too.
GRANITE_40_MICRO = {
    "attention.head_count": 40,
    "attention.head_count_kv": [8] * 40,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.scale": 0.015625,
    "block_count": 40,
    "context_length": 131072,
    "embedding_length": 2560,
    "embedding_scale": 12.0,
    "feed_forward_length": 8192,
    "logit_scale": 10.0,
    "residual_scale": 0.22,
    "rope.dimension_count": 64,
    "rope.freq_base": 1e7,
    "vocab_size": 10,
}
GRANITE_41_3B = GRANITE_40_MICRO | {"attention.head_count_kv": 8}
GRANITE_40_MICRO |= {
    "expert_count": 0,
    "expert_used_count": 0,
    "expert_shared_feed_forward_length": 8192,
    "rope.scaling.finetuned": True,
    "ssm.conv_kernel": 4,
    "ssm.group_count": 1,
    "ssm.inner_size": 5120,
    "ssm.state_size": 256,
    "ssm.time_step_rank": 128,
}


def test_granite_4_without_mamba_layers_is_granite():
    tensors = {"token_embd.weight": (10, 2560), **{f"blk.{i}.attn_q.weight": (2560, 2560) for i in range(40)}}
    older, newer = (config_of("granite", keys, tensors) for keys in (GRANITE_40_MICRO, GRANITE_41_3B))
    assert older == newer and older["model_type"] == "granite" and older["head_dim"] == 64
    assert (older["num_key_value_heads"], older["attention_multiplier"], older["logits_scaling"]) == (8, 0.015625, 10.0)
    other = GRANITE_40_MICRO | {"expert_shared_feed_forward_length": 100}
    assert "expert_shared_feed_forward_length = 100 is not implemented" in refused("granite", other, tensors)


def test_granite_has_experts_or_none_and_may_have_no_positions():
    scale = {"logit_scale": 8.0}
    assert config_of("granite", RMS | scale)["attention_multiplier"] == 0.25, "as Llama's, where no key says it"
    plain = config_of("granitemoe", RMS | scale | {"expert_count": 0, "expert_used_count": 0})
    assert plain["model_type"] == "granite"
    nope = config_of("granite", RMS | scale | {"rope.scaling.finetuned": False})
    assert (nope["model_type"], nope["position_embedding_type"]) == ("granitemoehybrid", "nope")


def test_mistral_3_without_yarn_is_mistral():
    assert config_of("mistral3", RMS)["model_type"] == "mistral"
    yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32}
    found = config_of(
        "mistral3", RMS | yarn | {"attention.temperature_scale": 0.5, "rope.scaling.yarn_log_multiplier": 1.0}
    )
    assert found["model_type"] == "ministral3"
    assert found["rope_scaling"]["llama_4_scaling_beta"] == 0.5 and found["rope_scaling"]["mscale_all_dim"] == 1.0


RECORDED = json.loads(Path(__file__).with_name("converted_keys.json").read_text())


@pytest.mark.parametrize("arch", ["mistral4", "deepseek2"])
def test_queries_of_mistral_4_grow_where_a_key_says_so(arch):
    """Mistral's own format becomes deepseek2. The converter of Hugging Face's leaves the key out."""
    recorded = RECORDED["mistral3-mistral4"].items()
    pairs = {key.removeprefix("mistral4."): value for key, value in recorded if key.startswith("mistral4.")}
    pairs |= {"vocab_size": 10}
    growth = {"attention.temperature_scale": 0.5, "attention.temperature_length": 32}
    found = config_of(arch, pairs | growth | {"expert_gating_func": 1})
    assert (found["model_type"], found["rope_scaling"]["llama_4_scaling_beta"]) == ("mistral4", 0.5)
    assert read_config(found).mixers[0].temperature == (0.5, 32)
    other = growth | {"attention.temperature_length": 64}
    assert "temperature_length = 64 is not implemented: only 32" in refused(arch, pairs | other)
    assert "no 'mistral4.rope.scaling.type'" in refused("mistral4", pairs | {"rope.scaling.type": None})
    said: list[str] = []
    silent = config_of("mistral4", pairs, warned=said)
    assert silent["rope_scaling"]["llama_4_scaling_beta"] == 0
    assert said == [
        "x.gguf has no attention.temperature_scale: queries do not grow after position 32, as in llama.cpp; "
        "in Mistral's own files they do"
    ]


def test_multipliers_of_minicpm3_are_those_of_llama_cpps_code():
    keys = {key.removeprefix("minicpm3."): value for key, value in RECORDED["minicpm3"].items() if "minicpm3." in key}
    found = config_of("minicpm3", keys | {"vocab_size": 10})
    assert (found["scale_emb"], found["scale_depth"], found["dim_model_base"]) == (12, 1.4, 256)
    assert (found["v_head_dim"], found["qk_nope_head_dim"]) == (8, 12)
    assert "minicpm3.attention.head_count_kv = 3" in refused("minicpm3", keys | {"attention.head_count_kv": 3})


def test_long_rope_is_told_by_tensors():
    lists = {f"rope_factors_{name}.weight": [1.0, float(n)] * 4 for n, name in ((2, "short"), (4, "long"))}
    metadata = {"general.architecture": "phi3", "phi3.rope.scaling.attn_factor": 1.25}
    metadata |= {f"phi3.{key}": value for key, value in (RMS | {"rope.scaling.original_context_length": 32}).items()}
    found = read_gguf_config(Path("x.gguf"), Header(metadata, tensors_of(TENSORS), 0), lists)
    assert found["rope_parameters"]["long_factor"] == [1.0, 4.0] * 4
    assert (found["rope_parameters"]["attention_factor"], found["original_max_position_embeddings"]) == (1.25, 32)
