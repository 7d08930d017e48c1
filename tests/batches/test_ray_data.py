"""examples/ray_data.py with two actors on this machine writes the rows of an undivided run, in their order."""

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet
import pytest

from tests.batches.conftest import run
from tokenmill import SamplingParams, load
from tokenmill.batches.batch import answer_rows
from tokenmill.batches.template import TableTask, Template

EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_data.py"
PROMPT, NUM_ROWS = "{text} w5", 60


def task():
    params = SamplingParams(max_new_tokens=4, temperature=0.8)
    return TableTask(lambda _: params, Template(PROMPT))


def rows_in(path):
    rows = [{"id": number, "text": f"w{number} w{number % 4}"} for number in range(NUM_ROWS)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=10)
    return rows


def test_rows_in_memory_are_those_of_files(engine, tmp_path):
    rows = rows_in(tmp_path / "in.parquet")
    run(engine, tmp_path / "in.parquet", tmp_path / "out.parquet", task())
    whole = pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert answer_rows(engine.core, task(), rows) == whole
    assert answer_rows(engine.core, task(), rows[:7]) + answer_rows(engine.core, task(), rows[7:]) == whole


@pytest.mark.ray
def test_two_actors(chat_model, tmp_path):
    for number in range(4):  # several files, which several actors read
        rows_in(tmp_path / f"{number}.parquet")
    whole = []
    with load(chat_model, max_sequences=16) as engine:
        for number in range(4):
            run(engine, tmp_path / f"{number}.parquet", tmp_path / f"out-{number}.parquet", task())
            whole += pyarrow.parquet.read_table(tmp_path / f"out-{number}.parquet").to_pylist()
    source = tmp_path / "in"
    source.mkdir()
    for number in range(4):
        (tmp_path / f"{number}.parquet").rename(source / f"{number}.parquet")
    arguments = ["--prompt", PROMPT, "--model", chat_model, "--max-new-tokens", 4, "--temperature", 0.8, "--actors", 2]
    command = [sys.executable, EXAMPLE, source, tmp_path / "answers", *arguments]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    files = sorted((tmp_path / "answers").glob("*.parquet"))
    assert [row for file in files for row in pyarrow.parquet.read_table(file).to_pylist()] == whole
