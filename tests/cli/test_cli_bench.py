"""`tokenmill bench` and its verbs as a user types them."""

import json
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest

from tokenmill.bench import golden
from tokenmill.bench import rows as bench_rows
from tokenmill.bench.rows import COLUMNS, read_rows
from tokenmill.cli.bench.rows import HEADER, ending, lines_of
from tokenmill.kernels.attend import gather
from tokenmill.measure import machine
from tokenmill.measure.machine import Limits

LIMITS = Limits("cpu", "a processor", 2, 2, 40.0, 30.0, 160.0, 90.0, 200.0, 400.0, 800.0)


@pytest.fixture(autouse=True)
def quick(tmp_path, monkeypatch):
    """Limits and probes without the seconds that they take."""
    monkeypatch.setattr(machine, "measure", lambda device, threads: replace(LIMITS, measured_at=machine.time.time()))
    monkeypatch.setattr(machine, "PROBE_BYTES", 2**20)


@pytest.fixture
def tm(tm, tmp_path, monkeypatch):
    monkeypatch.setenv("TOKENMILL_CACHE", str(tmp_path / "cache"))
    return partial(tm, "bench")


def test_a_benchmark_prints_the_card_and_a_table(tm, llama):
    code, out, err = tm(llama, "--tests", "pp16,tg8", "--batch", "1,2", "-r", 2)
    assert code == 0, err
    assert out.index("what it costs") < out.index("medians of 2") < out.index("text check: none: no reference for this")


def test_with_json_stdout_is_the_document_alone(tm, llama, tmp_path):
    file = tmp_path / "rows.csv"
    code, out, err = tm(llama, "--tests", "pp16,tg8", "--batch", "1,2", "-r", 2, "--output", file, "--json")
    assert (code, out.count("\n")) == (0, 1), err
    document = json.loads(out)
    assert [row["test"] for row in document["rows"]] == ["pp16", "tg8", "pp16 x2", "tg8 x2"]
    assert document["card"]["floor_tok_s"].keys() == {row["test"] for row in document["rows"]}
    assert [row["hash"] for row in read_rows([file])] == [row["hash"] for row in document["rows"]]


def test_every_column_has_its_figure(tm, llama):
    code, out, _ = tm(llama, "--tests", "pp16+tg8", "-r", 1)
    lines = out.splitlines()
    start = next(number for number, line in enumerate(lines) if "medians of 1" in line)
    assert "itl p50 p90 p99" in lines[start + 1] and code == 0
    rows = list(lines_of({**dict.fromkeys(COLUMNS, 1.0), "status": "ok", "hash": "h"}))
    assert [len(row) for row in rows] == [len(HEADER)] * 2 and rows[0][-1] == rows[1][-1] == "h"
    assert rows[1][HEADER.index("itl p50 p90 p99")] == "1.0 1.0 1.0"
    assert len(lines_of({"status": "refused", "test": "pp1"})[0]) == len(HEADER)


def test_the_verb_run_may_be_left_out(tm, llama):
    plain, named = (tm(*verb, llama, "--tests", "tg4", "-r", 1, "-q") for verb in ((), ("run",)))
    assert plain[0] == named[0] == 0


def test_a_sweep_resumes_and_keeps_refused_points_marked(tm, llama, tmp_path):
    file = tmp_path / "sweep.jsonl"
    sweep = ("sweep", llama, "--batch", "1,2", "--prompt", "8,126", "--new", "4", "-r", 1, "--output", file)
    code, out, err = tm(*sweep)
    assert code == 0 and "refused" in out
    assert "126 prompt tokens" in err or "context" in err
    assert sorted((row["batch"], row["prompt"], row["status"]) for row in read_rows([file])) == [
        (1, 8, "ok"),
        (1, 126, "refused"),
        (2, 8, "ok"),
        (2, 126, "refused"),
    ]
    before = file.read_text()
    code, out, err = tm(*sweep, "--json")
    assert "2 of 4 points are in" in err
    assert file.read_text().startswith(before) and len(read_rows([file])) == 6, "refused points are tried again"
    assert len(json.loads(out)["rows"]) == 4
    tm(*sweep, "--dtype", "bfloat16")
    assert len(read_rows([file])) == 10, "other settings are other points"


