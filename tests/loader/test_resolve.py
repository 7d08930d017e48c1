"""Settings resolved with a config alone: every default, and what cannot be for this model."""

from dataclasses import replace

import pytest

from tests.marks import needs_native
from tokenmill.errors import ConfigError
from tokenmill.loader import resolve as module
from tokenmill.loader.resolve import resolve, resolve_with
from tokenmill.model.families import read_config
from tokenmill.settings.engine_config import EngineConfig

LLAMA = {
    "model_type": "llama",
    "vocab_size": 10,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
}


def model_of(**changes):
    return read_config(LLAMA | changes)


def resolved(model=None, threads=1, **settings):
    settings = {"program": "eager", "scheme": "dense", "device": "cpu", **settings}
    return resolve(EngineConfig(**settings), model or model_of(), threads)


def config_of(model=None, threads=1, **settings):
    return resolved(model, threads, **settings).config


def refused(message, model=None, **settings):
    with pytest.raises(ConfigError, match=message):
        config_of(model, **settings)


@pytest.mark.parametrize(("context", "wanted"), [(96, 96), (2047, 2047), (2048, 2048), (2049, 2048), (131072, 2048)])
def test_the_length_is_the_context_up_to_a_limit(context, wanted):
    assert config_of(model_of(max_position_embeddings=context)).max_length == wanted


def test_lengths_that_are_given():
    assert config_of(max_length=96).max_length == 96 and config_of(max_length=1).max_length == 1
    refused("max_length = 97 is not allowed: at most this model's context, 96", max_length=97)
    assert config_of(block_size=50, max_length=50).block_size == 50
    refused("block_size = 51 is not allowed: at most max_length, which is 50", block_size=51, max_length=50)


def test_one_block_for_each_sequence_unless_blocks_are_shared(tmp_path):
    assert config_of().block_size == 96
    assert config_of(block_size=8).block_size == 8
    assert config_of(prefix_dir=tmp_path).block_size == 32
    assert config_of(prefix_dir=tmp_path, block_size=8).block_size == 8
    assert config_of(prefix_dir=tmp_path, max_length=20).block_size == 20


@pytest.mark.parametrize(
    ("settings", "tokens", "blocks"),
    [
        ({}, 96, 1),
        ({"max_sequences": 3}, 288, 3),
        ({"max_sequences": 3, "block_size": 10}, 300, 30),  # ten blocks for each: whole ones
        ({"block_size": 96}, 96, 1),
        ({"cache_tokens": 50, "block_size": 10}, 50, 5),
        ({"cache_tokens": 51, "block_size": 10}, 51, 6),
        ({"cache_tokens": 1}, 1, 1),
    ],
    ids=str,
)
def test_the_cache_has_whole_blocks_for_all_sequences(settings, tokens, blocks):
    found = resolved(dtype="bfloat16", cache_format="int8", **settings)
    assert (found.config.cache_tokens, found.cache.num_blocks) == (tokens, blocks)
    assert found.cache.block_size == found.config.block_size
    assert (found.cache.dtype, found.cache.format, len(found.cache.layers)) == ("bfloat16", "int8", 3)
    assert {(rows.num_kv_heads, rows.head_dim) for rows in found.cache.layers} == {(2, 16)}


@pytest.mark.parametrize("name", ["prefix_dir", "suffix_dir"])
def test_a_folder_must_not_be_a_file(tmp_path, name):
    (tmp_path / "file").write_text("mine")
    refused(f"{name} = .*file' is not allowed: a directory, which may be new", **{name: tmp_path / "file"})
    for folder in (tmp_path, tmp_path / "new"):
        assert getattr(config_of(**{name: folder}), name) == str(folder)


@pytest.mark.parametrize(
    ("stored", "given", "wanted"),
    [
        ("float16", "auto", "float32"),
        ("bfloat16", "auto", "bfloat16"),
        ("float32", "auto", "float32"),
        ("float16", "bfloat16", "bfloat16"),
        ("float32", "bfloat16", "bfloat16"),
    ],
)
def test_the_dtype_is_the_checkpoint_s_own_but_for_float16_by_torch_on_a_cpu(stored, given, wanted):
    assert config_of(model_of(torch_dtype=stored), dtype=given).dtype == wanted


