"""Constraints from the command line: the options, files and texts, other programs' names, refusals."""

import json

import pytest

from tests.byte_model import save_byte_model

SCHEMA = '{"type":"object","properties":{"a":{"type":"boolean"}},"required":["a"],"additionalProperties":false}'
GBNF = 'root ::= "yes" | "no"\n'


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(save_byte_model(tmp_path_factory.mktemp("bytes")))


@pytest.fixture
def text(tm, model):
    """Runs `generate`; the text that it prints."""

    def run(*options):
        code, out, err = tm("generate", model, "-p", "hello", "--program", "eager", "-n", "40", "-q", *options)
        assert code == 0, err
        return out.removesuffix("\n")

    return run


@pytest.mark.parametrize("option", ["--json-schema", "-j", "--json-schema-file"])
def test_a_schema_is_a_text_or_a_file(text, tmp_path, option):
    (tmp_path / "schema.json").write_text(f" {SCHEMA}\n")
    for value in (SCHEMA, f" {SCHEMA}", str(tmp_path / "schema.json")):
        assert json.loads(text(option, value)) in ({"a": True}, {"a": False})


@pytest.mark.parametrize("option", ["--grammar", "--grammar-file"])
def test_a_grammar_is_a_file_or_a_text(text, tmp_path, option):
    (tmp_path / "answer.gbnf").write_text(GBNF)
    for value in (str(tmp_path / "answer.gbnf"), GBNF, 'start: "yes" | "no"'):
        assert text(option, value) in ("yes", "no")


def test_expressions_and_choices(text):
    assert text("--regex", "[ab]{3}x") in {f"{a}{b}{c}x" for a in "ab" for b in "ab" for c in "ab"}
    assert text("--choice", "ja", "--choice", "nein") in ("ja", "nein")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ("--json-schema", "no/such.json"),
            "set in --json-schema) is not allowed: the name of a file, which is not there",
        ),
        (("--json-schema", "{"), "set in --json-schema) is not allowed: JSON ("),
        (("--json-schema", '{"enum":[]}'), "set in --json-schema) is not allowed: at #: Unsatisfiable schema"),
        (("--grammar", "answer.gbnf"), "set in --grammar) is not allowed: the name of a file, which is not there"),
        (("--grammar", "."), "set in --grammar) is not allowed: the name of a file"),
        (("--regex", "("), "set in --regex) is not allowed: "),
        (
            ("--regex", "a", "--choice", "b"),
            "choice = 'b' (set in --choice) is not allowed: only one constraint at a time, and regex is given",
        ),
    ],
    ids=lambda each: str(each)[:40],
)
def test_refusals_name_the_option(refused, model, options, words):
    assert words in refused("generate", model, "-p", "hello", "--program", "eager", *options)