def test_a_sweep_with_the_cache_and_without_is_one_table(tm, llama, tmp_path):
    file = tmp_path / "new" / "cache.jsonl"
    sweep = ("sweep", llama, "--batch", "1,2", "--prompt", "8", "--new", "4", "-r", 1, "--dtype", "float32")
    code, out, err = tm(*sweep, "--cache", "on,off", "--output", file)
    assert code == 0, err
    table = out[out.index("With the KV cache and without") :]
    assert all(word in table for word in ("factor", "peak MB", "off, MB", "tokens", "text")) and "the same" in table
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(row["cache"], row["batch"]) for row in rows] == [(True, 1), (True, 2), (False, 1), (False, 2)]
    assert len({row["hash"] for row in rows if row["batch"] == 2}) == 1 and "text" in rows[0], (
        "None: this model has no tokenizer"
    )
    assert "4 of 4 points are in" in tm(*sweep, "--cache", "on,off", "--output", file)[2]
    assert "--cache = 'maybe' is not allowed: on, off, or on,off" in tm(*sweep, "--cache", "maybe")[2]


@pytest.mark.parametrize(
    "kind, label, name",
    [("sweep", "3ddfb2c7", "pp8+tg4"), ("ladder", "multi-step", "multi-step"), ("run", "", "pp8+tg4")],
)
def test_what_became_of_drafts_is_said_of_the_point_or_of_the_rung(capsys, kind, label, name):
    figures = dict.fromkeys(("peak_mb", "load_s", "compile_s", "warmup_s", "weights_mb"), 1.0)
    texts = dict.fromkeys("program scheme kernel dtype commit tokenmill torch text_check".split(), "")
    drafts = {"drafted": 5, "accepted": 3, "mean_accepted": 1.5, "accepted_histogram": {1: 1, 2: 1}}
    seconds = {"drafting_s": 0.25, "verifying_s": 2}
    row = {"status": "ok", "noisy": False, "kind": kind, "label": label, "test": "pp8+tg4"}
    ending([row | figures | texts | drafts | seconds], json=False)
    said = f"{name}: 3 of 5 drafts accepted, 1.5 in a pass (1: 1, 2: 1); 0.25 s to draft, 2.00 s to verify"
    assert capsys.readouterr().out.splitlines()[-1] == said


def test_a_sweep_without_a_valid_point_says_so(tm, llama):
    code, _, err = tm("sweep", llama, "--batch", "1", "--prompt", "500", "--new", "4")
    assert code == 2 and "no point of the sweep could be measured" in err and "500" in err


@pytest.mark.slow
def test_the_ladder_names_every_rung(tm, llama, tmp_path):
    written = tmp_path / "rows.jsonl"
    how = ("--prompt", 16, "--new", 4, "-r", 1, "--compile-backend", "eager")
    code, out, _ = tm("ladder", llama, *how, "--output", written)
    rows = [json.loads(line) for line in written.read_text().splitlines()]
    assert code == 0 and rows[0]["label"] == "no cache"
    assert len({row["hash"] for row in rows if row["scheme"] not in ("q8", "q4")}) == 1
    assert all(row["label"] in out for row in rows)


@pytest.mark.slow
def test_a_shape_needs_no_files(tm):
    code, out, _ = tm("--shape", "pythia-160m", "--tests", "tg2", "-r", 1, "--threads", 1)
    assert code == 0 and "shape:pythia-160m" in out and "random weights" in out


@pytest.mark.parametrize("verb", ["run", "sweep", "ladder"])
def test_a_shape_beside_a_model_is_refused(tm, llama, verb):
    for model in ([llama], ["-m", "smollm2-135m"]):
        code, out, err = tm(verb, *model, "--shape", "pythia-160m")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "--shape = 'pythia-160m' is not allowed: in the place of MODEL, which is" in err


def test_machine(tm):
    code, out, _ = tm("machine", "--json")
    assert code == 0 and json.loads(out)["read_gb_s"] == 40.0
    assert "GB/s" not in tm("machine")[2] and "40.0" in tm("machine")[1]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--tests", "xx1"], "pp512,tg128"),
        (["--batch", "0"], "--batch"),
        (["--depth", "-5"], "--depth"),
        (["--shape", "llama-9b"], "llama-8b"),
        (["--output", "/dev/null/x.jsonl"], "--output"),
        (["--output", "x.txt"], ".jsonl"),
        (["--max-sequences", "4"], "--max-sequences"),
        (["no-such-model"], "no-such-model"),
        (["machine", "--threads", "100000"], "threads = 100000 (set in --threads) is not allowed: at most "),
        (["sweep", "--new", "x"], "--new"),
        (["ladder", "--cache"], "--cache"),
    ],
)
def test_bad_input_is_one_line(refused, arguments, says):
    assert says in refused(*arguments)


