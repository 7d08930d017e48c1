"""Tables: the answer of a row is what the engine says to its prompt; new columns stand beside the row's own."""

import json

import pytest

from tests.batches.conftest import run, table_task, write_lines
from tokenmill.batches.batch import opened
from tokenmill.batches.template import TableTask, Template
from tokenmill.errors import ConfigError, RequestError
from tokenmill.settings.sampling_params import SamplingParams

ROWS = [{"id": number, "text": f"w{number} w2", "more": {"a": [number]}} for number in range(6)]
NEW = ["generated_text", "finish_reason", "completion_tokens", "prompt_tokens", "seed", "row_key", "error"]


def answered(engine, tmp_path, task, rows=ROWS):
    source = write_lines(tmp_path / "in.jsonl", rows)
    (tmp_path / "out.jsonl").unlink(missing_ok=True)
    run(engine, source, tmp_path / "out.jsonl", task)
    return [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]


def test_answers_are_those_of_the_engine(engine, tmp_path):
    found = answered(engine, tmp_path, table_task("{text} {id} w3"))
    for row, each in zip(ROWS, found, strict=True):
        assert list(each) == [*row, *NEW] and {name: each[name] for name in row} == row
        done = engine.generate(f"{row['text']} {row['id']} w3", max_new_tokens=4, temperature=0.8, seed=each["seed"])
        assert (each["generated_text"], each["finish_reason"]) == (done.text, done.finish_reason)
        assert (each["completion_tokens"], each["prompt_tokens"]) == (len(done.tokens), done.num_prompt_tokens)
        assert each["error"] is None
    assert len({each["seed"] for each in found}) == len(ROWS)


def test_several_continuations_with_log_probabilities(engine, tmp_path):
    (found,) = answered(engine, tmp_path, table_task(n=3, logprobs=2, seed=7), ROWS[:1])
    done = engine.generate("w0 w2 w5", max_new_tokens=4, temperature=0.8, seed=7, n=3, logprobs=2)
    assert found["generated_text"] == list(done.texts) and found["seed"] == 7
    for ours, each in zip(found["logprobs"], done.completions, strict=True):
        assert [entry["token"] for entry in ours] == list(each.tokens)
        assert [entry["logprob"] for entry in ours] == [entry.logprob for entry in each.logprobs]
        assert [entry["top"] for entry in ours] == [list(map(list, entry.top)) for entry in each.logprobs]


def test_chat_and_columns(engine, tmp_path):
    params = SamplingParams(max_new_tokens=3)

    def first(rows, **how):
        (found,) = answered(engine, tmp_path, TableTask(lambda _: params, **how), rows)
        return found["generated_text"]

    asked = [{"role": "system", "content": "w9"}, {"role": "user", "content": "w4 w2"}]
    wanted = engine.chat(asked, params).text
    row = ROWS[4:5]
    assert first(row, template=Template("{text}"), as_chat=True, system="w9") == wanted
    assert first(row, column="text", as_chat=True, system="w9") == wanted
    assert first([{"messages": asked}], column="messages", as_chat=True) == wanted
    ids = engine.encode("w4 w2")
    assert first([{"ids": ids}], column="ids") == engine.generate("w4 w2", params).text == first(row, column="text")


def test_rows_that_cannot_be_answered(engine, tmp_path):
    rows = [*ROWS[:1], {"id": 1}, {"id": 2, "text": None}, "{broken", {"id": 4, "text": "w1 " * 99}, *ROWS[5:]]
    found = answered(engine, tmp_path, table_task("{text}"), rows)
    errors = [each["error"] for each in found]
    assert errors[0] is errors[-1] is None and all(list(each)[-7:] == NEW for each in found)
    assert errors[1] == errors[2] == "the row has no value in column 'text'"
    assert errors[3].startswith("line 4 is no JSON")
    assert "max_length" in errors[4] and found[4]["generated_text"] is None and found[4]["id"] == 4


def test_columns_that_are_not_there(tmp_path):
    source = write_lines(tmp_path / "in.jsonl", ROWS)
    with (
        pytest.raises(RequestError, match="no column 'tekst'; its columns are 'id', 'text', 'more'"),
        opened(source, tmp_path / "out.jsonl", table_task("{tekst}")),
    ):
        pass
    assert sorted(each.name for each in tmp_path.iterdir()) == ["in.jsonl"]


def test_columns_that_are_there_already(engine, tmp_path):
    found = answered(engine, tmp_path, table_task("{text}"))
    with pytest.raises(RequestError, match="a column 'generated_text', which is one of the new ones"):
        answered(engine, tmp_path, table_task("{generated_text}"), found)
    params = SamplingParams(max_new_tokens=2)
    judged = answered(
        engine, tmp_path, TableTask(lambda _: params, Template("{generated_text}"), prefix="judge_"), found
    )
    assert all(list(each) == [*ROWS[0], *NEW, *(f"judge_{name}" for name in NEW)] for each in judged)


@pytest.mark.parametrize("text", ["no column", "{", "{}", "{text!r}", "{text:>3}", "}"])
def test_templates_that_are_none(text):
    with pytest.raises(ConfigError, match="prompt"):
        Template(text)


def test_a_template():
    template = Template("{{{a b}}} {n} {a b}")
    assert template.names == ["a b", "n"]
    assert template.filled({"a b": "x{n}", "n": [1, {"k": "ü"}]}) == '{x{n}} [1,{"k":"ü"}] x{n}'
