"""The profile: phases add up, traces can be read, levels, refusals, and tokens that stay the same."""

import errno
import itertools
import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import tokenmill
from tests.tiny_models import prompt
from tokenmill import ConfigError
from tokenmill.cli import profile as verb
from tokenmill.measure.operations import costliest
from tokenmill.measure.profile import LEVELS, Profile, breakdown, check_level, profile
from tokenmill.measure.recorder import StepRecord
from tokenmill.measure.trace import FORWARD, PHASES, as_bytes
from tokenmill.settings.sampling_params import SamplingParams

NEW = 6


@pytest.fixture(scope="module")
def engine(llama):
    return tokenmill.load(llama, max_sequences=3, block_size=4, program="eager")


@pytest.fixture
def scripted():
    """A clock that is a quarter of a second later each time."""
    ticks = itertools.count(start=100.0, step=0.25)
    return lambda: next(ticks)


@pytest.fixture
def profiled(tm, llama):
    """Runs `tokenmill profile` on the tiny model; gives exit code, stdout and stderr."""
    return partial(tm, "profile", llama, "--tokens", "1,2,3", "-n", NEW)


def step(begun, *durations, decode=True, tokens=1):
    names = ("begun_s", "planned_s", "ran_s", "sampled_s", "ended_s")
    times = dict(zip(names, itertools.accumulate(durations, initial=begun), strict=True))
    return StepRecord(**times, num_tokens=tokens, num_new=1, num_sequences=1, is_decode=decode)


# ---- phases


def test_phases_of_a_step_add_up_to_it_on_a_scripted_clock(engine, scripted):
    found = profile(engine, [prompt(5)], SamplingParams(max_new_tokens=NEW), clock=scripted)
    assert len(found.steps) == NEW
    # One reading to each mark: each phase is a tick.
    assert all(one.total_s == 1.0 for one in found.steps)
    steps = breakdown(found.steps)
    assert steps["prefill"]["num_tokens"] == 5
    assert steps["decode"]["num_steps"] == NEW - 1
    for kind in steps.values():
        assert kind["ms"] == 1000.0
        assert [one["ms"] for one in kind["phases"].values()] == [250.0] * 4
        assert sum(one["share"] for one in kind["phases"].values()) == 1.0


def test_prefill_and_decode_are_apart_and_shares_are_of_their_own_kind():
    found = breakdown([step(0, 1, 2, 3, 4, decode=False, tokens=7), step(20, 1, 1, 0, 0), step(30, 0, 3, 0, 1)])
    assert found["prefill"]["phases"]["delivery"] == {"ms": 4000.0, "share": 0.4}
    assert found["decode"]["ms"] == 3000.0
    assert found["decode"]["phases"]["forward"] == {"ms": 2000.0, "share": 4 / 6}
    assert "prefill" not in breakdown([step(0, 1, 1, 1, 1)])
    assert breakdown([]) == {}


def test_cost_is_held_against_the_scatter_of_unmeasured_runs():
    found = Profile("light", [], (1.0, 3.0), measured_s=3.0)
    assert found.cost_share == 0.5
    assert found.scatter_share == 1.0
    words = verb.cost_line(
        {
            "plain_s": [1.0, 3.0],
            "measured_s": 3.0,
            "cost_share": 0.5,
            "scatter_share": 1.0,
            "gathering_s": 0.0,
            "same_tokens": True,
        },
        "light",
    )
    assert "+50.0 %, which is within the 100.0 % by which the two differ" in words
    assert Profile("none", [], (1.0,)).cost_share is None


# ---- the same tokens


@pytest.mark.parametrize("level", LEVELS)
def test_tokens_are_those_of_an_unmeasured_generation(engine, level):
    prompts = [prompt(5), prompt(9), prompt(9)]
    params = SamplingParams(max_new_tokens=NEW, temperature=1.0, seed=3)
    plain = engine.generate(prompts, max_new_tokens=NEW, temperature=1.0, seed=3)
    found = profile(engine, prompts, params, level)
    assert [done.tokens for done in found.completions] == [done.tokens for done in plain]
    assert found.same_tokens


def test_without_a_seed_every_run_draws_the_same(engine):
    assert profile(engine, [prompt(5)], SamplingParams(max_new_tokens=NEW, temperature=1.0)).same_tokens


def test_every_run_begins_with_a_cold_cache(engine):
    found = profile(engine, [prompt(16)], SamplingParams(max_new_tokens=2))
    assert found.steps[0].num_tokens == 16


