"""The traces of drafts that a user sees: colours, figures, JSON, benchmarks."""

import json
import re

import pytest

GREEN = "\x1b[32m"


@pytest.fixture
def drafting(model):
    """A draft model that is the model itself, so every draft is accepted."""
    text = ["-p", "w1 w2 w3", "-n", 12, "--ignore-eos"]
    return ["generate", model, *text, "--speculate", "draft_model", "--draft-model", model, "--num-draft-tokens", 3]


def test_the_text_is_the_same_and_accepted_drafts_are_green(tm, drafting, monkeypatch):
    plain = tm(*drafting)
    code, out, err = tm(*drafting, "--show-draft")
    assert (code, out) == plain[:2]  # without colours, since this is no terminal
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    shown = tm(*drafting, "--show-draft", "-q")[1]
    assert re.sub(r"\x1b\[\d+m", "", shown) == out
    assert shown.count(GREEN) == 8 and not shown.startswith(GREEN)  # of 12 tokens the target chose every fourth
    assert "drafts: 8 of 8 drafts accepted, 2.7 in a pass (2: 1, 3: 2); " in err


def test_figures_say_how_many_were_accepted(tm, drafting, model):
    assert re.search(r" · \d+ of \d+ drafts accepted · ", tm(*drafting)[2])
    assert "accepted" not in tm("generate", model, "-p", "w1", "-n", 2)[2]


def test_json_has_all_of_it(tm, drafting):
    found = json.loads(tm(*drafting, "--json")[1])["speculation"]
    assert found.keys() == {
        "drafted", "accepted", "mean_accepted", "accepted_histogram", "drafting_s", "verifying_s"
    }  # fmt: skip
    assert (
        found["accepted"] == found["drafted"] == sum(int(n) * count for n, count in found["accepted_histogram"].items())
    )


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["-p", "w2"], "only with one text, and these are 2"),
        (["--n", 2], "only with one text, and these are 2"),
        (["--json"], "only without --json"),
        (["--stop", "w9"], "only without --stop"),
    ],
    ids=str,
)
def test_what_cannot_be_coloured_is_refused(more, said, refused, drafting):
    assert said in refused(*drafting, *more, "--show-draft")


def test_a_model_without_a_tokenizer_has_nothing_to_colour(refused, wordless):
    assert "--show-draft" in refused("generate", wordless, "--tokens", "1,2", "--show-draft")


@pytest.mark.long
def test_benchmarks_count_and_say(tm, model, tmp_path):
    file = tmp_path / "rows.jsonl"
    code, out, _ = tm("bench", model, "--tests", "tg12", "-r", 2, "--speculate", "suffix", "--output", file)
    row = json.loads(file.read_text())
    assert code == 0
    assert row["accepted"] == sum(int(number) * count for number, count in row["accepted_histogram"].items())
    assert ("drafts accepted" in out) == (row["drafted"] > 0)
