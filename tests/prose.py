"""The prose of docstrings and comments, as far as patterns tell: no relative clause without its noun, verbs first.

python -m tests.prose      # names each place that needs two readings
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
WITHOUT_NOUN = re.compile(
    r"\b(what is none|none is|none are|those of|that of the|of one (?:of which|whose)|but that)\b", re.IGNORECASE
)
"""A clause whose noun stands elsewhere: the reader looks for it."""
NO_SUBJECT = re.compile(r"(What|Whether|Of|Those|That|Whose|For whom)\b")
"""How no docstring begins: a function's says with a verb what the function does, other ones name the thing."""


def python_places(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the fault of each docstring and comment of a Python file that has one."""
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        words = ast.get_docstring(node)
        if words is None:
            continue
        line = node.body[0].lineno
        yield from ((line, found[0]) for found in WITHOUT_NOUN.finditer(" ".join(words.split())))
        if begun := NO_SUBJECT.match(words):
            yield line, f"begins with {begun[0]}"
    if not any(WITHOUT_NOUN.search(line) for line in text.splitlines() if "#" in line):
        return  # no comment has one, and taking the file apart into tokens takes most of the time
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield from ((token.start[0], found[0]) for found in WITHOUT_NOUN.finditer(token.string))


def native_places(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the fault of each comment of a C++ file that has one."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        _, mark, comment = line.partition("//")
        if mark:
            yield from ((number, found[0]) for found in WITHOUT_NOUN.finditer(comment))


def places() -> list[str]:
    """List every place of the package and of native/ with a fault, as file:line: fault."""
    python = sorted((ROOT / "src").rglob("*.py"))
    native = sorted(path for path in (ROOT / "native").rglob("*") if path.suffix in (".h", ".cpp"))
    found = [(path, place) for path in python for place in python_places(path)]
    found += [(path, place) for path in native for place in native_places(path)]
    return [f"{path.relative_to(ROOT)}:{line}: {fault}" for path, (line, fault) in found]


if __name__ == "__main__":
    sys.stdout.write("".join(f"{each}\n" for each in places()))
