"""GBNF is read as llama.cpp reads it, and long grammars take no time that grows with its square."""

import contextlib
import re

import pytest

from tests.constrain.walks import accepts, compiled
from tokenmill import ConfigError

LETTERS = [chr(number) for number in (*range(32, 127), 0xE9, 0x41BC, 0x1F600)]
SETS = {
    r"[\u0041BC]": "ABC",
    r"[a&&b]": "a&b",
    r"[+--]": "+,-",
    r"[+--a]": "+,-a",
    r"[!--~]": "!\"#$%&'()*+,-~",
    r"[a-c-]": "abc-",
    r"[-a]": "-a",
    r"[a~~b\]\\]": "a~b]\\",
    r"[\U0001F600é/[]": "😀é/[",
    r"[\x41-\u0043^]": "ABC^",
}


@pytest.mark.parametrize("given", SETS)
@pytest.mark.parametrize("sign", ["", "^"])
def test_a_set_is_the_characters_that_it_names(given, sign, bytes_only):
    constraint = compiled(bytes_only, grammar=f"root ::= [{sign}{given[1:]}")
    found = {letter for letter in LETTERS if accepts(constraint, letter)}
    assert found == (set(LETTERS) - set(SETS[given]) if sign else set(SETS[given]))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (r'"\u0041BC"', "ABC"),
        (r'"\U0001F600\u00e9x"', "😀éx"),
        (r'"\"\u0022\\u0041"', '""\\u0041'),
        ('"#[a&&b]"', "#[a&&b]"),
    ],
)
def test_a_text_is_what_it_spells(given, text, bytes_only):
    constraint = compiled(bytes_only, grammar=f'root ::= {given} # a comment with " and [\n')
    assert accepts(constraint, text) and not accepts(constraint, text + "x")


@pytest.mark.parametrize("grammar", ['root ::= a-b a_b\na-b ::= "1"\na_b ::= "2"', r'root ::= "\uD83D"'])
def test_what_the_translator_cannot_is_refused(grammar, bytes_only):
    with pytest.raises(ConfigError, match=re.escape("as GBNF it is wrong")):
        compiled(bytes_only, grammar=grammar)


@pytest.mark.parametrize("filler", ["\n", " \n", "\\", '\\"', "[", '"', "a\n", "\r", "#"])
def test_a_long_grammar_holds_nobody_up(filler, bytes_only):
    """With a search that grows with the square, this test would take many minutes."""
    for text in (filler * (200_000 // len(filler)), 'root ::= "a"\n' + filler * (200_000 // len(filler))):
        with contextlib.suppress(ConfigError):
            compiled(bytes_only, grammar=text)
