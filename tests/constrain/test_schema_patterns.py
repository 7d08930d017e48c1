r"""Expressions in schemas and in `regex`: what ECMA-262 and Python's re say of a text, not what Rust's library would.

The values of the table are those of Node 20 (RegExp, with the flag u where it takes the expression) and of Python.
"""

import json
import random
import re
import warnings

import pytest

from tests.constrain.walks import accepts, compiled, walk
from tokenmill.errors import ConfigError
from tokenmill.text.schema.expression import PatternError
from tokenmill.text.schema.pattern import anywhere, matches, of_schema, plain, whole


def _json(text):
    return json.dumps(text, ensure_ascii=False)


@pytest.mark.parametrize(
    ("pattern", "fits", "fails"),
    [
        ('^[^"]*$', ["plain", "a\\b", "é\n"], ['say "hi"', '"']),
        (r"^[^\\]*$", ["plain", '"'], ["C:\\x", "\\"]),
        (r'^[^",]+$', ["ab"], ['a"b', "a,b", ""]),
        (r'^[^"\n]$', ["a", "\\"], ['"', "\n"]),
        (r"^[^[\]]*$", ["ab", ""], ["[", "a]"]),
        (r"^[[(]$", ["[", "("], ["]", "[("]),
        (r"^[!--]$", ["!", "-", ",", '"'], [".", "a"]),
        (r"^[+--]$", ["+", ",", "-"], ["*", "."]),
        (r"^[a~~b]$", ["~", "a", "b"], ["c"]),
        (r"^[a&&b]$", ["&", "a", "b"], ["c", "ab"]),
        (r"^[[a]b]$", ["ab]", "[b]"], ["a", "b"]),
        (r"^[\w.-]+$", ["a-b.c_9"], ["a b", "a/b", "é"]),
        (r"^\d+$", ["19"], ["", "a", "٣"]),
        (r"^\s$", [" ", "\t", "\u00a0"], ["a", ""]),
        (r"^[^\s]+$", ["ab"], ["a b", "\u00a0"]),
        (r"^.$", ["a", "é", "🙂"], ["\n", "\r", "", "ab"]),
        (r"^[^]$", ["a", "\n", '"'], ["", "ab"]),
        (r"^a/b\/c\-$", ["a/b/c-"], ["a/b"]),
        (r"^\u0041\x42\u{43}\cJ\t$", ["ABC\n\t"], ["ABC"]),
        (r"^\ud83d\ude42$", ["🙂"], ["a"]),
        (r"^(?<year>\d{4})-(?:0[1-9]|1[0-2])$", ["2024-02"], ["2024-13"]),
        (r"^a*?b+?$", ["b", "aabb"], ["a", "c"]),
        ("a|b", ["xay", "b"], ["c", ""]),
        ("^a|b$", ["ax", "xb", "a"], ["xa", "bx"]),
        ("(^|,)x(,|$)", ["x", "a,x", "x,b", "a,x,b"], ["xx", "a x"]),
        ("^$", [""], ["a", "\n"]),
        ("^(a$|b)", ["a", "bx"], ["ax"]),
        (r"^\p{Lu}\P{Lu}$", ["Éé"], ["éÉ"]),
        ("^(?i:ab)c$", ["ABc", "abc"], ["abC"]),
        (r"^[\b\f\v\0]$|^x$", ["\b", "\f", "\v", "x"], ["b", "v"]),
    ],
)
def test_a_pattern_of_a_schema(bytes_only, pattern, fits, fails):
    constraint = compiled(bytes_only, json_schema={"type": "string", "pattern": pattern})
    assert [text for text in fits if not accepts(constraint, _json(text))] == []
    assert [text for text in fails if accepts(constraint, _json(text))] == []
    if "\\p" not in pattern:
        assert [text for text in fits if not matches(pattern, text)] == []
        assert [text for text in fails if matches(pattern, text)] == []


