"""Settings of an engine: every pair that excludes each other, at the border where it does, and other spellings."""

import os

import pytest
import torch

from tokenmill.errors import ConfigError
from tokenmill.settings import engine_config as module
from tokenmill.settings.engine_config import DEFAULT_MAX_LENGTH, DTYPES, EngineConfig, ResolvedConfig
from tokenmill.settings.field import settings_of

CORES = os.cpu_count() or 1
MOST = max(16, 4 * CORES)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"prefix_dir": "d", "prefix_cache": False},
            "prefix_dir = 'd' is not allowed: none, because prefix_cache or cache",
        ),
        (
            {"prefix_dir": "d", "cache": False},
            "prefix_dir = 'd' is not allowed: none, because prefix_cache or cache is off",
        ),
        (
            {"aot_package": "p", "program": "eager"},
            "aot_package = 'p' is not allowed: none, because program is 'eager'",
        ),
        ({"program": "aot"}, "program = 'aot' is not allowed: auto, or aot with an AOT package as aot_package"),
        (
            {"compile": "static", "program": "eager"},
            "compile = 'static' is not allowed: auto or no, because program is",
        ),
        (
            {"async_scheduling": "on", "speculate": "suffix"},
            "async_scheduling = 'on' is not allowed: auto or off, because speculation by 'suffix' reads every token",
        ),
        (
            {"async_scheduling": "on", "suffix_dir": "d"},
            "async_scheduling = 'on' is not allowed: auto or off, because speculation by 'auto' reads every token",
        ),
        (
            {"speculate": "draft_model"},
            "draft_model = None is not allowed: a model, because speculate is 'draft_model'",
        ),
        (
            {"draft_model": "m", "speculate": "off"},
            "draft_model = 'm' is not allowed: none, because speculate is 'off'",
        ),
        (
            {"draft_model": "m", "cache": False},
            "draft_model = 'm' is not allowed: none, because cache is off and guesses",
        ),
        ({"suffix_dir": "d", "speculate": "off"}, "suffix_dir = 'd' is not allowed: none, because speculate is 'off'"),
        ({"suffix_dir": "d", "speculate": "multi_step"}, "suffix_dir = 'd' is not allowed: none, because speculate is"),
        ({"speculate": "suffix", "cache": False}, "speculate = 'suffix' is not allowed: off, because cache is off and"),
        ({"max_sequences": 513}, "max_sequences = 513 is not allowed: at most max_step_tokens, which is 512"),
        (
            {"max_sequences": 9, "max_step_tokens": 8},
            "max_step_tokens = 8 is not allowed: at least max_sequences, which is 9",
        ),
        (
            {"threads": MOST + 1},
            f"threads = {MOST + 1} is not allowed: at most {MOST} on this machine of {CORES} cores",
        ),
        ({"fuse": "qkv,novel"}, "fuse = 'novel' is not allowed: use one of qkv, gate_up, norm, rotary"),
        ({"fuse": ""}, "fuse = '' is not allowed: a text that is not empty"),
        ({"dtype": "int8"}, "dtype = 'int8' is not allowed: use one of auto, float32, bfloat16, float16"),
        ({"compile": "yes"}, "compile = 'yes' is not allowed: use one of auto, no, static, dynamic, fullgraph"),
        ({"compile_phases": "all"}, "compile_phases = 'all' is not allowed: use one of decode, prefill, both"),
        ({"async_scheduling": True}, "async_scheduling = True is not allowed: use one of auto, on, off"),
        ({"fingerprint": "half"}, "fingerprint = 'half' is not allowed: use one of sampled, full"),
        ({"program": "jit"}, "program = 'jit' is not allowed: use one of auto, native, aot, compiled, graphs, eager"),
    ],
    ids=str,
)
def test_settings_that_exclude_each_other(settings, message):
    with pytest.raises(ConfigError) as raised:
        EngineConfig(**settings)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"prefix_dir": "d"},
        {"prefix_cache": False, "cache": False},
        {"aot_package": "p"},
        {"aot_package": "p", "program": "aot"},
        {"compile": "static"},
        {"compile": "fullgraph", "program": "compiled"},
        {"compile": "no", "program": "eager"},
        {"compile": "auto", "program": "native"},
        {"async_scheduling": "on"},
        {"async_scheduling": "on", "speculate": "off"},
        {"async_scheduling": "off", "speculate": "suffix"},
        {"async_scheduling": "auto", "speculate": "suffix"},
        {"draft_model": "m"},
        {"draft_model": "m", "speculate": "draft_model"},
        {"draft_model": "m", "speculate": "adaptive"},
        {"suffix_dir": "d"},
        {"suffix_dir": "d", "speculate": "suffix"},
        {"suffix_dir": "d", "speculate": "adaptive"},
        {"speculate": "off", "cache": False},
        {"max_sequences": 512},
        {"max_sequences": 8, "max_step_tokens": 8},
        {"threads": MOST},
        {"threads": 1},
        {"fuse": "norm"},
    ],
    ids=str,
)
def test_settings_that_go_together(settings):
    config = EngineConfig(**settings)
    assert {name: getattr(config, name) for name in settings} == settings


