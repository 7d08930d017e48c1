"""The files of the package, and which of our own modules each of them imports."""

import ast
from functools import cache
from pathlib import Path

from tests.rooms import ROOT

FILES = sorted(ROOT.rglob("*.py"))


def room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def module(path: Path) -> str:
    parts = ("tokenmill", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All of a file, as many tests read it."""
    return tuple(ast.walk(parsed(path)))


@cache
def imports(path: Path) -> list[str]:
    """Modules of ours that a file imports, at its top or in a function, at run time or for types alone."""
    found = []
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tokenmill"):
            found.append(node.module)
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.startswith("tokenmill")]
        assert not (isinstance(node, ast.ImportFrom) and node.level), f"{path}: relative import"
    return found


@cache
def modules() -> dict[str, Path]:
    """Every module by its name."""
    return {module(path): path for path in FILES}


def files_imported(path: Path) -> set[Path]:
    """The files that a file imports, also by `from package import module`."""
    found = set(imports(path))
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {modules()[name] for name in found if name in modules()}
