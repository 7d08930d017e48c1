"""A series of points, the ladder, shapes without files, the machine's limits: rows whatever happens to one of them."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from tests.tiny_models import save
from tokenmill.bench import series
from tokenmill.bench.card import card_of, card_rows
from tokenmill.bench.ladder import climb, rungs
from tokenmill.bench.points import Point
from tokenmill.bench.rows import COLUMNS
from tokenmill.bench.series import Series
from tokenmill.bench.shapes import SHAPES, Shape, find_shape
from tokenmill.engine.load import load_checkpoint
from tokenmill.errors import CapacityError, ConfigError, WrongText
from tokenmill.hub.progress import Silent
from tokenmill.measure import machine
from tokenmill.measure.cost import Storage, decode_traffic, prefill_traffic
from tokenmill.measure.machine import Limits
from tokenmill.model.families import read_config
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.weights.checkpoint import open_checkpoint

LIMITS = Limits("cpu", "a processor", 2, 2, 40.0, 30.0, 160.0, 90.0, 200.0, 400.0, 800.0)


@pytest.fixture
def tiny(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(series, "limits", lambda device, threads: LIMITS)
    path = save("llama", tmp_path_factory.mktemp("models"))
    return Series(open_checkpoint(path), Silent(), repetitions=2, probe=lambda: 40.0)


# ---- series


def test_every_point_gives_a_row_with_every_column(tiny):
    points = [Point(16, 4, batch=2), Point(16, 0), Point(0, 8, depth=20)]
    rows = list(tiny.rows(points, EngineConfig(), "here"))
    assert [row["test"] for row in rows] == ["pp16", "tg8 @ d20", "pp16+tg4 x2"], "small batches first"
    for row in rows:
        assert row["status"] == "ok" and row["label"] == "here" and not row["reason"]
        assert set(row) <= set(COLUMNS)
        assert row["repetitions"] == 2 and row["machine_read_gb_s"] == 40.0
        assert row["text_check"] == "none: no reference for this model"
    assert rows[0]["prefill_ms"] > 0 and rows[0].get("decode_ms") is None
    assert rows[1]["decode_ms"] > 0 and rows[1].get("prefill_ms") is None
    assert rows[2]["cache_used_mb"] == pytest.approx(2 * 20 * 2 * 2 * 2 * 8 * 4 / 1e6), (
        "2·layers·heads·dim·length·bytes"
    )


def test_a_point_that_is_refused_costs_only_itself(tiny):
    points = [Point(16, 4), Point(120, 60), Point(8, 4, batch=2, depth=8)]
    rows = {row["test"]: row for row in tiny.rows(points, EngineConfig())}
    assert rows["pp16+tg4"]["status"] == "ok"
    assert rows["pp120+tg60"]["status"] == "refused" and "128" in rows["pp120+tg60"]["reason"]
    assert rows["pp8+tg4 @ d8 x2"]["status"] == "refused" and "--depth" in rows["pp8+tg4 @ d8 x2"]["reason"]


def test_a_point_that_does_not_fit_is_marked_before_it_is_tried(tiny, monkeypatch):
    monkeypatch.setattr(series, "free_bytes", lambda _: 800_000)
    rows = list(tiny.rows([Point(8, 4), Point(8, 4, batch=100)], EngineConfig(dtype="float32")))
    assert [row["status"] for row in rows] == ["ok", "out of memory"]
    assert "800.0 kB available" in rows[1]["reason"]


def test_memory_that_runs_out_in_the_middle_is_marked_and_the_series_goes_on(tiny, monkeypatch):
    measure = series.measure_point

    def measure_point(engine, point, *arguments, **keywords):
        if point.new == 4:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")
        return measure(engine, point, *arguments, **keywords)

    monkeypatch.setattr(series, "measure_point", measure_point)
    rows = list(tiny.rows([Point(8, 4), Point(8, 5)], EngineConfig()))
    assert [row["status"] for row in rows] == ["out of memory", "ok"]


def test_tokens_that_change_between_repetitions_are_a_failure(tiny, monkeypatch):
    take = series.measure_point

    def measure_point(*arguments, **keywords):
        measured = take(*arguments, **keywords)
        return replace(measured, repeats=False)

    monkeypatch.setattr(series, "measure_point", measure_point)
    (row,) = tiny.rows([Point(8, 4)], EngineConfig())
    assert row["status"] == "failed" and "run again, gave other tokens" in row["reason"]


# ---- ladder


@pytest.mark.slow
def test_the_ladder_climbs_what_the_registries_have(tiny):
    steps = rungs(EngineConfig(), read_config(tiny.checkpoint.config))
    with_own = rungs(EngineConfig(draft_model="q4"), read_config(tiny.checkpoint.config))
    assert with_own[-1].settings == {"speculate": "draft_model", "draft_model": "q4"}
    assert with_own[:-1] == steps[:-1]
    config = EngineConfig(compile_backend="eager")  # the others take ten seconds
    rows = list(climb(tiny, config, steps, Point(20, 6)))
    assert [row["label"] for row in rows] == [rung.label for rung in steps if rung.refused is None]
    assert len({row["hash"] for row in rows if row["scheme"] not in ("q8", "q4")}) == 1, (
        "float32: the same text on every rung"
    )
    assert rows[0]["over_below"] is None and rows[0]["over_first"] == 1
    for below, row in pairwise(rows):
        assert row["over_below"] == pytest.approx(row["decode_tok_s"] / below["decode_tok_s"])
    assert (rows[0]["cache"], rows[2]["block_size"], rows[-2]["speculate"]) == (False, 16, "suffix")
    assert rows[-1]["speculate"] == "draft_model" and rows[-1]["drafted"] > 0


# ---- shapes


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_is_a_config_that_can_be_read(name):
    assert read_config(find_shape(name).config).num_layers >= 12


def test_a_shape_runs_with_random_weights(monkeypatch):
    shape = Shape("gpt2", n_layer=2, vocab_size=500, n_embd=96)
    engine = load_checkpoint(shape, EngineConfig(max_length=64, dtype="float32"))
    done = engine.generate([1, 2, 3], max_new_tokens=8, ignore_eos=True)
    assert len(done.tokens) == 8 and torch.isfinite(engine.logits([1, 2, 3])).all()
    monkeypatch.setattr(series, "limits", lambda device, threads: LIMITS)
    (row,) = Series(shape, Silent(), repetitions=1, probe=lambda: 40.0).rows([Point(8, 4)], EngineConfig())
    assert row["text_check"] == "none: random weights" and row["status"] == "ok"


# ---- what it costs, and what the machine can


def test_traffic_by_hand():
    model = read_config(SHAPES["llama-7b"])
    matrices = 32 * (4 * 4096**2 + 3 * 4096 * 11008) + 32000 * 4096
    norms = 65 * 4096
    step = decode_traffic(model, Storage.plain("bfloat16"), 1, 1000)
    assert step.read_bytes == 2 * (matrices + norms) + 1000 * 2 * 32 * 4096 * 2
    assert step.operations == 2 * (matrices + norms) + 4 * 32 * 4096 * 1000
    several = decode_traffic(model, Storage.plain("bfloat16"), 4, 1000)
    assert several.operations == 4 * step.operations
    assert several.read_bytes - step.read_bytes == 3 * 1000 * 2 * 32 * 4096 * 2
    prompt = prefill_traffic(model, Storage.plain("bfloat16"), 1, 100)
    head = 32000 * 4096
    assert prompt.operations == 100 * (2 * (matrices + norms - head) + 4 * 32 * 4096 * 50) + 2 * head
    assert step.floor_s(50e9, 1e15) == step.read_bytes / 50e9
    assert step.floor_s(1e15, 2e12) == step.operations / 2e12


def test_a_window_and_experts_are_read_in_part_only():
    config = {**SHAPES["mixtral-8x7b"], "sliding_window": 100}
    model = read_config(config)
    one, two = (
        decode_traffic(model, Storage.plain("bfloat16"), 1, 100),
        decode_traffic(model, Storage.plain("bfloat16"), 1, 5000),
    )
    assert one.read_bytes == two.read_bytes
    expert = 32 * 3 * 4096 * 14336
    assert decode_traffic(model, Storage.plain("bfloat16"), 2, 0).read_bytes - decode_traffic(
        model, Storage.plain("bfloat16"), 1, 0
    ).read_bytes == (pytest.approx(1.5 * 2 * expert, rel=1e-3)), "of 8 experts two tokens choose 3.5 on average"


def test_the_card_names_the_floor_of_every_point():
    model = read_config(SHAPES["smollm2-135m"])
    card = card_of(EngineConfig(max_length=2048), model, LIMITS, [Point(512, 0), Point(0, 128)])
    assert card["parameters"] == 134_515_008 and card["cache_bytes_per_token"] == 23040
    assert card["floor_tok_s"]["tg128"] == pytest.approx(40e9 / 270e6, rel=0.02)
    assert any("135" in text or "134.5" in text for _, text in card_rows(card))


@pytest.mark.long
def test_measuring_the_machine_gives_every_figure(monkeypatch):
    monkeypatch.setattr(machine, "FAR_BYTES", 2**22)
    monkeypatch.setattr(machine, "CACHED_BYTES", 2**20)
    threads = torch.get_num_threads()
    found = machine.measure(torch.device("cpu"), 1)
    assert torch.get_num_threads() == threads
    assert min(found.read_gb_s, found.cached_read_gb_s, found.float32_gflop_s, found.bfloat16_gflop_s) > 0
    assert found.copy_to_device_gb_s is None


# ---- what a row says of a failure, and which check there is


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (MemoryError(), "out of memory", "MemoryError"),
        (CapacityError("memory", 10, 5, "batch"), "out of memory", None),
        (RuntimeError("cannot\n  allocate 5 bytes"), "out of memory", "cannot allocate 5 bytes"),
        (ConfigError("depth", 1, "0"), "refused", "depth = 1 is not allowed: 0"),
        (RuntimeError("x" * 400), "failed", "x" * 300),
        (RuntimeError(), "failed", "RuntimeError"),
    ],
)
def test_why_there_are_no_figures(error, status, reason, tiny):
    row = tiny._marked(Point(8, 4, batch=2), EngineConfig(threads=3), "here", error)
    assert (row["status"], row["reason"]) == (status, reason or str(error))
    assert (row["test"], row["batch"], row["threads"], row["label"]) == ("pp8+tg4 x2", 2, 3, "here")
    assert set(row) <= set(COLUMNS)


def test_which_text_is_compared(tiny, monkeypatch):
    asked = []
    monkeypatch.setattr(series, "check_text", lambda engine, reference: asked.append((engine, reference)) or "right")
    assert tiny._check("engine") == "none: no reference for this model"
    monkeypatch.setattr(series, "reference_for", lambda path: {"a": "1"})
    assert tiny._check("engine") == "right" and asked == [("engine", {"a": "1"})]
    tiny.check = False
    assert tiny._check("engine") == "off" and len(asked) == 1
    assert Series(find_shape("gpt2"), Silent())._check("engine") == "none: random weights"


def test_an_engine_that_says_something_else_is_not_measured(tiny, monkeypatch):
    def wrong(*_):
        raise WrongText("1 of 2 texts")

    monkeypatch.setattr(series, "reference_for", lambda path: {"a": "1"})
    monkeypatch.setattr(series, "check_text", wrong)
    with pytest.raises(WrongText, match="1 of 2 texts"):
        list(tiny.rows([Point(8, 2)], EngineConfig()))


def test_what_an_engine_is_made_with(tiny):
    config = tiny._config_for([Point(16, 4, batch=3), Point(100, 4, batch=3)], EngineConfig(max_step_tokens=2))
    assert (config.max_length, config.max_sequences, config.max_step_tokens) == (104, 3, 3)
    assert config.prefix_cache is False
    assert tiny._config_for([Point(4, 4)], EngineConfig()).max_length == 64
    assert tiny._config_for([Point(4, 4)], EngineConfig(max_length=99)).max_length == 99
    bare = tiny._config_for([Point(600, 4, batch=3)], EngineConfig(cache=False))
    assert bare.max_step_tokens == max(EngineConfig().max_step_tokens, 3 * 604)
    with pytest.raises(ConfigError, match="the depth of one sequence would mix"):
        tiny._config_for([Point(4, 4, batch=2, depth=1)], EngineConfig())
    tiny._config_for([Point(0, 4, batch=2, depth=1)], EngineConfig())
    tiny._config_for([Point(4, 4, batch=1, depth=1)], EngineConfig())


def test_limits_are_measured_once_for_each_number_of_threads(tiny, monkeypatch):
    asked = []

    def measured(device, threads):
        asked.append((str(device), threads))
        return replace(LIMITS, threads=threads)

    monkeypatch.setattr(series, "limits", measured)
    config = EngineConfig(device="cpu", threads=1)
    assert tiny.limits(config) is tiny.limits(config)
    tiny.limits(replace(config, threads=2))
    assert asked == [("cpu", 1), ("cpu", 2)]


def test_what_does_not_fit_is_refused_before_it_is_made(tiny, monkeypatch):
    config = EngineConfig(device="cpu", dtype="float32", max_length=64)
    model = read_config(tiny.checkpoint.config)
    needed = series.cost_of(series.resolve(config, model)).total_bytes
    monkeypatch.setattr(series, "free_bytes", lambda device: needed)
    tiny._check_memory(config)
    monkeypatch.setattr(series, "free_bytes", lambda device: needed - 1)
    with pytest.raises(CapacityError, match="batch, prompt or new tokens"):
        tiny._check_memory(config)
