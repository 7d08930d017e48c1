"""Embeddings of a table: the vectors of `engine.embed` beside each row, in every format, broken off and gone on."""

import csv
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from tests.batches.conftest import SETTINGS
from tests.empty import check_empty
from tests.tiny_encoders import save_encoder
from tokenmill.batches.batch import How, opened
from tokenmill.batches.embeddings import EmbedTask
from tokenmill.engine.load import load
from tokenmill.errors import RequestError

ASKED = {"pooling": None, "dimensions": None, "normalize": None, "prompt_name": None, "truncate": False}
TEXTS = ["w1 w2", "w3", "w4 w5 w6", "w1 w2", "w7 " * 20]


@pytest.fixture(scope="module")
def wanted(engine):
    return engine.embed(TEXTS).numpy()


def rows_of(texts=TEXTS):
    return [{"id": number, "text": text} for number, text in enumerate(texts)]


def source_of(path, rows):
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".csv":
        with path.open("w", newline="") as out:
            writer = csv.DictWriter(out, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def read(path):
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        return [{**row, "embedding": json.loads(row["embedding"]) if row["embedding"] else None} for row in rows]
    return pyarrow.parquet.read_table(path).to_pylist()


def run(engine, source, target, column="text", asked=ASKED, prefix="", **how):
    with opened(source, target, EmbedTask(column, asked, prefix)) as batch:
        return batch.run(engine.core, How(**{"window": 1024, **how}))


@pytest.mark.parametrize("kind", [".jsonl", ".csv", ".parquet"])
def test_each_row_gets_its_vector(kind, engine, wanted, tmp_path):
    source, target = source_of(tmp_path / f"in{kind}", rows_of()), tmp_path / f"out{kind}"
    summary = run(engine, source, target)
    found = read(target)
    assert [row["text"] for row in found] == TEXTS and [int(row["num_tokens"]) for row in found] == [2, 1, 3, 2, 20]
    assert np.array_equal(np.array([row["embedding"] for row in found], np.float32), wanted)
    assert (summary.num_rows, summary.num_errors, summary.tokens, summary.prompt_tokens) == (5, 0, 0, 28)
    check_empty(engine.core)
    assert run(engine, source, target).was_there


def test_settings_and_what_a_row_lacks(engine, tmp_path):
    rows = [*rows_of(TEXTS[:2]), {"id": 9, "text": None}, {"id": 10, "text": ""}, {"id": 11, "text": "w1 " * 120}]
    asked = ASKED | {"pooling": "mean", "dimensions": 4}
    source = source_of(tmp_path / "in.jsonl", rows)
    summary = run(engine, source, tmp_path / "out.jsonl", asked=asked, prefix="of_")
    found = read(tmp_path / "out.jsonl")
    vectors = np.array([row["of_embedding"] for row in found[:2]], np.float32)
    assert np.array_equal(vectors, engine.embed(TEXTS[:2], pooling="mean", dimensions=4).numpy())
    errors = [row["of_error"] for row in found]
    assert errors[:2] == [None, None] and summary.num_errors == 3
    for said, error in zip(("has no value", "it is empty", "120"), errors[2:], strict=True):
        assert said in error
    assert [row["of_embedding"] for row in found[2:]] == [None] * 3
    whole = asked | {"truncate": True}
    assert run(engine, source, tmp_path / "cut.jsonl", asked=whole).num_errors == 2
    check_empty(engine.core)


def test_token_ids_are_a_text_too(engine, tmp_path):
    source = source_of(tmp_path / "in.jsonl", [{"ids": [5, 6, 7]}, {"ids": [8]}])
    run(engine, source, tmp_path / "out.parquet", column="ids")
    found = np.array([row["embedding"] for row in read(tmp_path / "out.parquet")], np.float32)
    assert np.array_equal(found, engine.embed([[5, 6, 7], [8]]).numpy())


def test_broken_off_it_goes_on(engine, wanted, tmp_path):
    source, target = source_of(tmp_path / "in.jsonl", rows_of()), tmp_path / "out.jsonl"

    def told(progress):
        if progress.num_done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(engine, source, target, window=1, told=told)
    assert not target.exists()
    check_empty(engine.core)
    summary = run(engine, source, target)
    assert summary.num_known >= 2 and summary.num_rows == 5
    assert np.array_equal(np.array([row["embedding"] for row in read(target)], np.float32), wanted)


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_beside_texts_with_few_blocks(pooling, chat_model, tmp_path):
    """Two threads, drafts, and a cache for less than what runs, so that texts and rows are preempted."""
    rows = [{"ids": [3 + (number * step) % 50 for step in range(1, 8 + number % 40)]} for number in range(40)]
    asked, ids = ASKED | {"pooling": pooling}, [row["ids"] for row in rows]
    settings = SETTINGS | {"cache_tokens": 128, "threads": 2}
    with load(chat_model, **SETTINGS, speculate="off") as quiet:
        wanted = quiet.embed(ids, pooling=pooling).numpy()
        texts = [quiet.generate(prompt, max_new_tokens=40, ignore_eos=True).tokens for prompt in ids[:6]]
    with load(chat_model, **settings) as busy, ThreadPoolExecutor(6) as threads:
        others = [threads.submit(busy.generate, each, max_new_tokens=40, ignore_eos=True) for each in ids[:6]]
        run(busy, source_of(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl", column="ids", asked=asked)
        assert [other.result().tokens for other in others] == texts
        found = np.array([row["embedding"] for row in read(tmp_path / "out.jsonl")], np.float32)
        assert np.array_equal(found, wanted)
        check_empty(busy.core)


def test_an_encoder(tmp_path):
    with load(save_encoder("bert", tmp_path), max_length=64, max_sequences=2) as engine:
        source = source_of(tmp_path / "in.jsonl", [{"ids": list(range(1, n))} for n in (5, 30, 12, 9)])
        asked = ASKED | {"pooling": "mean"}
        run(engine, source, tmp_path / "out.jsonl", column="ids", asked=asked)
        ids = [row["ids"] for row in read(source)]
        found = np.array([row["embedding"] for row in read(tmp_path / "out.jsonl")], np.float32)
        assert np.array_equal(found, engine.embed(ids, pooling="mean").numpy())
        check_empty(engine.core)


def test_bad_input(engine, tmp_path):
    source = source_of(tmp_path / "in.jsonl", rows_of())
    with pytest.raises(RequestError, match="no column 'body'"):
        run(engine, source, tmp_path / "out.jsonl", column="body")
    with pytest.raises(RequestError, match="pooling = 'max'"):
        run(engine, source, tmp_path / "out.jsonl", asked=ASKED | {"pooling": "max"})
    taken = source_of(tmp_path / "taken.jsonl", [{"text": "w1", "embedding": 3}])
    with pytest.raises(RequestError, match="output_prefix"):
        run(engine, taken, tmp_path / "out.jsonl")
