"""Damaged answers: no exception, no lost letter, and the same parts however the text is cut."""

import json
import os
import re
from random import Random

import pytest

from tests.text.tools.test_formats import CALLS, FUNCTIONS, NAMES, control_of, form_of
from tokenmill.text.parts import CallArguments, CallBegin, TextPart
from tokenmill.text.thinking import Thinking
from tokenmill.text.tools.parser import Parser

# Of each format; the defaults make 100,000 in all.
MUTATIONS = int(os.environ.get("TOKENMILL_TOOL_TEXTS", "5_000"))
THINKING = Thinking("<think>", "</think>")
PIECES = [
    "{",
    "}",
    '"',
    "\\",
    "\n",
    " ",
    ",",
    ":",
    "[",
    "]",
    "(",
    ")",
    "<",
    ">",
    "é",
    "\ud7ff",
    "null",
    "1.5e",
    "</parameter>",
]
SAID = ["", "Hello.", "I look.\n", "<think>\nHm\n</think>\n\n", "<think>", "a < b", "\n\n"]
HEADER = re.compile(r"[A-Za-z0-9_.:+/=<|>\s-]")  # letters of headers and of names in them, wherever they stand


def parts_of(name, text, cut, is_trusted, thinking=THINKING):
    """The parts of an answer; pieces of one kind that follow each other are one."""
    parser, at, merged = Parser(form_of(name), FUNCTIONS, thinking=thinking, is_trusted=is_trusted), 0, []
    found = []
    while at < len(text):
        length = len(text) if cut is None else cut.choice([1, 1, 2, 3, 8, 40])
        found += parser.push(text[at : at + length])
        at += length
    for part in found + parser.finish():
        kind = type(part)
        if kind is CallBegin:
            merged.append([kind, part.name, ""])
        elif kind is CallArguments:
            assert merged and any(entry[0] is CallBegin for entry in merged)
            next(entry for entry in reversed(merged) if entry[0] is CallBegin)[2] += part.text
        elif merged and merged[-1][0] is kind:
            merged[-1][2] += part.text
        else:
            merged.append([kind, "", part.text])
    return merged


def mutated(rng, name):
    """An answer with calls of a format, damaged in a few places."""
    form = form_of(name)
    texts = [rng.choice(SAID)]
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        texts += [form.text(rng.choice(CALLS)), rng.choice(SAID)]
    text = "".join(texts)
    marks = [*control_of(name), form.mark or "{", form.opening, form.closing, form.comma or ",", *form.texts()]
    for _ in range(rng.choice([0, 1, 1, 2, 3, 6])):
        at, to = sorted(rng.randrange(len(text) + 1) for _ in range(2))
        change = rng.choice(["cut", "cut short", "insert", "insert", "mark", "mark", "double", "move", "end"])
        short = min(to, at + rng.choice([1, 1, 2, 5]))
        if change == "cut":
            text = text[:at] + text[short:]
        elif change == "cut short" and rng.random() < 0.2:
            text = text[:at] + text[to:]
        elif change == "insert":
            text = text[:at] + rng.choice(PIECES) + text[at:]
        elif change == "mark":
            text = text[:at] + rng.choice(marks) + text[at:]
        elif change == "double":
            text = text[:to] + text[at:to][:80] + text[to:]
        elif change == "move":
            text = text[:at] + text[short:to] + text[at:short] + text[to:]
        elif change == "end":
            text = text[:to]
    return text


def is_whole(name, text, parts, first=True):
    """Whether a text is that of its text parts and, in between, of the calls and thinking that it alone stands for."""
    at = next((number for number, part in enumerate(parts) if part[0] is TextPart), None)
    if at is None:
        return stands_for(name, text, parts, first)
    told, before, place = parts[at][2], parts[:at], text.find(parts[at][2])
    while place >= 0:
        if stands_for(name, text[:place], before, first) and is_whole(
            name, text[place + len(told) :], parts[at + 1 :], False
        ):
            return True
        place = text.find(told, place + 1)
    return False


def stands_for(name, text, parts, first):
    """Whether what stands between texts is read as these parts, and as no text."""
    return parts_of(name, text, None, False, THINKING if first else None) == parts


def check(name, seed):
    rng = Random(f"{name} {seed}")
    text = mutated(rng, name)
    whole = parts_of(name, text, None, False)
    assert parts_of(name, text, rng, False) == whole
    if form_of(name).reader:  # harmony's headers stand between texts too
        assert HEADER.sub("", "".join(part[2] for part in whole)) == HEADER.sub("", text)
    else:
        assert is_whole(name, text, whole), (text, whole)
    for kind, _, arguments in whole:
        assert kind is not CallBegin or isinstance(json.loads(arguments), dict)
    # Nothing of this was made by a grammar, so what is shown of a call may be no call; it must not depend on the cut.
    assert parts_of(name, text, rng, True) == parts_of(name, text, None, True)


@pytest.mark.parametrize("name", NAMES)
def test_damaged_answers(name):
    for seed in range(92):
        check(name, seed)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_many_damaged_answers(name):
    for seed in range(MUTATIONS):
        check(name, seed)
