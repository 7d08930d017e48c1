"""Tables on a terminal of 80 and of 60 columns: no line is wider, no name or figure is cut; other columns go first."""

import re
import sys
from pathlib import Path

import pytest

from tests.tiny_models import save
from tokenmill.cli.process.display import table_text
from tokenmill.cli.quantize.report import Report, show
from tokenmill.weights.write.quantize import Kind

STYLE = re.compile(r"\x1b\[[\d;]*m")
KINDS = ["self_attn.q_proj", "block_sparse_moe.experts.w1", "lm_head"]


@pytest.fixture(params=[80, 60])
def columns(request, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(request.param))
    monkeypatch.setattr(sys.stdout.__class__, "isatty", lambda _: True)
    return request.param


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory):
    """A model whose tensors have long names."""
    return save("mixtral", tmp_path_factory.mktemp("models"))


def table(out, columns):
    """The lines of tables, which begin with a space; each fits."""
    lines = [line for line in STYLE.sub("", out).splitlines() if line.startswith(" ")]
    assert max(map(len, lines)) <= columns and "…" not in out
    return "\n".join(lines)


def test_info(tm, mixtral, columns):
    shown = table(tm("info", mixtral, "--tensors")[1], columns)
    assert " float32" in shown and "80 x 48" in shown
    whole = "model.layers.1.block_sparse_moe.experts.4.w3.weight" in shown
    assert whole if columns == 80 else "\n" in shown  # 51 letters, beside 60 x 48 and float32


def test_plan(tm, mixtral, columns):
    shown = table(tm("plan", mixtral, "--check", "--threads", 1)[1], columns)
    assert re.search(r"weights .* [\d,]+ +[\d,]+ ", shown) and "an estimate" in shown


def test_profile(tm, mixtral, columns, tmp_path):
    where = ["--tokens", "1,2,3", "-n", 4, "--threads", 1, "-o", tmp_path / "trace.json"]
    shown = table(tm("profile", mixtral, *where)[1], columns)
    assert re.search(r"forward +\d+\.\d{3} +\d+\.\d %", shown) and "tokens fed" in shown


@pytest.mark.parametrize("algorithm", ["rtn", "gptq"])
def test_quantize(algorithm, columns, capsys, tmp_path):
    kinds = {name: Kind(name, "q4", 3000, 10**9, 4 * 10**9, 10**9, 0.01, 1.0, [name]) for name in KINDS}
    changes = dict.fromkeys(KINDS, (0.0512**2, 0.0213**2)) if algorithm == "gptq" else {}
    show(Report("model", Path(tmp_path), algorithm, {"scheme": "q4", "group": 64}, kinds, changes))
    shown = table(capsys.readouterr().out, columns)
    assert "1.0 GB" in shown and ("2.13%" in shown or algorithm == "rtn")
    assert "block_sparse_moe.experts.w1" in shown or columns == 60


def test_names_of_columns_are_broken_into_lines_before_a_column_goes(columns):
    header, row = ("name", "milliseconds per pass", "share of all"), ("x" * (columns - 24), "1.2", "3 %")
    shown = STYLE.sub("", table_text("", [row], header, expendable=("share of all",)))
    assert all(word in shown for word in row) and "no room" not in shown
    assert all(word in shown for word in " ".join(header).split())
