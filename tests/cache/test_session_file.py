"""The header and the rows of a saved session, each field wrong in turn under a checksum that fits."""

import signal

import pytest
import torch
from safetensors import safe_open

from tests.tiny_models import prompt, save
from tokenmill.cache import header, snapshot
from tokenmill.cache.snapshot import read_snapshot, write_snapshot
from tokenmill.engine.load import load
from tokenmill.errors import SnapshotError

START = prompt(12, seed=4)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    return load(save("llama", tmp_path_factory.mktemp("models")), max_length=48, block_size=4, threads=1)


@pytest.fixture
def saved(engine, tmp_path):
    with engine.session(START) as session:
        session.save(tmp_path / "x.kv")
    return read_snapshot(tmp_path / "x.kv")


def opened(engine, path, facts, rows):
    facts = {name: value for name, value in facts.items() if name not in ("format", "byteorder", "data_checksum")}
    write_snapshot(path, {name: value for name, value in facts.items() if value is not ...}, rows)
    return engine.open_session(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_rows": 12}, "num_rows = 12 is not allowed: a whole number from 0 to 11"),  # generation never ended
        ({"num_rows": -1}, "num_rows = -1"),
        ({"num_rows": 3.0}, "num_rows = 3.0"),
        ({"num_rows": 10}, r"0.k is \[11, 2, 8\], which should be \[10, 2, 8\]"),
        ({"num_rows": ...}, "has no 'num_rows', which is required"),
        ({"tokens": [*START[:-1], 211]}, "tokens = .* is not allowed: token ids from 0 to 210"),
        ({"tokens": [*START[:-1], "x"]}, "tokens = .* is not allowed: token ids"),
        ({"tokens": 7}, "tokens = 7 is not allowed: a list of token ids"),
        ({"answer_from": 13}, "answer_from = 13"),
        ({"answer_from": None}, "has no 'answer_from'"),
        ({"notes": [1]}, "notes must be an object"),
        ({"sampling": {"temperature": "hot"}}, "its sampling settings: .*temperature"),
        ({"sampling": {"heat": 3}}, "its sampling settings: .*no such setting"),
        ({"sampling": {"logit_bias": {"x": 1.0}}}, "sampling"),
        ({"dtype": ["float32"]}, "dtype"),
        ({"fingerprint": "abc"}, "fingerprint must be an object"),
    ],
)
def test_a_header_that_cannot_be_is_refused_by_field(engine, saved, tmp_path, changes, message):
    with pytest.raises(SnapshotError, match=message):
        opened(engine, tmp_path / "y.kv", {**saved.facts, **changes}, saved.rows)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.pop("1.v"), r"missing or unknown: \['1.v'\]"),
        (lambda rows: rows.update({"2.k": rows["1.k"].clone()}), r"missing or unknown: \['2.k'\]"),
        (lambda rows: rows.update({"0.v": rows["0.v"][:, :1].clone()}), r"0.v is \[11, 1, 8\]"),
        (lambda rows: rows.update({"0.v": rows["0.v"].double()}), "0.v holds torch.float64, which should be"),
        (lambda rows: rows.update({"0.v": rows["0.v"].to(torch.int8)}), "0.v holds torch.int8"),
    ],
)
def test_rows_that_are_not_the_models_are_refused_by_name(engine, saved, tmp_path, change, message):
    rows = dict(saved.rows)
    change(rows)
    with pytest.raises(SnapshotError, match=message):
        opened(engine, tmp_path / "y.kv", saved.facts, rows)


def test_what_is_not_changed_is_opened(engine, saved, tmp_path):
    with opened(engine, tmp_path / "y.kv", saved.facts, saved.rows) as session:
        assert session.tokens == tuple(START)


@pytest.fixture
def interrupts():
    """Python's own handler of SIGINT, also where the tests run in the background of a shell, which has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_an_interrupt_while_a_file_is_read_stays_one(number, engine, tmp_path, monkeypatch):
    """The library that reads makes a ValueError or its own error of what is raised within it."""
    file = tmp_path / "x.kv"
    with engine.session([1, 2, 3]) as session:
        session.save(file)
    before, calls = signal.getsignal(signal.SIGINT), []

    class Interrupted:
        """safe_open, by which a signal arrives within a call of the library."""

        def __init__(self, *given, **named):
            calls.append(given)
            if len(calls) == number + 1:
                signal.raise_signal(signal.SIGINT)
            self.inner = safe_open(*given, **named)

        def __enter__(self):
            return self.inner.__enter__()

        def __exit__(self, *error):
            return self.inner.__exit__(*error)

    for reader in (header, snapshot):
        monkeypatch.setattr(reader, "safe_open", Interrupted)
    if number < 3:  # the header for its adapter, the header, the rows
        with pytest.raises(KeyboardInterrupt):
            engine.open_session(file)
        assert len(calls) == number + 1
    assert signal.getsignal(signal.SIGINT) is before
    assert engine.open_session(file).tokens == (1, 2, 3)
