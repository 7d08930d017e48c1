"""Drafts of Gemma 4's assistants, beside those of transformers' class; texts stay as they are."""

import json
from functools import cache

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests import assistant_models
from tests.assistant_models import MODELS, save_assistant
from tests.marks import needs_native
from tests.recorded_drafts import check, recorded
from tests.tiny_models import prompt, save
from tokenmill import load
from tokenmill.engine.assistant import is_assistant
from tokenmill.errors import CheckpointError, ConfigError
from tokenmill.loader.pack import save_packed_model
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.weights.checkpoint import open_checkpoint

PROGRAMS = ["eager", pytest.param("native", marks=needs_native)]
SETTINGS = {"dtype": "float32", "packed_cache": False, "device": "cpu", "max_length": 100}
DRAFTING = {**SETTINGS, "speculate": "draft_model", "num_draft_tokens": 3}
GIVEN = prompt(23, seed=5)
NAME = "gemma4_text-plain"


@cache
def _drafts(name, tokens, count):
    return assistant_models.drafts(name, list(tokens), count)


def drafts(name, tokens, count):
    """What the reference drafts, computed once for the programs, whose texts are the same."""
    return _drafts(name, tuple(tokens), count)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("name", MODELS)
def test_drafts_are_those_of_the_assistant(name, program, models):
    assistant = save_assistant(name, models)
    engine = load(save(name, models), program=program, draft_model=assistant, prefix_cache=False, **DRAFTING)
    made = recorded(engine)
    engine.generate(GIVEN, max_new_tokens=8, ignore_eos=True)
    assert {len(tokens) for tokens, _ in made} == {24 + at for at in range(7)}, "none is right, and none is left out"
    check(name, made, drafts)


@pytest.mark.parametrize("program", PROGRAMS)
def test_after_a_prefix_that_was_found_and_tokens_that_were_taken_back(program, models):
    assistant = save_assistant(NAME, models)
    engine = load(save(NAME, models), program=program, draft_model=assistant, block_size=4, **DRAFTING)
    engine.generate(GIVEN, max_new_tokens=4, ignore_eos=True)
    made = recorded(engine)
    engine.generate([*GIVEN, *prompt(9, seed=1)], max_new_tokens=5, ignore_eos=True)
    session = engine.session(prompt(14, seed=2))
    session.generate(max_new_tokens=5, ignore_eos=True)
    session.rewind(9)
    session.append(prompt(5, seed=3))
    session.generate(max_new_tokens=5, ignore_eos=True)
    assert len(made) > 4
    check(NAME, made, drafts)


@needs_native
@pytest.mark.parametrize("cache_format", ["dense", "int8"])
def test_texts_are_those_without_drafts(cache_format, models, caplog):
    path, assistant = save(NAME, models), save_assistant(NAME, models)
    plain = load(path, speculate="off", cache_format=cache_format, **SETTINGS)
    settings = {**SETTINGS, "cache_format": cache_format, "max_sequences": 3, "max_step_tokens": 11}
    drawn = {"seed": 4, "ignore_eos": True, "max_new_tokens": 20}
    requests = [(prompt(length), {**drawn, "temperature": 0.8 * (length % 2)}) for length in (1, 2, 9, 17)]
    for proposer in ("adaptive", "draft_model"):
        engine = load(path, draft_model=str(assistant), speculate=proposer, **settings)
        for given, how in requests:
            assert engine.generate(given, **how).tokens == plain.generate(given, **how).tokens
        assert engine.core.speculation.stats.num_drafted
    assert "failed" not in caplog.text


@needs_native
def test_a_packed_copy_of_the_model(models, tmp_path):
    path, assistant, settings = save(NAME, models), save_assistant(NAME, models), {**DRAFTING, "packed_cache": True}
    load(path, **SETTINGS | {"packed_cache": True})
    engine = load(path, draft_model=str(assistant), **settings)
    made = recorded(engine)
    engine.generate(GIVEN, max_new_tokens=5, ignore_eos=True)
    check(NAME, made, drafts)


