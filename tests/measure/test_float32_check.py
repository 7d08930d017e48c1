"""`--trace` and `--check-float32`: what each step fed, and whether float32 says the same."""

import json

import pytest
import torch

from tests.tiny_models import prompt
from tokenmill.engine.load import load
from tokenmill.errors import WrongText
from tokenmill.measure.float32_check import CODES, MIN_CORRELATION, Distance, checked, traced

START = prompt(9, seed=1)


def eager(path):
    return load(path, program="eager", dtype="float32", block_size=4)


@pytest.mark.parametrize("cache", [True, False])
def test_what_was_fed(llama, cache):
    engine = load(llama, cache=cache, max_step_tokens=16, speculate="off")
    with traced(engine) as rows:
        done = engine.generate(START, max_new_tokens=5, ignore_eos=True)
    assert tuple(token for row in rows for token in row.chosen) == done.tokens
    assert [row.without_cache for row in rows] == [9, 10, 11, 12, 13]
    assert [row.fed for row in rows] == ([9, 1, 1, 1, 1] if cache else [9, 10, 11, 12, 13])
    assert all(row.position + row.fed == row.without_cache and row.milliseconds > 0 for row in rows)


@pytest.mark.parametrize("how", [{"dtype": "float32"}, {"dtype": "bfloat16"}, {"dtype": "float32", "scheme": "q8"}])
def test_all_rows_are_compared(llama, how):
    engine = load(llama, **how)
    with checked(engine, eager(llama)) as distance:
        engine.generate([START, START[:3]], max_new_tokens=4, ignore_eos=True)
    assert distance.num_rows == 8
    assert 0.97 < distance.min_correlation <= 1 + 1e-9
    assert ("run" in vars(engine.core.loaded.runner)) is False


def test_drafts_are_compared_too(llama):
    engine = load(llama, dtype="float32", speculate="suffix")
    with checked(engine, eager(llama)) as distance:
        engine.generate([1, 2, 3] * 5, max_new_tokens=12, ignore_eos=True)
    assert distance.min_correlation > 0.9999


def test_wrong_numbers_are_found(llama, monkeypatch):
    engine = load(llama, dtype="float32", speculate="off")
    run = type(engine.core.loaded.program).run
    calls = []

    def wrong(program, step):
        calls.append(step)
        output = run(program, step)
        wrong_RV = torch.flip(output.logits_RV, (1,))
        return output._replace(logits_RV=wrong_RV) if len(calls) == 3 else output

    monkeypatch.setattr(type(engine.core.loaded.program), "run", wrong)
    reference = load(llama, program="eager", dtype="float32", scheme="packed", block_size=4)
    if type(reference.core.loaded.program) is type(engine.core.loaded.program):
        pytest.skip("both run the same program here")
    with pytest.raises(WrongText, match="position 10 is wrong"), checked(engine, reference):
        engine.generate(START, max_new_tokens=8, ignore_eos=True)


def test_the_options(llama, tm):
    arguments = ["generate", llama, "--tokens", "1,2,3", "-n", "3", "--ignore-eos", "--trace", "--check-float32"]
    code, _, shown = tm(*arguments, "-q")
    assert code == 0
    assert "without a cache" in shown
    assert "12" in shown
    assert "checked 3 rows against float32: correlation at least" in shown
    code, out, shown = tm(*arguments, "-q", "--json")
    assert code == 0
    rows = [json.loads(line) for line in shown.splitlines() if line.startswith("{")]
    assert [row["fed"] for row in rows] == [3, 1, 1]
    assert [token for row in rows for token in row["chosen"]] == json.loads(out)["tokens"]


def test_a_distance_by_hand():
    distance = Distance()
    rows = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    distance.add(rows, torch.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 6.5], [1.0, 3.0, 2.0]]))
    assert (distance.num_rows, distance.num_other_choices, distance.max_difference) == (3, 1, 3.5)
    assert distance.min_correlation == pytest.approx(0.5)
    told = "3 rows against float32: correlation at least 0.500000, largest difference 3.5, 1 other likeliest tokens"
    assert str(distance) == told
    distance.add(rows[:1], torch.tensor([[3.0, 2.0, 1.0]]))
    assert distance.min_correlation == pytest.approx(-1.0) and distance.num_rows == 4
    distance.add(rows[:1], rows[:1])
    assert (distance.num_rows, distance.num_other_choices) == (5, 2)


@pytest.mark.parametrize(
    ("dtype", "scheme", "correlation", "is_refused"),
    [
        ("float32", "dense", 0.9998, True),
        ("float32", "dense", 0.99995, False),
        ("bfloat16", "dense", 0.9979, True),
        ("bfloat16", "dense", 0.9981, False),
        ("float32", "q8", 0.9699, True),
        ("float32", "q8", 0.9701, False),
    ],
)
def test_the_bound_depends_on_what_is_computed(llama, monkeypatch, dtype, scheme, correlation, is_refused):
    assert (MIN_CORRELATION["float16"], CODES) == (0.999, 0.97)
    engine = load(llama, program="eager", dtype=dtype, scheme=scheme)
    monkeypatch.setattr(Distance, "add", lambda self, *_: setattr(self, "min_correlation", correlation))
    if is_refused:
        said = r"^position 2 is wrong: 0 rows against float32: .*; at least 0.\d+ was expected$"
        with pytest.raises(WrongText, match=said), checked(engine, eager(llama)):
            engine.generate([1, 2, 3], max_new_tokens=1)
    else:
        with checked(engine, eager(llama)):
            engine.generate([1, 2, 3], max_new_tokens=1)


def test_rows_of_several_sequences_are_each_compared_with_their_own(llama):
    engine = load(llama, program="eager", dtype="float32", max_sequences=3, block_size=4, speculate="off")
    with checked(engine, eager(llama)) as distance:
        engine.generate([START, START[:3], START[3:]], max_new_tokens=3, ignore_eos=True)
    assert distance.num_rows == 9 and distance.num_other_choices == 0
    assert distance.max_difference < 1e-3 and distance.min_correlation > 0.99999


def test_steps_are_numbered_and_tell_every_sequence(llama):
    engine = load(llama, max_sequences=2, block_size=4, speculate="off")
    with traced(engine) as rows:
        done = engine.generate([START, START[:3]], max_new_tokens=2, ignore_eos=True)
    assert [row.step for row in rows] == [1, 1, 2, 2]
    by_sequence = {row.sequence: [] for row in rows}
    for row in rows:
        by_sequence[row.sequence] += row.chosen
    assert list(by_sequence.values()) == [list(each.tokens) for each in done]
    assert [row.position for row in rows[:2]] == [0, 0] and {row.milliseconds for row in rows[:2]} == {
        rows[0].milliseconds
    }