@pytest.mark.parametrize(
    ("regex", "fits", "fails"),
    [
        (r"[a-z--b]", ["-", "b", "a", "a", "~"][:3], ["~", "ab"]),
        (r"^[[a]b]$", ["ab]"], ["a"]),
        (r"^\d{2}$", ["12"], ["1", "٣٣"]),
        (r"a{,2}", ["", "aa"], ["aaa"]),
        (r"(?i)yes|no", ["YES", "nO"], ["y"]),
        (r"(?s).", ["\n", "a"], [""]),
        ('[^"]', ["a", "\0", "\\"], ['"']),
    ],
)
def test_an_expression_of_a_whole_text(bytes_only, regex, fits, fails):
    constraint = compiled(bytes_only, regex=regex)
    assert [text for text in fits if not accepts(constraint, text)] == []
    assert [text for text in fails if accepts(constraint, text)] == []


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(?<!a)b", "look-behind, as (?<! is"),
        (r"(a)\1", r"\1 is not possible: an expression does not refer to what a group has matched"),
        (r"\ba", r"\b is not possible: an expression does not look back"),
        (r"\q", r"\q is not possible: it is no escape of ECMA-262"),
        ("a++", "a repetition that gives nothing back"),
        ("(a", "an unclosed group: a ( of '(a' has no )"),
        ("a)", "a ) of 'a)' closes no group"),
        ("[a", "a [ of '[a' is not closed"),
        ("[b-a]", "the range b-a ends before it begins"),
        ("*a", "* repeats nothing"),
        ("(^a)*", "^ or $ inside of a repetition is not possible"),
        ("a{3,2}", "{3,2} has a least number above its greatest one"),
        ("a\\", "a \\ at the end escapes nothing"),
    ],
)
def test_what_is_refused_and_why(bytes_only, pattern, message):
    with pytest.raises(PatternError, match=re.escape(message)):
        of_schema(pattern)
    for settings in ({"json_schema": {"properties": {"a": {"pattern": pattern}}}}, {"regex": pattern}):
        if pattern != "(^a)*" or "regex" not in settings:
            with pytest.raises(ConfigError, match=re.escape(message)):
                compiled(bytes_only, **settings)


def _random_pattern(chance, depth=0):
    parts = []
    for _ in range(chance.randint(1, 4)):
        members = [
            chance.choice(["a", "b", '"', r"\\", "[", "&&", "--", "~~", "-", r"\d", r"\W", r"\S", "a-c", "^", "/"])
        ]
        part = chance.choice(
            [
                chance.choice(["a", "b", '"', r"\\", "&", "~", r"\.", "/", "é", "1", ".", r"\d", r"\w", r"\s", r"\D"]),
                f"[{chance.choice(['', '^'])}{''.join(members * chance.randint(1, 2))}]",
                f"({_random_pattern(chance, depth + 1)})" if depth < 2 else "a",
            ]
        )
        parts.append(part + chance.choice(["", "", "*", "+", "?", "{2}", "{1,2}", "*?"]))
    return "".join(parts) + (f"|{_random_pattern(chance, 2)}" if chance.random() < 0.2 else "")


@pytest.mark.parametrize("seed", range(4))
def test_no_text_is_taken_that_pythons_library_refuses(bytes_only, seed):
    chance, num_taken = random.Random(seed), 0
    for _ in range(40):
        pattern = chance.choice(["", "^"]) + _random_pattern(chance) + chance.choice(["", "$"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                expected = re.compile(pattern)
            except re.error:
                continue
        try:
            constraint = compiled(bytes_only, json_schema={"type": "string", "pattern": pattern})
        except ConfigError as error:
            assert "nsatisfiable" in str(error) or "ends before it begins" in str(error)
            continue
        for _ in range(12):
            text = "".join(chance.choice('ab"\\[]&-~^./1é \n') for _ in range(chance.randint(0, 4)))
            taken = accepts(constraint, _json(text))
            assert expected.search(text) or not taken, (pattern, text)
            num_taken += taken
    assert num_taken > 20


def test_walks_match_a_pattern_that_excludes_the_quote(vocabulary):
    constraint = compiled(vocabulary, json_schema={"type": "string", "pattern": '^[^"\\\\]{2,9}$'})
    texts = [json.loads(text) for seed in range(20) for text, ends in [walk(constraint, seed)] if ends]
    assert texts and all(re.search('^[^"\\\\]{2,9}$', text) for text in texts)


def test_an_expression_is_read_as_written_and_its_own_spelling_again():
    for pattern in ("^a[^b]c{2,}$", "x|(y|z)?", r"[\d.]+", r'\p{L}+[^\p{Lu}"][\P{P}a]', "^a|b$", r"^\s*\S$"):
        assert plain(whole(plain(whole(pattern)))) == plain(whole(pattern))
        assert of_schema(of_schema(pattern)) == of_schema(pattern)
    assert plain(anywhere("^a$")) == plain(whole("^a$")) == "a"
    with pytest.raises(PatternError, match="more than 150 groups are open"):
        whole("(" * 200 + ")" * 200)


def test_long_expressions_take_no_longer_than_their_size():
    assert of_schema("^" + "ab" * 20_000 + "$").count("b") == 20_000
    with pytest.raises(PatternError, match=r"it has 20,000 of \^ and \$; 100 are possible"):
        of_schema("(^|a)" * 20_000)