def test_embeddings_in_an_order_of_their_own(models):
    """The assistant then looks at the tokens of some clusters alone; here it looks at all tokens."""
    changes = {"whole_use_ordered_embeddings": True, "whole_num_centroids": 1, "whole_centroid_intermediate_top_k": 1}
    assistant = save_assistant("gemma4_text-experts", models, **changes)
    engine = load(save("gemma4_text-experts", models), program="eager", draft_model=str(assistant), **DRAFTING)
    made = recorded(engine)
    engine.generate(GIVEN, max_new_tokens=5, ignore_eos=True)
    assert made


OTHERS = {
    "width": ({"whole_backbone_hidden_size": 40}, r"made for 40 numbers in a row, and this model has 48"),
    "vocabulary": ({"vocab_size": 97}, r"its own has 97 tokens, this model's 211"),
    "heads": ({"head_dim": 20}, r"reads rows with a window of 8, 2 heads of 20 for K and V"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_an_assistant_of_another_model(other, models, tmp_path):
    changes, message = OTHERS[other]
    assistant = save_assistant(NAME, tmp_path, **changes)
    with pytest.raises(ConfigError, match=message):
        load(save(NAME, models), program="eager", draft_model=str(assistant), **DRAFTING)


def test_what_cannot_have_an_assistant(models, llama, tmp_path):
    assistant = save_assistant(NAME, tmp_path)
    with pytest.raises(ConfigError, match="reads rows with a window"):
        load(llama, program="eager", draft_model=str(assistant), **DRAFTING)
    with pytest.raises(ConfigError, match="only with native or eager"):
        load(llama, program="compiled", compile_backend="eager", draft_model=str(assistant), **DRAFTING)
    with pytest.raises(CheckpointError, match="it guesses tokens for another model"):
        load(assistant, **SETTINGS)


@pytest.mark.parametrize("program", PROGRAMS)
def test_an_assistant_with_a_shorter_context(program, models, tmp_path, caplog):
    assistant = save_assistant(NAME, tmp_path, max_position_embeddings=26)
    engine = load(save(NAME, models), program=program, draft_model=str(assistant), **DRAFTING)
    made = recorded(engine)
    engine.generate(GIVEN, max_new_tokens=12, ignore_eos=True)
    assert max(len(tokens) for tokens, _ in made) == 26 and "failed" not in caplog.text


@needs_native
def test_a_packed_model_has_no_assistant(models, tmp_path):
    save_packed_model(open_checkpoint(save(NAME, models)), EngineConfig(), tmp_path / "x.packed", lambda *_: None)
    with pytest.raises(ConfigError, match="whose embedding cannot be read row by row"):
        load(tmp_path / "x.packed", draft_model=str(save_assistant(NAME, models)))


@pytest.mark.parametrize("kind", [["gemma4_assistant"], {"a": 1}, None])
def test_a_directory_of_no_kind_is_no_assistant(kind, tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    assert not is_assistant(str(tmp_path)) and not is_assistant("a" * 5000) and not is_assistant("none")
    (tmp_path / "config.json").write_text('{"model_type": "gemma4_assistant"}')
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    assert is_assistant(f"~/{tmp_path.name}")


def test_a_damaged_assistant(models, tmp_path):
    assistant = save_assistant(NAME, tmp_path)
    file, config = assistant / "model.safetensors", assistant / "config.json"
    tensors = load_file(file)
    save_file({**tensors, "post_projection.weight": torch.zeros(3, 3)}, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"1 misshapen: post_projection\.weight \[3, 3\] where \[48, 32\] goes"):
        load(save(NAME, models), program="eager", draft_model=str(assistant), **DRAFTING)
    save_file({name: each for name, each in tensors.items() if "pre_proj" not in name}, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"1 missing: pre_projection\.weight"):
        load(save(NAME, models), program="eager", draft_model=str(assistant), **DRAFTING)
    text = json.loads(config.read_text())
    text["text_config"]["num_kv_shared_layers"] = 2
    config.write_text(json.dumps(text))
    with pytest.raises(CheckpointError, match="num_kv_shared_layers = 2"):
        load(save(NAME, models), program="eager", draft_model=str(assistant), **DRAFTING)
