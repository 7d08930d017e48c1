"""Layers that predict further tokens, and assistants, in several ranks: drafts and texts are those of one process."""

import os
import signal
from contextlib import closing

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests import assistant_models, mtp_models
from tests.assistant_models import save_assistant
from tests.laws.test_law_14_everything import everything_at_once
from tests.marks import needs_native
from tests.mtp_models import MODELS, save_with_mtp
from tests.parallel.ranks_in_threads import RanksInThreads
from tests.parallel.test_eager_ranks import SCARCE, pids, texts
from tests.parallel.test_ranks import ranks_of
from tests.recorded_drafts import check, recorded
from tests.tiny_models import prompt, save
from tokenmill import load
from tokenmill.engine import mtp
from tokenmill.engine.text_rows import ROWS
from tokenmill.errors import CheckpointError, ConfigError, RankLost
from tokenmill.loader import ranks

SETTINGS = {"dtype": "float32", "packed_cache": False, "device": "cpu", "max_length": 96, "threads": 1}
DRAFTING = {**SETTINGS, "speculate": "draft_model", "draft_model": "mtp", "num_draft_tokens": 3}
GIVEN = prompt(23, seed=5)
NAME = "qwen3_5_text"
GREEDY = {"max_new_tokens": 12, "ignore_eos": True}
FEW = {"allowed_token_ids": [3, 5, 7], "temperature": 1.0, "seed": 3, "max_new_tokens": 40, "ignore_eos": True}


@pytest.fixture
def in_threads(monkeypatch):
    monkeypatch.setattr(ranks, "OtherRanks", RanksInThreads)


def said(path, folder, **settings):
    """Texts with batches, forks and found beginnings; greedy ones twice; one of few tokens, which drafts often are."""
    with closing(load(path, **SETTINGS, **SCARCE, **settings)) as engine:
        found = texts(engine, folder), [engine.generate(GIVEN, **GREEDY).tokens for _ in range(2)]
        return *found, engine.generate(GIVEN, **FEW).tokens, engine.core.speculation.stats


def compare(path, folder, program, **settings):
    """Whether texts with drafts of ranks are those without; some drafts are right, and some are not."""
    *wanted, _ = said(path, folder / "one.kv", program=program, speculate="off")
    *found, stats = said(path, folder / "two.kv", program=program, tensor_parallel=2, **settings)
    assert found == wanted and 0 < stats.num_accepted < stats.num_drafted


OWN = {"speculate": "draft_model", "draft_model": "mtp", "num_draft_tokens": 3}


@needs_native
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("name", MODELS)
def test_drafts_are_those_of_the_layer(count, name, models, in_threads):
    with closing(load(save_with_mtp(name, models), program="native", tensor_parallel=count, **DRAFTING)) as engine:
        made = recorded(engine)
        engine.generate(GIVEN, **GREEDY)
        check(name, made, mtp_models.drafts)


@needs_native
@pytest.mark.parametrize("name", [NAME, "deepseek_v3", "glm4_moe"])
def test_texts_are_those_without_drafts(name, models, in_threads, tmp_path):
    compare(save_with_mtp(name, models), tmp_path, "native", **OWN)


@pytest.mark.slow
@pytest.mark.parametrize("program", ["eager", pytest.param("native", marks=needs_native)])
@pytest.mark.parametrize("name", [NAME, "glm4_moe", "deepseek_v3"])
def test_ranks_that_are_processes(name, program, models, tmp_path):
    path, before = save_with_mtp(name, models), ranks_of(os.getpid())
    compare(path, tmp_path, program, **OWN)
    with closing(load(path, program=program, tensor_parallel=2, **DRAFTING)) as engine:
        made = recorded(engine)
        engine.generate(GIVEN, **GREEDY)
        check(name, made, mtp_models.drafts)
    assert {*ranks_of(os.getpid())} <= {*before}


