"""Markdown: tables, text in code, and the parts of a page that are written by a program."""

import re
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BEGIN, END = "<!-- made by python -m tests.book: {} -->", "<!-- end of what is made -->"
MADE = re.compile(r"<!-- made by python -m tests\.book: (.*?) -->\n(.*?)<!-- end of what is made -->", re.DOTALL)


def code(*words: str) -> str:
    """The words as code, with commas between them."""
    return ", ".join(f"`{word}`" for word in words)


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A table; a cell must not have lines."""
    lines = [list(head), *(list(map(str, row)) for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def with_parts(text: str, parts: dict[str, str]) -> str:
    """The page with each part between the comments that name it. KeyError for a part that nothing makes."""

    def part(found: re.Match[str]) -> str:
        return f"{BEGIN.format(found[1])}\n\n{parts[found[1]].strip()}\n\n{END}"

    return MADE.sub(part, text)