@needs_native
@pytest.mark.parametrize(("program", "wanted"), [("auto", "float16"), ("native", "float16"), ("eager", "float32")])
def test_float16_stays_for_a_program_that_is_fast_in_it(program, wanted):
    found = resolved(model_of(torch_dtype="float16"), program=program, scheme="auto")
    assert (found.config.dtype, found.cache.dtype) == (wanted, wanted)
    assert found.program_name == ("eager" if program == "eager" else "native")


def test_float16_stays_on_a_gpu(monkeypatch):
    monkeypatch.setattr(module, "find_device", lambda _: "cuda:1")
    config = config_of(model_of(torch_dtype="float16"))
    assert (config.dtype, config.device) == ("float16", "cuda:1")


@pytest.mark.parametrize(
    ("device", "settings", "wanted"),
    [
        ("cpu", {}, "off"),
        ("cuda:0", {}, "on"),
        ("cuda", {"speculate": "off"}, "on"),
        ("cuda", {"speculate": "suffix"}, "off"),
        ("cuda", {"async_scheduling": "off"}, "off"),
        ("cpu", {"async_scheduling": "on"}, "on"),
    ],
    ids=str,
)
def test_steps_overlap_where_the_device_works_aside(monkeypatch, device, settings, wanted):
    monkeypatch.setattr(module, "find_device", lambda _: device)
    assert config_of(**settings).async_scheduling == wanted


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [({}, 15), ({"speculate": "suffix"}, 8), ({"speculate": "multi_step"}, 4), ({"num_draft_tokens": 3}, 3)],
    ids=str,
)
def test_the_number_of_drafts(settings, wanted):
    assert config_of(**settings).num_draft_tokens == wanted


def test_threads_are_those_of_the_caller_unless_they_are_given():
    assert config_of(threads=5).threads == 5
    assert resolve(EngineConfig(program="eager", scheme="dense"), model_of()).config.threads == 1
    assert resolve(EngineConfig(program="eager", scheme="dense", threads=2), model_of(), 5).config.threads == 2


def test_an_unknown_format_of_the_cache_is_refused():
    refused("cache_format = 'int4' is not allowed", cache_format="int4")


def test_what_was_given_and_what_was_chosen():
    given = EngineConfig(program="eager", device="cpu", max_length=10)
    found = resolve(given, model_of())
    assert found.given is given and found.program_name == "eager" and found.config.scheme in ("packed", "dense")
    assert found.program_reason.endswith("; as asked") and found.program_refusals == {}
    numbers = 10 * 64 * 2 + 64 + 3 * (2 * 64 + 2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 96)
    assert resolved(dtype="float32").weight_bytes == 4 * numbers
    assert resolved(dtype="bfloat16").weight_bytes == 2 * numbers


def test_a_config_that_a_load_has_changed():
    before = resolved()
    same = resolve_with(before, replace(before.config, threads=7))
    assert (same.program_name, same.config.threads) == ("eager", 7) and same.program is before.program
    compiled = resolve_with(before, replace(before.config, program="compiled", max_length=50))
    assert (compiled.program_name, compiled.config.max_length) == ("compiled", 50)
    assert compiled.program is not before.program and compiled.given is before.given


@needs_native
def test_codes_of_a_file_are_kept_where_a_program_multiplies_them():
    coded = model_of(stored_as_codes=5.0)
    auto = {"program": "auto", "scheme": "auto"}
    assert (resolved(coded, **auto).program_name, config_of(coded, **auto).scheme) == ("native", "file")
    assert config_of(model_of(), **auto).scheme != "file"
    assert config_of(coded, program="auto", scheme="q8").scheme == "q8"
    assert config_of(coded, program="eager", scheme="auto").scheme != "file"
    refused(
        "program = 'native' is not allowed: none can run this model on cpu", coded, program="native", kernel="gather"
    )


@needs_native
def test_a_program_that_reads_the_cache_by_itself_has_blocks_of_32():
    auto = {"program": "native", "scheme": "auto"}
    assert config_of(**auto).block_size == 32 and config_of(**auto).cache_tokens == 96
    assert config_of(**auto, max_length=40, max_sequences=2).cache_tokens == 128
    assert config_of(**auto, max_length=20).block_size == 20
    assert config_of(**auto, block_size=5).block_size == 5
