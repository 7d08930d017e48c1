"""Lark grammars that refer to themselves, inside the JSON of a call: what llguidance's own reading takes."""

import json
import re

import pytest

from tests.text.tools.answers import answer, pushed
from tests.text.tools.byte_grammar import admitted, ids_of
from tests.text.tools.test_formats import NAMES, control_of, form_of
from tests.text.tools.test_lark_pattern import takes
from tokenmill.errors import RequestError
from tokenmill.serve.request.custom_tools import read_tools
from tokenmill.text.tools.functions import ToolChoice
from tokenmill.text.tools.grammar import calls_grammar
from tokenmill.text.tools.hermes import HERMES
from tokenmill.text.tools.lark_rules import in_json
from tokenmill.text.tools.parser import Parser

SUM = """start: expr
expr: term (SP ADD SP term)* -> add
term: factor (SP MUL SP factor)* -> mul
factor: INT | "(" expr ")"
SP: " "
ADD: "+"
MUL: "*"
%import common.INT
"""
VALUE = r"""start: value LF?
?value: list | STRING | /-?[0-9]+(\.[0-9]+)?/ | "null"
list: "[" [value ("," value)*] "]"
STRING: "\"" /[^"\\\n]*(\\.[^"\\\n]*)*/ "\""
%import common.LF
"""
TREE = r"""start: node{1,2}
node: "<" /[a-c\/]+/ ">" "\n" (/\t[^<\n]*\n/ | node)* "</>" "\n"
"""
CASES = [
    (SUM, ["1", "(1)", "1 + 2 * (3 + 45) * ((6))", "(((7)))"], ["", "(1", "1)", "1+2", "1 + (", "()"]),
    (VALUE, ["[]", '["a\\"b",[1,-2.5],null]\n', '"é / \\\\"', "[[[]]]"], ["[", '"', "[1,]", '["a\nb"]', "[]\n\n"]),
    (
        TREE,
        ["<a>\n</>\n", '<a/b>\n\tx "y" \\ z\n<c>\n</>\n\t\n</>\n'],
        ["<a>\n", "<d>\n</>\n", "<a></>\n", "<a>\nx\n</>\n"],
    ),
]


def tool(grammar):
    form = {"type": "grammar", "grammar": {"syntax": "lark", "definition": grammar}}
    return read_tools([{"type": "custom", "custom": {"name": "p", "format": form}}])


def fits(name, grammar, text):
    """Whether a call with this input is admitted, and then read."""
    form, tools = form_of(name), tool(grammar)
    written = form.text([("p", {"input": text})])
    if name in ("olmo3", "lfm2_5"):  # their histories write texts between single quotation marks alone
        written = f"{form.opening}p(input={json.dumps(text, ensure_ascii=False)}){form.closing}"
    for control in ((), control_of(name)):
        made = calls_grammar(form, tools, ToolChoice("required"), control=ids_of(control))
        if admitted(made, written, control) != "whole":
            return False
    _, _, calls = answer(pushed(Parser(form, tools, is_trusted=True), written))
    return [(called, json.loads(arguments)) for called, arguments in calls] == [("p", {"input": text})]


@pytest.mark.parametrize(("grammar", "good", "bad"), CASES, ids=["sum", "value", "tree"])
def test_a_call_takes_what_the_grammar_takes(grammar, good, bad):
    for text in (*good, *bad):
        assert takes(grammar, text) == fits("hermes", grammar, text) == (text in good), text


EITHER_CASE = [
    ('start: x\nx: "(" x ")" | /[^a-z]{3}/i', ["1\n\\", "\t!\x0b"], ["abc", "(A)"]),
    ('start: s\ns: "select\\n"i s | "end"', ["end", "Select\nend"], ["select\tend"]),
    ('start: x\nx: "(" x ")" | "a"{,3} "b"', ["b", "(aab)"], ["aaaab"]),
]


