"""Grammars in Lark as regular expressions: texts that the grammar takes, by llguidance, match, and others do not."""

import re

import llguidance
import pytest

from tokenmill.text.tools.lark_pattern import grouped, pattern_of

PATCH = """start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
ADD = "*** Begin Patch\n*** Add File: a/b.py\n+x = 1\n+\n*** End Patch"
UPDATE = "*** Begin Patch\n*** Update File: a.py\n@@ def f\n-x\n+y\n z\n*** End of File\n*** End Patch\n"
CASES = [
    (PATCH, [ADD, UPDATE], ["", ADD[1:], "*** Begin Patch\n*** End Patch", ADD.replace("+x", "x")]),
    ('start: "a".."c" ~ 2..3 ["!"]', ["ab", "abc!", "cc!"], ["a", "abcd", "ad"]),
    ('start: A{2} | B{1,} // remark\nA: "x"i\nB: /[0-9]/', ["xX", "123"], ["x", "xx1"]),
    (r'start: "a.b\n" /c\/d?/ (" " | "\x41")*', ["a.b\nc/d A A", "a.b\nc/"], ["axb\nc/", "a.b"]),
]
TOKENS = llguidance.LLTokenizer("byte")


def takes(grammar, text):
    """Whether llguidance's own reading of the grammar takes a text."""
    matcher = llguidance.LLMatcher(TOKENS, grammar.replace("~ 2..3", "{2,3}"))
    assert not matcher.get_error()
    ids = TOKENS.tokenize_str(text)
    return (
        matcher.validate_tokens(ids) == len(ids)
        and (matcher.consume_tokens(ids) if ids else True)
        and matcher.is_accepting()
    )


@pytest.mark.parametrize(("grammar", "good", "bad"), CASES)
def test_the_pattern_takes_what_the_grammar_takes(grammar, good, bad):
    pattern = re.compile(pattern_of(grammar))
    for text in (*good, *bad):
        assert (pattern.fullmatch(text) is not None) == takes(grammar, text) == (text in good), text


@pytest.mark.parametrize(
    ("grammar", "why"),
    [
        ('start: "(" start ")" | "x"', "refers to itself"),
        ("start: a", "no rule 'a'"),
        ('a: "x"', "no rule `start`"),
        ('start: "x"\n%ignore " "', "not supported"),
        ('start: ("x"', "not closed"),
        ('start: "x"\nstart: "y"', "twice"),
        ("x", "no rule"),
        ("start: &", "not expected"),
        ("start: /a)|(?:b/", "closes no group"),
        ("\n".join([f"a{n}: a{n + 1} a{n + 1}" for n in range(30)] + ['a30: "x"', "start: a0"]), "characters"),
    ],
)
def test_what_cannot_be_one_is_said(grammar, why):
    with pytest.raises(ValueError, match=why):
        pattern_of(grammar)


@pytest.mark.parametrize("expression", ["a)|(?:b", "a)(", "(a))", "[a])", r"\(a)", "[]a)])", "[[:alpha:])])"])
def test_a_bracket_that_would_close_what_is_around_an_expression_is_said(expression):
    """Else it matched anything that has an `a` at its beginning or a `b` at its end."""
    with pytest.raises(ValueError, match="closes no group"):
        grouped(expression)
    if ":" not in expression:  # Python reads no set in a set
        with pytest.raises(re.error, match="unbalanced"):
            re.compile(expression)


@pytest.mark.parametrize(
    "expression", ["a|b", "", r"a\)", "[)]", "[^])]", "[])(]", r"[\])]", "(a(b))", r"\[(a)", "[[:alpha:])]", "[a[)]]"]
)
def test_an_expression_whose_brackets_are_its_own_is_a_group(expression):
    assert grouped(expression) == f"(?:{expression})"
