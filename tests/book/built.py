"""The check of the built book: it loads nothing from elsewhere, and has all its pages. `make docs` runs it.

python -m tests.book.built build/site
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

LOADS = re.compile(
    r'<(?:script|img|link|iframe|source)\b[^>]*?\b(?:src|href)="?((?:https?:)?//[^"\s>]+)', re.IGNORECASE
)
IMPORTS = re.compile(r"""(?:@import\s+|url\()["']?((?:https?:)?//[^"')]+)""")
LEAST = 30  # pages


def main(folder: Path) -> int:
    """Print what was found; the exit code."""
    pages = sorted(folder.rglob("*.html"))
    found = [
        f"{path.relative_to(folder)} loads {address}"
        for kind, pattern in (("html", LOADS), ("css", IMPORTS))
        for path in sorted(folder.rglob(f"*.{kind}"))
        for address in pattern.findall(path.read_text(encoding="utf-8"))
    ]
    found += [f"{path.relative_to(folder)} has a backslash before a bar" for path in pages if _has_backslash(path)]
    searched = {each["location"].partition("#")[0] for each in _search_index(folder)}
    found += [f"the search has {place}" for place in sorted(searched) if place.startswith(("log.", "log/", "map."))]
    if "tutorial.html" not in searched:
        found.append("the search lacks the tutorial")
    if len(pages) < LEAST:
        found.append(f"only {len(pages)} pages are there")
    sys.stdout.write("".join(f"error: {line}\n" for line in found) or f"{folder}/index.html: {len(pages)} pages\n")
    return int(bool(found))


def _search_index(folder: Path) -> list[dict[str, Any]]:
    index = json.loads((folder / "search" / "search_index.json").read_text(encoding="utf-8"))
    docs: list[dict[str, Any]] = index["docs"]
    return docs


def _has_backslash(path: Path) -> bool:
    cells: list[str] = re.findall(r"<td\b.*?</td>", path.read_text(encoding="utf-8"), re.DOTALL)
    return any("\\|" in cell for cell in cells)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
