"""The default tests that a change can reach: `make test-affected` runs these (`python -m tests.affected [COMMIT]`).

A test file is reached by what it imports, at any depth, by what its fixtures in the conftest.py files above use, by the
modules and programs that its texts name, which children run, and by the files that it names and reads. A table of the
registry counts as an import of each of its modules wherever it is looked up; with a literal name, of that one alone.
What nobody names reaches every test.
"""

import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from itertools import accumulate
from pathlib import Path

from tests.source_facts import Facts, facts, tables_of

REPOSITORY = Path(__file__).parent.parent
PACKAGE, REGISTRY, FACE = "src/tokenmill/", "src/tokenmill/registry.py", "src/tokenmill/__init__.py"
EVERYTHING = ("native/", "Makefile", "constraints.txt", "pyproject.toml", "hatch_build.py", "tests/conftest.py")
"""Changed paths that begin so reach every test."""

DOCUMENTS = ("docs/", "examples/", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "mkdocs.yml")
RUNS_DOCUMENTS = ("tests/test_documents.py", "tests/book/")
"""Tests that run what the documents show, and so anything."""

ROOTS = {"", ".", "src", "tests", "src/tokenmill"}


class Reach:
    """What each test file of one tree reaches. texts: each file of Python by its path from the root."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._facts = {path: facts(text) for path, text in texts.items()}
        self._modules = {_module(path): path for path in texts}
        self._scripts: dict[str, list[str]] = {}
        for path in texts:
            self._scripts.setdefault(Path(path).name, []).append(path)
        self._entries = tables_of(texts.get(REGISTRY, ""))
        self._face = tables_of(texts.get(FACE, "")).get("_ELSEWHERE", {})
        self._next = {path: self._files(path) for path in texts}
        self.tests = sorted(path for path in texts if re.fullmatch(r"tests/(.*/)?test_\w+\.py", path))
        self.sources = sorted(path for path in texts if path.startswith(PACKAGE))
        self._reached = {path: self._closure(path) for path in self.tests}

    def of(self, changed: Iterable[str]) -> list[str]:
        """The test files that these changed paths reach, which may be of files that are gone."""
        paths = set(changed)
        if any(path.startswith(EVERYTHING) for path in paths):
            return self.tests
        files, below = set(paths), [path.removesuffix("conftest.py") for path in paths if path.endswith("/conftest.py")]
        for path in paths:
            if not path.endswith(".py") or not path.startswith(("src/", "tests/")):
                named = self._named(path)
                if not named and not path.startswith(DOCUMENTS):
                    return self.tests
                files |= named
        is_source = any(path.startswith("src/") for path in files)
        if is_source:
            files |= {path for path in self._facts if path.startswith("tests/") and self._facts[path].reads_sources}
        if is_source or any(path.startswith(DOCUMENTS) for path in paths):
            below += RUNS_DOCUMENTS
        return [test for test in self.tests if files & self._reached[test] or test.startswith(tuple(below))]

    def _named(self, path: str) -> set[str]:
        """The files of Python that name a file that is none, or lie in its folder or in one above it."""
        parts = Path(path).parts
        wanted = {parts[-1], parts[0], *parts[-2:-1]} - ROOTS
        above = {str(folder) for folder in Path(path).parents} - ROOTS
        # No file of the package reads one that lies outside of it, nor one of another room.
        begins = ("tests/", "/".join((*parts[:3], ""))) if path.startswith(PACKAGE) else ("tests/",)
        return {
            other
            for other, known in self._facts.items()
            if other.startswith(begins) and (str(Path(other).parent) in above or wanted & known.parts)
        }

    def _closure(self, test: str) -> set[str]:
        """The files that a test file reaches, with those that its fixtures use."""
        reached = self._follow({test})
        asking = [self._facts[path] for path in reached if path.startswith("tests/")]
        names = {name for each in asking for name in (*each.arguments, *each.texts)}
        return self._follow(reached | self._of_fixtures(test, names))

    def _follow(self, begin: set[str]) -> set[str]:
        reached, left = set[str](), list(begin)
        while left:
            path = left.pop()
            if path not in reached:
                reached.add(path)
                left += self._next[path]
        return reached

    def _of_fixtures(self, test: str, names: set[str]) -> set[str]:
        """The files that fixtures of these names use, among those that the conftest.py files above a test file have."""
        above = [str(folder / "conftest.py") for folder in Path(test).parents]
        chain = [self._facts[path] for path in above if path in self._facts]
        left = [*names, *(name for each in chain for name in each.begins)]
        seen, found = set[str](), {path for path in above if path in self._facts}
        while left:
            name = left.pop()
            if name not in seen:
                seen.add(name)
                for each in chain:
                    left += each.uses.get(name, ())
                    found |= self._places(each.bound.get(name, ()))
        for each in chain:
            found |= self._places(each.named) | self._looked_up(each)
        return found

    def _files(self, path: str) -> set[str]:
        """The files that one file imports or names, with the packages that they lie in. A conftest.py counts by its
        fixtures, and the face by the names that are asked of it."""
        known = self._facts[path]
        packages = self._places([_module(path)])
        if path.endswith("/conftest.py"):
            return packages
        found = self._places(known.imports) | packages
        if path in (REGISTRY, FACE):
            return found
        for other in [other for other in found if other.endswith("/conftest.py")]:  # imported as any module
            found |= self._places(self._facts[other].imports)
        found |= self._places(known.named) | self._looked_up(known)
        for each in known.texts:
            if each.endswith(".py"):
                found |= set(self._scripts.get(Path(each).name, ()))
        return found

    def _looked_up(self, known: Facts) -> set[str]:
        """The modules of the tables, or of the entries, that a file looks up."""
        found = set()
        for table, name, computes in known.tables:
            tables = self._entries.values() if table == "*" else [self._entries.get(table, {})]
            for entries in tables:
                pairs = [entries[name]] if name in entries else entries.values()
                found |= self._places(pair[computes and bool(pair[1])] for pair in pairs)
        return found

    def _places(self, names: Iterable[str]) -> set[str]:
        """The files of modules, or of names in modules, with the packages above them."""
        found = set()
        for name in names:
            parts = name.split(".")
            found |= {self._modules[whole] for whole in accumulate(parts, _dotted) if whole in self._modules}
            if parts[0] == "tokenmill" and len(parts) > 1 and ".".join(parts[:2]) not in self._modules:
                asked = self._face.values() if parts[1] == "*" else [self._face.get(parts[1], ("", ""))]
                found |= self._places(place for place, _ in asked if place)
        return found


def _dotted(whole: str, name: str) -> str:
    return f"{whole}.{name}"


def _module(path: str) -> str:
    parts = Path(path.removeprefix("src/")).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def affected(changed: Iterable[str], texts: Mapping[str, str]) -> list[str]:
    """The test files that a change of these paths reaches, in the tree whose files of Python have these texts."""
    return Reach(texts).of(changed)


def reach_of_tree() -> Reach:
    """What the tests reach as the files lie here."""
    names = git("ls-files", "--cached", "--others", "--exclude-standard", "src", "tests", "examples")
    paths = [name for name in names if name.endswith(".py")]
    return Reach({path: file.read_text(encoding="utf-8") for path in paths if (file := REPOSITORY / path).is_file()})


def git(*arguments: str) -> list[str]:
    """The lines that git prints."""
    return subprocess.run(
        ["git", *arguments], cwd=REPOSITORY, check=True, capture_output=True, text=True
    ).stdout.splitlines()


def main(since: str = "") -> None:
    """Print the test files that the changes since a commit reach, committed or not: `tests` where these are all."""
    begin = since or git("merge-base", "origin/main", "HEAD")[0]
    changed = git("diff", "--name-only", "--no-renames", begin) + git("ls-files", "--others", "--exclude-standard")
    reach = reach_of_tree()
    found = reach.of(changed)
    sys.stdout.write(" ".join(["tests"] if found == reach.tests else found) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