@pytest.mark.parametrize(
    "name",
    """max_length max_sequences block_size cache_tokens max_step_tokens prefix_limit num_draft_tokens suffix_limit
    threads packed_limit max_waiting""".split(),
)
def test_sizes_begin_with_1(name):
    assert getattr(EngineConfig(**{name: 1}), name) == 1
    for wrong in (0, -1, 1.5, True, "1"):
        with pytest.raises(ConfigError, match=rf"^{name} = {wrong!r} is not allowed: a whole number, 1 or more"):
            EngineConfig(**{name: wrong})


@pytest.mark.parametrize(
    ("settings", "speculates"),
    [
        ({}, False),
        ({"speculate": "off"}, False),
        ({"speculate": "suffix"}, True),
        ({"draft_model": "m"}, True),
        ({"suffix_dir": "d"}, True),
    ],
    ids=str,
)
def test_what_asks_for_speculation(settings, speculates):
    assert EngineConfig(**settings).speculates is speculates


@pytest.mark.parametrize(
    ("given", "name"),
    [
        *((torch.float32, "float32"), (torch.bfloat16, "bfloat16"), ("torch.float16", "float16")),
        *(("fp32", "float32"), ("float", "float32"), ("bf16", "bfloat16"), ("fp16", "float16"), ("half", "float16")),
        *((name, name) for name in ("auto", *DTYPES)),
    ],
    ids=str,
)
def test_spellings_of_a_dtype(given, name):
    assert EngineConfig(dtype=given).dtype == name


def test_other_spellings(tmp_path):
    assert EngineConfig(device=torch.device("cuda:1")).device == "cuda:1"
    assert EngineConfig(cache_format="auto").cache_format == "dense"
    assert EngineConfig(cache_format="int8").cache_format == "int8"
    assert EngineConfig(prefix_dir=tmp_path).prefix_dir == str(tmp_path)


def test_what_is_fused():
    assert EngineConfig().fused == ("qkv", "gate_up")
    assert EngineConfig(fuse="all").fused == ("qkv", "gate_up", "norm", "rotary")
    assert EngineConfig(fuse="none").fused == ()
    assert EngineConfig(fuse="norm,qkv").fused == ("norm", "qkv")


def test_bytes_of_a_number():
    assert {name: getattr(torch, name).itemsize for name in DTYPES} == DTYPES


def test_what_an_engine_is_without_settings():
    """The values that documents and --help tell, beside the many that are auto or None."""
    config = EngineConfig()
    told = {name: getattr(config, name) for name in EngineConfig.__dataclass_fields__}
    fixed = {name: value for name, value in told.items() if value not in ("auto", None)}
    assert fixed == {
        "model": "smollm2-135m",
        "max_sequences": 1,
        "max_loras": 64,
        "max_lora_rank": 512,
        "max_step_tokens": 512,
        "fuse": "qkv,gate_up",
        "prefix_cache": True,
        "cache": True,
        "cache_format": "dense",
        "suffix_limit": 256,
        "tensor_parallel": 1,
        "fingerprint": "sampled",
        "packed_cache": True,
        "compile_phases": "decode",
        "compile_backend": "inductor",
        "compile_in_background": False,
        "aot_fallback": False,
        "exact": False,
        "generation_config": False,
    }


@pytest.mark.parametrize(("cores", "most"), [(None, 16), (1, 16), (4, 16), (5, 20), (8, 32)])
def test_threads_by_the_cores_of_the_machine(monkeypatch, cores, most):
    monkeypatch.setattr(module.os, "cpu_count", lambda: cores)
    assert EngineConfig(threads=most).threads == most
    said = f"threads = {most + 1} is not allowed: at most {most} on this machine of {cores or 1} cores"
    with pytest.raises(ConfigError, match=said):
        EngineConfig(threads=most + 1)


def test_what_the_help_says_of_lengths_is_so():
    assert "Default: the model's context, as far as memory allows." in settings_of(EngineConfig)["max_length"].help
    resolved = ResolvedConfig()
    assert (resolved.threads, resolved.num_draft_tokens, resolved.block_size) == (1, 4, DEFAULT_MAX_LENGTH)
