"""Prompts for benchmarks/speculation.py: in twenty the output mostly copies the prompt, in ten it does not.

All texts are Python's own: documentation, source and tables of the standard library, so they are there wherever Python
is, and differ a little between its versions. The demo model has 135 million parameters and copies only when it sees
how: every copying conversation has one finished turn as an example, and the answer is begun with a few words.
"""

import ast
import bdb
import calendar
import csv
import difflib
import encodings.aliases
import heapq
import http.server
import inspect
import json
import locale
import mimetypes
import pdb
import pkgutil
import re
import sched
import shelve
import textwrap
import threading
import unicodedata
from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import dataclass
from http import HTTPStatus
from pydoc_data.topics import topics
from typing import Any

__all__ = ["COPYING", "PROSE", "Asked", "all_prompts"]

COPYING, PROSE = "copying", "prose"
MAX_CHARACTERS = 2200  # of a text that is repeated


@dataclass(frozen=True)
class Asked:
    """A conversation that ends with a question, and the words with which its answer begins."""

    name: str
    kind: str
    turns: tuple[str, ...]
    begin: str = ""

    @property
    def messages(self) -> list[dict[str, str]]:
        """The turns as a chat template takes them."""
        return [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(self.turns)]


def all_prompts() -> list[Asked]:
    """The same on every run with the same Python."""
    return [
        *(repeated(name, text) for name, text in REPEATED.items()),
        *(quoted(name, text) for name, text in QUOTED.items()),
        *(renamed(*edit) for edit in EDITS),
        *(changed(name, records(), number, key, new) for name, records, number, key, new in RECORDS),
        *(Asked(f"prose {number}", PROSE, (text,)) for number, text in enumerate(QUESTIONS, start=1)),
    ]


# ---- texts, repeated or quoted

ZEN = """\
Beautiful is better than ugly.
Explicit is better than implicit.
Simple is better than complex.
Complex is better than complicated.
Flat is better than nested.
Sparse is better than dense.
Readability counts."""
LONGER_ZEN = f"""\
{ZEN}
Special cases aren't special enough to break the rules.
Although practicality beats purity.
Errors should never pass silently."""
QUOTED_ZEN = (
    '"Beautiful is better than ugly. Explicit is better than implicit. Simple is better than complex. '
    'Complex is better than complicated. Readability counts."'
)

REPEATED = {
    "function": topics["function"],
    "class": topics["class"],
    "pdb": pdb.__doc__,
    "request handler": http.server.BaseHTTPRequestHandler.__doc__,
}
QUOTED = {
    "global": topics["global"],
    "naming": topics["naming"],
    "shelve": shelve.__doc__,
    "extend path": pkgutil.extend_path.__doc__,
}


def repeated(name: str, text: str | None) -> Asked:
    """The answer is the text."""
    ask, text = "Repeat this text word for word:\n\n", paragraphs(text)
    return Asked(f"repeat {name}", COPYING, (ask + ZEN, ZEN, ask + text), first_words(text, 5))


def quoted(name: str, text: str | None) -> Asked:
    """The answer is sentences of the text."""
    ask, text = "Summarise this text by quoting what matters most in it, word for word:\n\n", paragraphs(text)
    return Asked(f"quote {name}", COPYING, (ask + LONGER_ZEN, QUOTED_ZEN, ask + text), '"' + first_words(text, 6))


def paragraphs(text: str | None) -> str:
    """The paragraphs of plain text, from the first on, each in one line."""
    kept: list[str] = []
    for paragraph in (text or "").split("\n\n"):
        line = " ".join(paragraph.split())
        if len(line) <= 100 or ">>>" in line or "::=" in line:
            continue
        if len("".join(kept)) + len(line) > MAX_CHARACTERS:
            break
        kept.append(line)
    return "\n\n".join(kept)


def first_words(text: str, number: int) -> str:
    """The text up to the end of its word of that number."""
    return text[: list(re.finditer(r"\S+", text))[number - 1].end()]


# ---- edits of code

EXAMPLE = """\
def total(values):
    s = 0
    for value in values:
        if value > 0:
            s += value
    return s"""