@pytest.mark.slow
@pytest.mark.parametrize("program", ["eager", pytest.param("native", marks=needs_native)])
def test_everything_at_once(program, models, tmp_path):
    settings = {"program": program, "tensor_parallel": 2, "speculate": "adaptive", "draft_model": "mtp"}
    everything_at_once(save_with_mtp(NAME, models), settings, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("program", ["eager", pytest.param("native", marks=needs_native)])
def test_a_rank_that_is_killed_ends_every_request(program, models):
    before = ranks_of(os.getpid())  # of engines that are not collected yet
    engine = load(save_with_mtp(NAME, models), program=program, tensor_parallel=2, **DRAFTING)
    engine.generate(GIVEN, **GREEDY)
    (other,) = pids(engine) if program == "eager" else {*ranks_of(os.getpid())}.difference(before)
    os.kill(other, signal.SIGKILL)
    with pytest.raises(RankLost, match="rank 1"):
        while True:
            engine.generate(GIVEN, **GREEDY)
    engine.close()


@needs_native
def test_it_drafts_by_itself(models, in_threads):
    with closing(load(save_with_mtp(NAME, models), program="native", tensor_parallel=2, **SETTINGS)) as engine:
        engine.generate(GIVEN, **FEW)
        assert engine.core.speculation.draft is not None and engine.core.speculation.stats.num_drafted


@needs_native
def test_logits_of_the_first_tokens_alone(models, in_threads, monkeypatch):
    """They may be the units of few ranks."""
    monkeypatch.setattr(mtp, "num_logits", lambda target: 64)
    found = []
    for count in (1, 3):
        engine = load(save_with_mtp(NAME, models), program="native", tensor_parallel=count, **DRAFTING)
        made = recorded(engine)
        engine.generate(GIVEN, **GREEDY)
        engine.close()
        found.append([(tokens, drafted) for tokens, drafted, _ in made])
    assert found[0] and found[0] == found[1]
    assert all(token < 64 for _, drafted in found[0] for token in drafted)


@needs_native
@pytest.mark.parametrize("count", [2, 3])
def test_plan_counts_the_layer_of_every_rank(count, models, in_threads):
    path = save_with_mtp("glm4_moe", models)
    with closing(load(path, program="native", tensor_parallel=count, **DRAFTING)) as engine:
        loaded = engine.core.speculation.draft._core.loaded
        others = [future.result(60).program for future in engine.core.loaded.program.ranks.beside]
        weights = sum(each.num_weight_bytes for each in (loaded.program, *others))
        width = loaded.model_config.hidden_size
        kept = mtp.max_texts(engine.config) * ROWS * width * 8 + loaded.pool.spec.num_bytes
        told = mtp.planned_mtp(path, engine.core.loaded.resolved)
    of_32_tokens = 32 * 4 * (width + 64)  # counted in the place of the model's embedding and head, which are lent
    assert told == weights + kept + of_32_tokens


@needs_native
def test_a_layer_that_does_not_fit_is_left_out(tmp_path, caplog, in_threads):
    """Before another rank is told of it, so that the model goes on without it."""
    path = save_with_mtp(NAME, tmp_path)
    tensors = load_file(path / "model.safetensors")
    del tensors["mtp.norm.weight"]
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    with closing(load(path, program="native", tensor_parallel=2, **SETTINGS)) as engine:
        assert engine.core.speculation.draft is None and "1 missing: mtp.norm.weight" in caplog.text
        assert len(engine.generate(GIVEN, **GREEDY).tokens) == 12 and not engine.core.loaded.program.ranks.errors
    with pytest.raises(CheckpointError, match=r"1 missing: mtp\.norm\.weight"):
        load(path, program="native", tensor_parallel=2, **DRAFTING)


@needs_native
@pytest.mark.parametrize("name", ["gemma4_text-plain", "gemma4_text"])
def test_an_assistant_in_ranks(name, models, tmp_path, in_threads):
    path, assistant = save(name, models), save_assistant(name, tmp_path)
    drafting = {**DRAFTING, "draft_model": str(assistant)}
    with closing(load(path, program="native", tensor_parallel=2, **drafting)) as engine:
        made = recorded(engine)
        engine.generate(GIVEN, **GREEDY)
        check(name, made, assistant_models.drafts)
    compare(path, tmp_path, "native", **{**OWN, "draft_model": str(assistant)})


@pytest.mark.slow
@needs_native
def test_an_assistant_in_ranks_that_are_processes(models, tmp_path):
    path, assistant = save("gemma4_text-plain", models), save_assistant("gemma4_text-plain", tmp_path)
    compare(path, tmp_path, "native", **{**OWN, "draft_model": str(assistant)})


@pytest.mark.slow
def test_an_assistant_in_ranks_of_program_eager_is_refused(models, tmp_path):
    name = "gemma4_text-small"  # a kv head for each rank
    how = {**DRAFTING, "program": "eager", "draft_model": str(save_assistant(name, tmp_path))}
    with pytest.raises(ConfigError, match="no assistant in ranks of program eager"):
        load(save(name, models), tensor_parallel=2, **how)


def vectors(path, program, count):
    with closing(load(path, program=program, tensor_parallel=count, **SETTINGS)) as engine:
        return engine.embed([prompt(19), prompt(7)])


@needs_native
def test_vectors_are_those_of_one_process(llama, in_threads):
    """They are pooled of the same rows."""
    assert torch.equal(vectors(llama, "native", 1), vectors(llama, "native", 2))


@pytest.mark.slow
def test_vectors_of_program_eager_are_those_of_one_process(llama):
    assert torch.equal(vectors(llama, "eager", 1), vectors(llama, "eager", 2))