@pytest.mark.parametrize(("grammar", "good", "bad"), EITHER_CASE)
def test_letters_of_either_case_do_not_change_an_escape(grammar, good, bad):
    for text in (*good, *bad):
        assert takes(grammar, text) == fits("hermes", grammar, text) == (text in good), text
    made = calls_grammar(form_of("hermes"), tool(grammar), ToolChoice("required"), control=ids_of(()))
    for wrong in (r"A\N\\", r"SELECT\Nend"):
        written = form_of("hermes").text([("p", {"input": "~"})]).replace("~", wrong)
        assert admitted(made, written, ()) is None or admitted(made, written, ()) != "whole"


PLAIN = {"qwen3_xml", "glm45", "glm47", "seed_oss", "minimax_m2", "functiongemma", "gemma4"}


@pytest.mark.parametrize("name", NAMES)
def test_every_format_follows_it_or_refuses_it(name):
    if name in PLAIN:
        with pytest.raises(RequestError, match="p: a grammar that refers to itself is not possible"):
            fits(name, *CASES[0][:1], "1")
        return
    for grammar, good, bad in CASES:
        assert [fits(name, grammar, text) for text in (good[-1], bad[-1])] == [True, False]


@pytest.mark.parametrize(
    "pattern",
    [
        r"[^\n]+",
        r"(.+)",
        r"\s*x",
        r"[\n\r]",
        r'a"b\\',
        r"(?s:.)",
        r"[a-z/\]\\]",
        r"\d\.\n",
        r"x/y{2,}",
        r"(?i:é\x41)",
        r"\S|\W",
    ],
)
def test_what_fits_an_expression_fits_it_with_its_escapes(pattern):
    letters = [*map(chr, range(50)), *map(chr, range(90, 130)), "é", " x", "a\\", 'a"b\\', "1.\n", "x/yyy", "\n\t"]
    grammar = f"start: /{in_json(pattern)}/"
    for text in letters:
        wanted = re.fullmatch(pattern, text, re.ASCII if "\\" in pattern and "W" not in pattern else 0) is not None
        assert (admitted(grammar, json.dumps(text, ensure_ascii=False)[1:-1]) == "whole") == wanted, text


@pytest.mark.parametrize("pattern", [r"\e", r"\p{L}", r"[\p{L}]", "[[a]]", "[a&&b]"])
def test_what_is_not_known_is_said(pattern):
    with pytest.raises(ValueError, match=re.escape(pattern[:2])):
        in_json(pattern)


def test_rules_whose_names_differ_in_case():
    grammar = 'start: "(" Start ")"\nStart: start | "x"\n'
    tools = tool(grammar)
    made = calls_grammar(HERMES, tools, ToolChoice("required"), control={})
    assert admitted(made, HERMES.text([("p", {"input": "((x))"})])) == "whole"


@pytest.mark.parametrize(
    ("grammar", "why"),
    [
        ('start: "(" start', "it has no text with an end: a rule needs itself"),
        ('start: "a" | b\nb: c+ | "x" b\nc: b~1..2', ""),
        ('start: a\na: "x" (b | "y" a)\nb: ["z" start] b', "it has no text with an end"),
        ('start: "(" start? ")"', ""),
        ('start: ("(" start)* "x" | start{0,2}', ""),
        ('start: "(" start | /' + "." * 2000 + "/", "written out it has more than 200,000 characters"),
        ("start: " + " " * 200_000, "it has more than 200,000 characters"),
        ("start: start | x", "there is no rule 'x'"),
        ('start: "(" (start | "x") ")" | /\\p{L}/', "is not possible in a grammar that refers to itself"),
        ("\n".join(["start: a0", *(f"a{n}: a{n + 1}" for n in range(3000)), 'a3000: "x"']), "nested too deeply"),
        (
            "\n".join(["start: a0", *(f'a{n}: "x" start?' for n in range(250))]).replace("a0\n", "a1 | a0\n", 1),
            "251 of its rules",
        ),
    ],
)
def test_what_is_wrong_is_said(grammar, why):
    if why:
        with pytest.raises(RequestError, match=why):
            tool(grammar)
    else:
        calls_grammar(HERMES, tool(grammar), ToolChoice("required"), control={})
