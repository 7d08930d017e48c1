"""The rooms of the package, in their order, and docs/map.md, whose tables are made of them and of the first sentence of
each module's docstring. `make map` (`python -m tests.rooms`) writes the page.
"""

import ast
import re
from pathlib import Path

import tokenmill

ROOT = Path(tokenmill.__file__).parent
REPOSITORY = ROOT.parent.parent
PAGE = REPOSITORY / "docs" / "map.md"

# A room may import rooms of an earlier row, and files of its own room. A room without a line here is one file, and its
# docstring has the line.
ROOMS: list[dict[str, str]] = [
    {"process": "", "units": "", "version": ""},
    {"errors": ""},
    {"registry": "", "value_reader": ""},
    {"settings": "what can be chosen"},
    {"memory": "where bytes live"},
    {"text": "prompt → tokens → text"},
    {"schedule": "who runs next (no torch)"},
    {"cache": "where K and V live"},
    {"kernels": "tensor functions without state"},
    {"quant": "how matrices are stored"},
    {"model": "the arithmetic"},
    {"hub": "names → files"},
    {"weights": "files → parameters"},
    {"parallel": "several processes compute each step"},
    {"program": "one forward, several forms"},
    {"sample": "logits → token"},
    {"constrain": "grammar → which tokens may come"},
    {"speculate": "guess and check"},
    {"loader": "the name of a model → a loaded model"},
    {"receipts": "what a text was computed from"},
    {"engine": "the loop and its faces"},
    {"calibrate": "matrices quantised for their inputs"},
    {"measure": "what a run costs and took"},
    {"bench": "comparing runs (extra: `[bench]`)"},
    {"batches": "rows of files in, rows with answers out"},
    {"prove": "the promise, checked from outside (extra: `[bench]`)"},
    {"serve": "the OpenAI server (extra: `[serve]`)"},
    {"scale": "several engines behind one address (extra: `[ray]`)"},
    {"cli": "one file per verb"},
    {"__main__": ""},
]
RANK = {room: rank for rank, rooms in enumerate(ROOMS) for room in rooms}

FIRST, LAST = "<!-- make map writes the tables from here -->\n", "<!-- to here -->\n"
HEAD = "| file | what lives there |\n|---|---|\n"


def first_sentence(path: Path) -> str:
    """The first sentence of a module's docstring, without its stop."""
    paragraph = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n\n")[0]
    sentence = re.split(r"(?<=\.)\s+(?=[A-Za-z`\[(])", " ".join(paragraph.split()), maxsplit=1)[0]
    return sentence.rstrip(".:").replace("|", r"\|")


def line(path: Path) -> str:
    """The row of one file; a package stands for its `__init__.py`."""
    is_package = path.name == "__init__.py" and path.parent != ROOT
    name = (
        path.parent.relative_to(REPOSITORY).as_posix() + "/" if is_package else path.relative_to(REPOSITORY).as_posix()
    )
    return f"| `{name}` | {first_sentence(path)} |\n"


def files_of(room: str) -> list[Path]:
    """The files of a room: each folder after the files beside it, and its `__init__.py` first."""
    return sorted((ROOT / room).rglob("*.py"), key=lambda path: [(part != "__init__.py", part) for part in path.parts])


def tables() -> str:
    """A table of the files that lie in no room, then one for each room in its order."""
    alone = [ROOT / f"{room}.py" for rooms in ROOMS for room, told in rooms.items() if not told]
    parts = ["## The files\n\n" + HEAD + line(ROOT / "__init__.py") + "".join(map(line, alone))]
    for rooms in ROOMS:
        for room, told in rooms.items():
            if told:
                parts.append(f"## {room}: {told}\n\n" + HEAD + "".join(map(line, files_of(room))))
    return "\n".join(parts)


def page() -> str:
    """docs/map.md as it should be: its hand-written beginning and end, with the tables between them."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(FIRST)
    return before + FIRST + "\n" + tables() + "\n" + LAST + rest.partition(LAST)[2]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
