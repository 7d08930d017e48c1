"""Text of a model and of its files: not a byte is changed in a pipe, and a terminal obeys no control code of it."""

import json
import re
import sys
from types import SimpleNamespace

import pytest

from tests.cli.conftest import TEMPLATE
from tests.word_model import save_word_model
from tokenmill.cli.generate import show
from tokenmill.cli.process.display import print_json, print_table, remark, visible, write_text
from tokenmill.cli.show_draft import colour_drafts

HOSTILE = "a\x1b[31mb\x1b]0;title\x07c\x9b2Jd\te"
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
HARMLESS = "a␛[31mb␛]0;title␇c\ufffd2Jd\te"


@pytest.fixture(params=["pipe", "terminal"])
def wanted(request, monkeypatch, capsys):
    """The hostile text as it should come out."""
    monkeypatch.setattr(sys.stdout.__class__, "isatty", lambda _: request.param == "terminal")
    return HARMLESS if request.param == "terminal" else HOSTILE


def test_each_control_code_has_a_picture():
    assert visible(HOSTILE) == HARMLESS and not CONTROLS.search(HARMLESS)


def test_a_text_is_as_it_is_in_a_pipe_and_harmless_on_a_terminal(wanted, capsys):
    write_text(HOSTILE)
    assert capsys.readouterr().out == wanted


def test_a_generated_text(wanted, capsys):
    engine = SimpleNamespace(tokenizer=True)
    show(engine, iter([SimpleNamespace(text=HOSTILE, tokens=[1], done=SimpleNamespace())]))
    assert capsys.readouterr().out == f"{wanted}\n"


def test_a_text_with_its_drafts(wanted, capsys, monkeypatch):
    monkeypatch.setattr(
        "tokenmill.cli.show_draft.Detokenizer", lambda *_, **__: SimpleNamespace(push=lambda tokens: HOSTILE)
    )
    monkeypatch.setenv("TERM", "dumb")  # without colours of ours
    done = SimpleNamespace(text=HOSTILE + HOSTILE)
    pieces = iter([SimpleNamespace(text=HOSTILE, tokens=[1], done=done)])
    colour_drafts(SimpleNamespace(tokenizer=True), [], pieces, SimpleNamespace(of=[True]))
    assert capsys.readouterr().out == f"{wanted}{wanted}\n"


def test_a_chat_template(wanted, tm, tmp_path):
    model = save_word_model(tmp_path, TEMPLATE + HOSTILE)
    assert tm("info", model, "--template")[1].endswith(f"{wanted}\n")


def test_a_table(wanted, capsys):
    print_table(f"{HOSTILE}\n", [("a\x1b[31mb", "x")], ("name", "value"))
    out = capsys.readouterr().out
    assert out.startswith(wanted)
    assert ("a␛[31mb" if wanted == HARMLESS else "a\x1b[31mb") in out
    assert "␛" not in out[len(wanted) :].splitlines()[1]  # the header, in bold


def test_json_is_the_same_document(wanted, capsys):
    print_json({"text": HOSTILE})
    out = capsys.readouterr().out
    assert json.loads(out) == {"text": HOSTILE}
    assert wanted == HOSTILE or not CONTROLS.search(out.removesuffix("\n"))


def test_a_remark_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    remark(HOSTILE)
    assert capsys.readouterr().err == f"{HARMLESS}\n"
