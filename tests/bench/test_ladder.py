"""The ladder: which rungs there are, what each adds, and the factors between them, on rates that are told here."""

import pytest

from tests.tiny_models import TINY
from tokenmill.bench.ladder import Rung, climb, rungs
from tokenmill.bench.points import Point
from tokenmill.kernels import native_library
from tokenmill.model.families import read_config
from tokenmill.settings.engine_config import EngineConfig

KIND, NUMBERS = TINY["llama"]
MODEL = read_config({"model_type": KIND, **NUMBERS})


def test_the_rungs_from_the_bottom_up():
    found = rungs(EngineConfig(dtype="float32", device="cpu"), MODEL)
    labels = [rung.label for rung in found]
    plain = {"program": "eager", "scheme": "dense"}
    assert [(rung.label, rung.settings) for rung in found[:8]] == [
        ("no cache", {**plain, "cache": False}),
        ("eager, static cache", plain),
        ("eager, paged cache", {**plain, "block_size": 16}),
        ("eager, nothing fused", {**plain, "fuse": "none"}),
        ("eager, qkv fused", {**plain, "fuse": "qkv"}),
        ("eager, qkv,gate_up fused", {**plain, "fuse": "qkv,gate_up"}),
        ("eager, qkv,gate_up,norm fused", {**plain, "fuse": "qkv,gate_up,norm"}),
        ("eager, qkv,gate_up,norm,rotary fused", {**plain, "fuse": "qkv,gate_up,norm,rotary"}),
    ]
    assert labels[8:] == [
        "eager, packed weights", "graphs, dense weights", "compiled, dense weights", "aot, dense weights",
        *(f"native, {scheme} weights" for scheme in ("dense", "q8", "q4", "file")),
        "fastest, suffix", "fastest, draft model q8",
    ]  # fmt: skip
    assert [rung.on_fastest for rung in found] == [False] * 16 + [True] * 2
    assert found[-2].settings == {"speculate": "suffix"}
    assert found[-1].settings == {"speculate": "draft_model", "draft_model": "q8"}


def test_what_refuses_says_why(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    found = {rung.label: rung.refused for rung in rungs(EngineConfig(dtype="float32", device="cpu"), MODEL)}
    assert "with an AOT package" in found["aot, dense weights"]
    assert "runs on a GPU" in found["graphs, dense weights"]
    assert found["eager, static cache"] is None
    if native_library.is_usable():
        assert found["native, dense weights"] is None
    gathers = EngineConfig(dtype="float32", device="cpu", kernel="gather")
    assert "native: " in {rung.label: rung.refused for rung in rungs(gathers, MODEL)}["native, dense weights"]


def test_another_draft_model_is_named():
    config = EngineConfig(dtype="float32", device="cpu", draft_model="q4")
    assert rungs(config, MODEL)[-1].label == "fastest, draft model q4"


class Told:
    """A series that gives rows as they are told for each label, and keeps the settings of each."""

    def __init__(self, **rows):
        self.told, self.configs = rows, {}

    def rows(self, points, config, label):
        self.configs[label] = config
        rate = self.told[label]
        yield {"test": points[0].title, "cache": config.cache} | ({} if rate is None else {"decode_tok_s": rate})


def test_factors_over_the_rung_below_and_over_the_first():
    series = Told(a=None, b=10.0, c=40.0, d=None, e=20.0)
    steps = [Rung(label) for label in "abcde"] + [Rung("f", refused="not here")]
    rows = list(climb(series, EngineConfig(), steps, Point(8, 4)))
    assert [(row["over_below"], row["over_first"]) for row in rows] == [
        (None, None), (None, 1.0), (4.0, 4.0), (None, None), (0.5, 2.0),
    ]  # fmt: skip
    assert list(series.configs) == list("abcde")


def test_some_rungs_stand_on_the_fastest_one_that_has_a_cache():
    series = Told(bare=99.0, slow=10.0, quick=30.0, tie=30.0, guessing=50.0, other=20.0)
    steps = [
        Rung("bare", {"cache": False}),
        Rung("slow", {"block_size": 4}),
        Rung("quick", {"block_size": 8}),
        Rung("tie", {"block_size": 16}),
        Rung("guessing", {"speculate": "suffix"}, on_fastest=True),
        Rung("other", {"threads": 1}, on_fastest=True),
    ]
    list(climb(series, EngineConfig(speculate="off"), steps, Point(8, 4)))
    assert series.configs["guessing"].block_size == 8 and series.configs["guessing"].speculate == "suffix"
    assert series.configs["other"].speculate == "suffix" and series.configs["other"].threads == 1
    assert series.configs["slow"].speculate == "off" and series.configs["tie"].block_size == 16
    assert series.configs["tie"].cache


def test_a_draft_model_is_of_its_own_rung_alone():
    series = Told(a=1.0, b=1.0)
    config = EngineConfig(draft_model="q4")
    steps = [Rung("a"), Rung("b", {"draft_model": "q8"})]
    list(climb(series, config, steps, Point(8, 4)))
    assert (series.configs["a"].draft_model, series.configs["b"].draft_model) == (None, "q8")


@pytest.mark.parametrize("program", ["eager", "native"])
def test_a_program_of_the_user_does_not_matter(program):
    assert len(rungs(EngineConfig(dtype="float32", device="cpu", program=program), MODEL)) == 18