EDITS: List[tuple[Any, str, str]] = [
    (csv.DictReader, "row", "line"),
    (sched.scheduler, "priority", "rank"),
    (threading.Semaphore, "blocking", "waits"),
    (heapq.merge, "order", "turn"),
    (bdb.Breakpoint, "cond", "condition"),
    (difflib.SequenceMatcher.get_matching_blocks, "queue", "todo"),
]


def renamed(thing: Any, old: str, new: str) -> Asked:
    """The answer is the code with another name for something."""
    code = code_of(thing)
    ask = "Rename {} to {} in this code, and print the whole code.\n\n{}"
    turns = ask.format("s", "result", EXAMPLE), with_name(EXAMPLE, "s", "result"), ask.format(old, new, code)
    return Asked(f"rename {thing.__name__}", COPYING, turns, first_words(with_name(code, old, new), 10))


def with_name(code: str, old: str, new: str) -> str:
    return re.sub(rf"\b{old}\b", new, code)


def code_of(thing: Any) -> str:
    """The source of a function or class without comments and docstrings."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(thing)))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


# ---- JSON, printed again

Record = dict[str, Any]
SMALL: list[Record] = [{"id": 1, "name": "apple", "price": 3}, {"id": 2, "name": "pear", "price": 5}]


def statuses() -> list[Record]:
    found = [{"code": each.value, "name": each.phrase, "about": each.description} for each in HTTPStatus]
    return found[:14]


def media_types() -> list[Record]:
    return [{"ending": ending, "type": name} for ending, name in sorted(mimetypes.MimeTypes().types_map[1].items())][
        :28
    ]


def letters() -> list[Record]:
    codes = range(ord("!"), ord("7"))
    return [{"code": c, "name": unicodedata.name(chr(c)), "kind": unicodedata.category(chr(c))} for c in codes]


def months() -> list[Record]:
    names, short = calendar.month_name, calendar.month_abbr
    days = [0, *(calendar.monthrange(2023, at)[1] for at in range(1, 13))]
    return [{"month": at, "name": names[at], "short": short[at], "days": days[at]} for at in range(1, 13)]


def codecs() -> list[Record]:
    return [{"alias": alias, "codec": codec} for alias, codec in sorted(encodings.aliases.aliases.items())][:26]


def languages() -> list[Record]:
    return [{"id": number, "locale": name} for number, name in sorted(locale.windows_locale.items())][:28]


RECORDS: List[tuple[str, Callable[[], list[Record]], int, str, object]] = [
    ("statuses", statuses, 4, "code", 999),
    ("media types", media_types, 3, "type", "text/plain"),
    ("letters", letters, 2, "kind", "Xx"),
    ("months", months, 4, "days", 31),
    ("codecs", codecs, 3, "codec", "utf_8"),
    ("languages", languages, 3, "locale", "xx_XX"),
]


def changed(name: str, records: list[Record], number: int, key: str, new: object) -> Asked:
    """The answer is the records again, one field changed."""
    ask = "{}\n\n{} and print all records again."
    turns = (
        ask.format(json.dumps(SMALL, indent=1), "Change the price of record 2 to 7,"),
        json.dumps(with_field(SMALL, 2, "price", 7), indent=1),
        ask.format(json.dumps(records, indent=1), f"Change the {key} of record {number} to {new},"),
    )
    return Asked(
        f"JSON {name}", COPYING, turns, first_words(json.dumps(with_field(records, number, key, new), indent=1), 10)
    )


def with_field(records: list[Record], number: int, key: str, new: object) -> list[Record]:
    return [{**record, key: new} if at == number else record for at, record in enumerate(records, start=1)]


# ---- prose

QUESTIONS = [
    "Explain why leaves change their colour in autumn.",
    "What happens in a volcano before it erupts?",
    "Write a short story about an old clockmaker and his apprentice.",
    "What should one think about before adopting a dog?",
    "Explain how bread is made, and why the dough rises.",
    "Tell me about the history of the printing press.",
    "Explain what an orchestra's conductor does.",
    "Write about a day in the life of a mail carrier in the mountains.",
    "Explain how glass is made.",
    "Explain what money is for, and how people traded before there was any.",
]