@pytest.fixture
def few_texts(monkeypatch):
    """Three of the eight: the plain programs take ten seconds for all of them."""
    texts = golden.GOLDEN["smollm2-135m"]
    monkeypatch.setitem(golden.GOLDEN, "smollm2-135m", dict(list(texts.items())[3:6]))


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.usefixtures("few_texts")
def test_a_broken_kernel_makes_the_benchmark_fail(tm, real_model, monkeypatch):
    """The text is compared before anything is timed."""
    attend = gather.scaled_dot_product_attention

    def broken(*arguments, **keywords):
        keywords["scale"] = 1.3 * (keywords.get("scale") or arguments[0].shape[-1] ** -0.5)
        return attend(*arguments, **keywords)

    monkeypatch.setattr(gather, "scaled_dot_product_attention", broken)
    code, out, err = tm(real_model, "--tests", "tg4", "-r", 1, "--program", "eager")
    assert code == 1 and "texts differ from transformers' texts" in err and "medians" not in out


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_right_text_is_said_to_be_right(tm, real_model, dtype):
    code, out, _ = tm(real_model, "--tests", "tg2", "-r", 1, "--dtype", dtype, "--scheme", "dense")
    assert code == 0 and "8 texts as transformers'" in out


@pytest.mark.parametrize(("verb", "package"), [("plot", "matplotlib"), ("load", "httpx2")])
def test_a_missing_package_of_the_extra_is_named(tmp_path, verb, package):
    (tmp_path / "rows.jsonl").write_text("")
    code = f"import sys; sys.modules[{package!r}] = None; from tokenmill.cli.main import run; run()"
    arguments = {"plot": [str(tmp_path / "rows.jsonl")], "load": []}[verb]
    command = [sys.executable, "-c", code, "bench", verb, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    expected = f"error: bench {verb} needs {package}: pip install 'tokenmill[bench]'"
    assert done.stderr == expected + "\n"


@pytest.fixture
def full(tmp_path):
    """A file that nothing can be written to."""
    path = tmp_path / "full.jsonl"
    path.symlink_to("/dev/full")
    return path


@pytest.mark.parametrize("verb", [["run"], ["sweep"], ["ladder"], ["peers", "--only", "tokenmill"]])
def test_a_full_disk_is_refused_before_anything_is_measured(tm, verb, full):
    code, out, err = tm(*verb, "no-such-model", "--output", full)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--output" in err and "No space left on device" in err


@pytest.mark.parametrize(
    "verb",
    [["run", "--tests", "tg2,tg3"], ["sweep", "--batch", 1, "--prompt", 8, "--new", "2,3"]],
    ids=["run", "sweep"],
)
def test_rows_that_a_disk_does_not_take_are_printed(tm, llama, full, verb, monkeypatch):
    """The disk fills while something is measured: the check before that has found nothing."""
    monkeypatch.setattr(bench_rows, "check_output", lambda llama: None)
    code, out, err = tm(*verb, llama, "-r", 1, "--output", full)
    assert code == 2
    assert err.splitlines()[-1].startswith(f"error: {full} cannot be written (No space left on device)")
    rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert [(row["status"], row["new"]) for row in rows] == [("ok", 2), ("ok", 3)]
    assert "medians of 1" in out and "Traceback" not in err
    code, out, err = tm(*verb, llama, "-r", 1, "--output", full, "--json")
    assert code == 2 and len(json.loads(out)["rows"]) == 2, "the document has them already"


@pytest.mark.slow
def test_a_row_that_was_cut_short_is_taken_back(tmp_path):
    """A limit on the size of files is a disk that is full."""
    code = """
import resource, sys
from pathlib import Path
from tokenmill.bench.rows import append_row
path = Path(sys.argv[1])
append_row(path, {"version": 1, "note": "a"})
resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 5, 5000))
try:
    append_row(path, {"version": 1, "note": "b" * 100})
except OSError:
    sys.exit(7)
"""
    for name in ("rows.jsonl", "rows.csv"):
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path / name)], check=False)
        assert done.returncode == 7
        assert [row["note"] for row in read_rows([tmp_path / name])] == ["a"]
