"""GBNF is read as llama.cpp reads it, and long grammars take no time that grows with its square."""

import contextlib
import itertools
import json
import random
import re

import pytest
from llguidance.gbnf_to_lark import (
    AlternativeNode,
    GrammarParser,
    LiteralNode,
    RegexNode,
    RuleRefNode,
    SequenceNode,
)

from tests.constrain.walks import accepts, compiled, walk
from tokenmill import ConfigError
from tokenmill.constrain.gbnf import _PARTS, _spelled

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


@pytest.mark.parametrize("grammar", [r'root ::= "\uD83D"', 'root ::= "a" )'])
def test_what_the_translator_cannot_is_refused(grammar, bytes_only):
    with pytest.raises(ConfigError, match=re.escape("as GBNF it is wrong")):
        compiled(bytes_only, grammar=grammar)


@pytest.mark.parametrize("filler", ["\n", " \n", "\\", '\\"', "[", '"', "a\n", "\r", "#"])
def test_a_long_grammar_holds_nobody_up(filler, bytes_only):
    """With a search that grows with the square, this test would take many minutes."""
    for text in (filler * (100_000 // len(filler)), 'root ::= "a"\n' + filler * (100_000 // len(filler))):
        with contextlib.suppress(ConfigError):
            compiled(bytes_only, grammar=text)


# What llama.cpp's guide to GBNF describes, each with texts that fit and texts that do not. The grammars are as those of
# its folder `grammars` are written: white space that may be a line break before a line break, keywords that are names
# too, marks of which one begins the other, rules that refer to themselves.
WHOLE = {
    "white space before a line break": (
        'root ::= (sum "=" ws item "\\n")+\nsum ::= item ([-+*/] item)*\nitem ::= name | num | "(" ws sum ")" ws\n'
        "name ::= [a-z] [a-z0-9_]* ws\nnum ::= [0-9]+ ws\nws ::= [ \\t\\n]*",
        ["a=1\n", "a +(b*2 ) = 3\n", "x=y\n\nb=2\n"],
        ["a=1", "a=\n", "a+=1\n"],
    ),
    "keywords that are names too": (
        'root ::= line*\nline ::= kind name ws "=" ws sum ";" | name ws "=" ws sum ";"\nkind ::= "int" ws | "char" ws\n'
        'name ::= [a-z]+\nws ::= [ \\n]+\nsum ::= name (("+" | "-") sum)? | "(" sum ")"',
        ["int a = b;", "int = b;", "integer = (a+b);", "", "x = y;char c = x;"],
        ["int a b;", "= b;", "int a = b"],
    ),
    "marks of which one begins another": (
        'root ::= "[\\n" ws (value (",\\n" ws value)*)? "]"\n'
        'value ::= "[" ws (value ("," ws value)*)? "]" ws | [0-9]+ ws\n'
        'ws ::= | " " | "\\n" [ \\t]{0,20}',
        ["[\n]", "[\n1,\n2]", "[\n[1,\n 2] ,\n[]]"],
        ["[]", "[\n1,2]"],
    ),
    "a dot is any character": ('root ::= "<" .* ">" .{2}', ["<>ab", "<a\nb>>\n\n", "<é>😀>"], ["<>a", "<ab"]),
    "rules named alike": ('root ::= a-b a_b aB\na-b ::= "1"\na_b ::= "2"\naB ::= "3"', ["123"], ["111", "213"]),
    "choices over lines": ('root ::= ("a" |\n  "b" # one\n)+ x |\n  "c"\nx ::= "!"?', ["ab!", "a", "c"], ["c!", ""]),
    "counts": ('root ::= [a-b]{2} "c"{1,} ("d" | "e"){0,2} root{0,1}', ["abc", "aacccde", "bbcabcd"], ["ac", "abcddd"]),
    "a choice without an end": ('root ::= "a" | "b" loop\nloop ::= "x" loop', ["a"], ["b", "bx"]),
    "an option without an end": ('root ::= "a" loop? (loop | "b")\nloop ::= loop "x"', ["ab"], ["ax"]),
    "a rule that begins with itself": (
        'root ::= root "," item | item\nitem ::= "a" | "(" root ")"',
        ["a,a,(a,a)"],
        ["a,"],
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_grammar_of_llama_cpp_gives_whole_texts(name, bytes_only):
    grammar, fitting, others = WHOLE[name]
    constraint = compiled(bytes_only, grammar=grammar)
    assert [text for text in fitting if not accepts(constraint, text)] == []
    assert [text for text in others if accepts(constraint, text)] == []
    found = [walk(constraint, seed, most=120) for seed in range(12)]
    assert sum(ended for _, ended in found) >= 2
    for text, ended in found:
        assert not ended or fits(grammar, text.decode())


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ('root ::= "a" root', "no text with an end fits it: the rule 'root' needs itself"),
        ('root ::= "a" b\nb ::= c "x"\nc ::= "y"* b | [0-9] c', "no text with an end fits it"),
        ("root ::= x{2,}\nx ::= x | root", "no text with an end fits it"),
        ('root ::= "a" b', "there is no rule 'b'"),
        ('main ::= "a"', "there is no rule 'root'"),
    ],
)
def test_a_grammar_in_which_nothing_ends_says_so(grammar, message, bytes_only):
    with pytest.raises(ConfigError, match=re.escape(message)):
        compiled(bytes_only, grammar=grammar)


def fits(grammar, text):
    """Whether a text fits, by trying every way to read it, one character after the other, as llama.cpp does."""
    rules = {name: rule.alternatives for name, rule in GrammarParser().parse(_PARTS.sub(_spelled, grammar)).items()}
    known = {}

    def ends(node, at):
        """The places at which a part may end that begins at a place."""
        if isinstance(node, RuleRefNode):
            return known.setdefault((node.name, at), set())
        if isinstance(node, LiteralNode):
            letters = json.loads(f'"{node.value}"')
            return {at + len(letters)} if text.startswith(letters, at) else set()
        if isinstance(node, RegexNode):
            return {at + 1} if at < len(text) and re.fullmatch(node.rx, text[at]) else set()
        if isinstance(node, AlternativeNode):
            return set().union(*(ends(each, at) for each in node.alternatives))
        found = {at}
        if isinstance(node, SequenceNode):
            for each in node.nodes:
                found = {end for place in found for end in ends(each, place)}
            return found
        whole = set(found) if node.min_times == 0 else set()
        most = len(text) + node.min_times + 1
        for times in range(1, most + 1 if node.max_times is None else min(most, node.max_times) + 1):
            found = {end for place in found for end in ends(node.node, place)}
            whole |= found if times >= node.min_times else set()
        return whole

    before = None
    while before != known:
        before = {key: set(each) for key, each in known.items()}
        for name, at in [("root", 0), *known]:
            known.setdefault((name, at), set()).update(ends(rules[name], at))
    return len(text) in known["root", 0]


def _random_part(chance, names, depth):
    kind = chance.choice("lsrlsgqa" if depth else "ls")
    if kind == "l":
        return '"' + "".join(chance.choice("ab") for _ in range(chance.randint(1, 3))) + '"'
    if kind == "s":
        return chance.choice(["[a]", "[ab]", "[^a]", "."])
    if kind == "r":
        return chance.choice(names)
    if kind == "g":
        return f"({' '.join(_random_part(chance, names, depth - 1) for _ in range(2))})"
    if kind == "q":
        return f"({_random_part(chance, names, depth - 1)})" + chance.choice(["*", "+", "?", "{2}", "{0,2}", "{1,}"])
    return f"({_random_part(chance, names, depth - 1)} | {_random_part(chance, names, depth - 1)})"


def test_random_grammars_mean_what_they_say(bytes_only):
    """Every text of up to five letters, by every way to read it."""
    chance, num_fitting, num_grammars = random.Random(1), 0, 0
    texts = ["".join(each) for size in range(6) for each in itertools.product("ab", repeat=size)]
    for _ in range(60):
        names = ["root", "x", "y"]
        lines = [f'{name} ::= {" ".join(_random_part(chance, names, 2) for _ in range(2))} | "b"' for name in names]
        try:
            constraint = compiled(bytes_only, grammar="\n".join(lines))
        except ConfigError as error:
            assert "needs itself" in str(error)
            continue
        wanted = [text for text in texts if fits("\n".join(lines), text)]
        assert [text for text in texts if accepts(constraint, text)] == wanted, lines
        num_fitting, num_grammars = num_fitting + len(wanted), num_grammars + 1
    assert num_fitting > 300 and num_grammars > 40