def test_the_engine_is_left_as_it_was(engine):
    profile(engine, [prompt(5)], SamplingParams(max_new_tokens=2))
    with pytest.raises(tokenmill.RequestError):
        profile(engine, [[]], SamplingParams(max_new_tokens=2))
    assert not engine.core.loop.observers


# ---- levels


def test_level_none_runs_once_and_records_nothing(engine):
    found = profile(engine, [prompt(5)], SamplingParams(max_new_tokens=NEW), "none")
    assert (found.steps, found.memory, found.trace, found.measured_s) == ([], [], None, None)
    document = found.document()
    assert document["num_new_tokens"] == NEW
    assert document["tokens_per_s"] > 0


def test_level_light_reads_memory_at_every_step(engine):
    found = profile(engine, [prompt(5)], SamplingParams(max_new_tokens=NEW))
    assert [reading.blocks_in_use for reading in found.memory] == [2, 2, 2, 2, 3, 3]  # 5 tokens and more, 4 to a block
    assert all(reading.resident_bytes > 0 and reading.device_bytes is None for reading in found.memory)
    assert found.operations == []
    json.dumps(found.document())


def test_level_verbose_lists_the_costliest_operations(engine):
    found = profile(engine, [prompt(5)], SamplingParams(max_new_tokens=NEW), "verbose")
    assert 5 < len(found.operations) <= 15
    costs = [one.total_ms for one in found.operations]
    assert costs == sorted(costs, reverse=True)
    assert 0 < sum(one.share for one in found.operations) <= 1.0 + 1e-9
    assert any("mm" in one.name or "linear" in one.name for one in found.operations)
    assert FORWARD not in {one.name for one in found.operations}


def test_kernels_of_a_gpu_come_before_operations_of_the_cpu():
    def event(key, device, cpu_us, device_us, annotation=False):
        kind = SimpleNamespace(name=device)
        return SimpleNamespace(
            key=key,
            count=2,
            device_type=kind,
            self_cpu_time_total=cpu_us,
            self_device_time_total=device_us,
            is_user_annotation=annotation,
        )

    events = [
        event("aten::mm", "CPU", 9000, 0),
        event("gemm", "CUDA", 0, 3000),
        event("softmax", "CUDA", 0, 1000),
        event(FORWARD, "CUDA", 0, 9000),
        event("mine", "CPU", 9000, 0, annotation=True),
    ]
    assert [(one.name, one.total_ms, one.share) for one in costliest(events, 5)] == [
        ("gemm", 3.0, 0.75),
        ("softmax", 1.0, 0.25),
    ]
    assert [one.name for one in costliest(events[:1], 5)] == ["aten::mm"]


@pytest.mark.parametrize("level", ["", "loud", "None"])
def test_a_level_that_does_not_exist_is_refused_in_one_line(level):
    with pytest.raises(ConfigError, match=r"--level = .* use one of none, light, verbose"):
        check_level(level, "--level")


# ---- the trace


def test_counters_follow_memory_and_tokens(engine):
    found = profile(engine, [prompt(5)], SamplingParams(max_new_tokens=NEW))
    events = json.loads(as_bytes(found.trace))["traceEvents"]
    counters = [one for one in events if one["ph"] == "C"]
    blocks = [one["args"]["blocks"] for one in counters if one["name"] == "cache blocks in use"]
    assert blocks == [reading.blocks_in_use for reading in found.memory]
    assert [one["args"]["tokens"] for one in counters if one["name"] == "tokens per step"] == [5, 1, 1, 1, 1, 1]
    assert sum(one["name"] == "resident memory, MB" for one in counters) == NEW
    assert {one["ph"] for one in events} == {"M", "X", "C"}
    assert all(one["ts"] >= 0 for one in events if one["ph"] != "M")


def test_verbose_trace_has_the_steps_and_torchs_operations_in_one_time(engine):
    found = profile(engine, [prompt(5)], SamplingParams(max_new_tokens=2), "verbose")
    events = json.loads(as_bytes(found.trace))["traceEvents"]
    own = [one for one in events if one.get("cat") == "phase" and one["name"] == "forward"]
    marked = [one for one in events if one["name"] == FORWARD and one["cat"] == "user_annotation"]
    assert len(own) == len(marked) == 2
    operations = [one for one in events if one.get("cat") == "cpu_op" and "linear" in one["name"]]
    assert operations
    first, last = own[0]["ts"], own[-1]["ts"] + own[-1]["dur"]
    # Up to what entering a mark takes, also where the process has to wait then. Clocks that were not brought together
    # differ by the time since this machine started.
    assert all(first - 1e7 < one["ts"] < last + 1e7 for one in operations)
    assert any(one["name"].startswith("allocated by torch on CPU") for one in events)


