"""`--trace` and `--verify`: what each step fed, and whether float32 says the same."""

import json

import pytest
import torch

from tests.tiny_models import prompt
from tokenmill.engine.load import load
from tokenmill.errors import WrongText
from tokenmill.measure.verify import traced, verified

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
    with verified(engine, eager(llama)) as distance:
        engine.generate([START, START[:3]], max_new_tokens=4, ignore_eos=True)
    assert distance.num_rows == 8
    assert 0.97 < distance.min_correlation <= 1 + 1e-9
    assert ("run" in vars(engine.core.loaded.runner)) is False


def test_drafts_are_compared_too(llama):
    engine = load(llama, dtype="float32", speculate="suffix")
    with verified(engine, eager(llama)) as distance:
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
    with pytest.raises(WrongText, match="position 10 is wrong"), verified(engine, reference):
        engine.generate(START, max_new_tokens=8, ignore_eos=True)


def test_the_options(llama, tm):
    arguments = ["generate", llama, "--tokens", "1,2,3", "-n", "3", "--ignore-eos", "--trace", "--verify"]
    code, _, shown = tm(*arguments, "-q")
    assert code == 0
    assert "without a cache" in shown
    assert "12" in shown
    assert "verified 3 rows against float32: correlation at least" in shown
    code, out, shown = tm(*arguments, "-q", "--json")
    assert code == 0
    rows = [json.loads(line) for line in shown.splitlines() if line.startswith("{")]
    assert [row["fed"] for row in rows] == [3, 1, 1]
    assert [token for row in rows for token in row["chosen"]] == json.loads(out)["tokens"]