# ---- the verb


def test_the_verb_writes_a_trace_and_says_what_it_cost(profiled, tmp_path):
    target = tmp_path / "trace.json"
    code, out, err = profiled("-o", target)
    assert code == 0
    assert {one["name"] for one in json.loads(target.read_text())["traceEvents"]} >= set(PHASES)
    assert [file.name for file in tmp_path.iterdir()] == ["trace.json"]  # nothing temporary is left
    for word in (*PHASES, "prefill", "decode", "cost of measuring", "same tokens", "cache blocks"):
        assert word in out
    assert "ui.perfetto.dev" in err


def test_the_verbs_json_is_one_document(profiled):
    code, out, err = profiled("--json", "-q", "--level", "verbose", "--seed", 4, "--tokens", "4,5")
    document = json.loads(out)
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert document["level"] == "verbose"
    assert document["num_prompt_tokens"] == 5
    assert document["num_new_tokens"] == 2 * NEW
    assert len(document["hashes"]) == 2
    assert document["cost"]["same_tokens"] is True
    assert len(document["cost"]["plain_s"]) == 2
    assert document["operations"][0]["calls"] > 0
    assert len(document["memory"]) == sum(kind["num_steps"] for kind in document["steps"].values())
    assert sum(kind["num_new"] for kind in document["steps"].values()) == 2 * NEW
    assert document["settings"]["seed"] == 4
    assert document["trace"] is None
    assert document["program"]["name"]


def test_level_none_is_one_line(profiled):
    code, out, err = profiled("--level", "none", "-q")
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert "3 prompt + 6 new tokens" in out


def test_what_cannot_be_written_is_refused_before_the_model_is_loaded(profiled, tmp_path, monkeypatch):
    monkeypatch.setattr(verb, "load_engine", lambda *_: pytest.fail("the model was loaded"))
    (tmp_path / "file").write_text("")
    for arguments, words in (
        (["-o", tmp_path / "file" / "trace.json"], "Not a directory"),
        (["-o", tmp_path], "is not a file: give the name of one with --output"),
        (["-o", "/dev/full"], "/dev/full is not a file"),
        (["-o", tmp_path / "file"], "is there and is not a trace of tokenmill profile: give another name, or --force"),
        (["-o", tmp_path / "trace.json", "--level", "none"], "none makes no trace"),
        (["--level", "loud"], "--level = 'loud' is not allowed: use one of none, light, verbose"),
    ):
        code, out, err = profiled(*arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert words in err
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_only_a_trace_is_replaced_without_force(profiled, tmp_path):
    target = tmp_path / "trace.json"
    target.write_text("mine")
    assert profiled("-o", target, "-q")[0] == 2 and target.read_text() == "mine"
    assert profiled("-o", target, "-q", "--force")[0] == 0
    for level in ("verbose", "light"):
        assert profiled("-o", target, "-q", "--level", level)[0] == 0
        assert json.loads(target.read_text())["traceEvents"]


def test_a_full_disk_is_found_before_the_model_is_loaded(profiled, tmp_path, monkeypatch):
    monkeypatch.setattr(verb, "load_engine", lambda *_: pytest.fail("the model was loaded"))

    def full(self, data):
        self.touch()
        raise OSError(errno.ENOSPC, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_bytes", full)
    code, out, err = profiled("-o", tmp_path / "trace.json")
    assert (code, out) == (2, "")
    assert err == f"error: {tmp_path / 'trace.json'} cannot be written: No space left on device\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("json", [[], ["--json"]])
def test_a_disk_that_fills_meanwhile_costs_the_trace_alone(profiled, tmp_path, monkeypatch, json):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(verb, "writing", full)
    code, out, err = profiled("-o", tmp_path / "trace.json", "-q", *json)
    assert code == 2 and ('"trace": null' if json else "cost of measuring") in out
    assert err.startswith(f"error: {tmp_path / 'trace.json'} cannot be written: No space") and err.count("\n") == 1


def test_a_prompt_without_a_tokenizer_is_refused_in_one_line(tm, llama):
    code, _, err = tm("profile", llama, "-q")
    assert code == 2 and "has no tokenizer" in err


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_kernels_and_device_memory_are_listed(llama):
    engine = tokenmill.load(llama, device="cuda")
    found = profile(engine, [prompt(5)], SamplingParams(max_new_tokens=NEW), "verbose")
    assert found.same_tokens
    assert all(reading.device_bytes for reading in found.memory)
    assert not any(one.name.startswith("aten::") for one in found.operations)
