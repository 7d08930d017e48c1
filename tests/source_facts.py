"""What one file of Python imports, names and defines, read from its text: nothing is imported or run for it."""

import ast
import re
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

_DOTTED = re.compile(r"\b(?:tokenmill|tests)(?:\.\w+)+")
_AS_PROGRAM = re.compile(r"""-m tokenmill\b(?!\.)|["']-m["'],\s*["']tokenmill["']""")
_FROM = re.compile(r"from ((?:tokenmill|tests)(?:\.\w+)*) import ([\w ,]+)")


class Facts(NamedTuple):
    """What one file of Python imports, names and defines.

    imports: modules, or names in modules. named: the same, in its texts. tables: (table or "*" for any, name or "" for
    any, whether what computes is asked for). parts: the names in texts that may be paths. arguments: names of
    parameters, which may be fixtures. uses: each definition at the top → the names in it. begins: names that count
    without being asked for: hooks, fixtures that are used everywhere, statements. bound: each imported name → what it
    may stand for. reads_sources: whether it names the folder of the sources, and so may read any of them.
    """

    imports: frozenset[str]
    named: frozenset[str]
    tables: frozenset[tuple[str, str, bool]]
    texts: frozenset[str]
    parts: frozenset[str]
    arguments: frozenset[str]
    uses: dict[str, frozenset[str]]
    begins: frozenset[str]
    bound: dict[str, frozenset[str]]
    reads_sources: bool


def _imported(node: ast.AST) -> dict[str, set[str]]:
    """The names that an import binds → modules, or names in modules, that they may stand for."""
    if isinstance(node, ast.ImportFrom):
        return {alias.asname or alias.name: {f"{node.module}.{alias.name}", node.module or ""} for alias in node.names}
    if isinstance(node, ast.Import):
        return {alias.asname or alias.name.partition(".")[0]: {alias.name} for alias in node.names}
    return {}


@cache
def facts(text: str) -> Facts:
    """The facts of one file, from its text."""
    tree = ast.parse(text)
    every = list(ast.walk(tree))
    skipped = {id(inner) for node in every if _is_for_types(node) for inner in _inside(node.body)}
    prose = {id(node.value) for node in every if isinstance(node, ast.Expr)}
    nodes = [node for node in every if id(node) not in skipped]
    bound: dict[str, set[str]] = {}
    for node in nodes:
        for name, places in _imported(node).items():
            bound.setdefault(name, set()).update(places)
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    of_face = [node for node in attributes if isinstance(node.value, ast.Name) and node.value.id == "tokenmill"]
    if "tokenmill" in bound:
        names = [node for node in nodes if isinstance(node, ast.Name) and node.id == "tokenmill"]
        is_whole = len(names) > len(of_face)  # as in getattr(tokenmill, name)
        bound["tokenmill"] |= {f"tokenmill.{node.attr}" for node in of_face} | ({"tokenmill.*"} if is_whole else set())
    texts = {
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose
    }
    uses, begins = _definitions(tree)
    return Facts(
        frozenset(place for places in bound.values() for place in places),
        frozenset(_named(texts) | ({"tokenmill.__main__"} if _AS_PROGRAM.search(text) else set())),
        frozenset(_tables(nodes, bound)),
        frozenset(texts),
        frozenset(part for each in texts for part in _parts_of_paths(each)),
        frozenset(node.arg for node in nodes if isinstance(node, ast.arg)),
        uses,
        begins,
        {name: frozenset(places) for name, places in bound.items()},
        any(node.attr == "__file__" for node in of_face) or any(re.match(r"src(/|$)", each) for each in texts),
    )


def _named(texts: Iterable[str]) -> set[str]:
    """The modules, or names in modules, of which texts tell, as what a child is to run."""
    found = set()
    for each in texts:
        found |= set(_DOTTED.findall(each))
        for module, given in _FROM.findall(each):
            found |= {module} | {f"{module}.{name.strip().partition(' ')[0]}" for name in given.split(",")}
    return found


def _parts_of_paths(text: str) -> list[str]:
    """The names in a relative path; of the paths in a sentence or command, their last names."""
    if not re.search(r"\s", text):
        return [] if text.startswith("/") else text.split("/")
    return [word.rpartition("/")[2] for word in re.findall(r"[\w./-]+", text) if "." in word]


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _inside(nodes: Iterable[ast.AST]) -> Iterable[ast.AST]:
    return (inner for node in nodes for inner in ast.walk(node))


def _tables(nodes: list[ast.AST], bound: dict[str, set[str]]) -> set[tuple[str, str, bool]]:
    """The tables that a file looks up. Names that are only read of a table import nothing."""
    found, is_all = set(), "import_module" in bound
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "lookup" and node.args:
            table, *rest = node.args
            if isinstance(table, ast.Name):
                name = rest[0].value if rest and isinstance(rest[0], ast.Constant) else ""
                computes = any(word.arg == "computes" for word in node.keywords) or len(rest) > 2
                found.add((table.id, str(name), computes))
            is_all |= not isinstance(table, ast.Name) or not table.id.isupper()
    if any(isinstance(node, ast.Attribute) and node.attr == "lookup" for node in nodes):  # registry.lookup
        found |= {("*", "", computes) for computes in (False, True)}
    if is_all:  # of a table that is chosen at run time, which only a test may do
        given = {name for name, places in bound.items() for place in places if place.startswith("tokenmill.registry.")}
        found |= {(name, "", computes) for name in given for computes in (False, True) if name.isupper()}
    return found


def _definitions(tree: ast.Module) -> tuple[dict[str, frozenset[str]], frozenset[str]]:
    uses, begins = {}, set()
    for node in tree.body:
        inside = {name for inner in ast.walk(node) for name in _names(inner)}
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            decorators = " ".join(map(ast.unparse, node.decorator_list))
            given = re.findall(r"\bname='(\w+)'", decorators)
            for name in (node.name, *given):
                uses[name] = frozenset(inside)
            if "autouse=True" in decorators or node.name.startswith("pytest_"):
                begins.add(node.name)
        elif isinstance(node, ast.ClassDef):
            uses[node.name] = frozenset(inside)
        elif isinstance(node, ast.Assign) and all(isinstance(target, ast.Name) for target in node.targets):
            uses |= {target.id: frozenset(inside) for target in node.targets if isinstance(target, ast.Name)}
        elif not isinstance(node, ast.Import | ast.ImportFrom):
            begins |= inside
    return uses, frozenset(begins)


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.arg):
        return [node.arg]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return list(_imported(node))
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []


def tables_of(text: str) -> dict[str, dict[str, tuple[str, str]]]:
    """The tables of a registry: each name → the module of its facts, and that of what computes with it, or ""."""
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for node in ast.parse(text).body:
        target = (
            node.target
            if isinstance(node, ast.AnnAssign)
            else node.targets[0]
            if isinstance(node, ast.Assign)
            else None
        )
        if isinstance(target, ast.Name) and isinstance(node.value, ast.Dict):
            table = found.setdefault(target.id, {})
            for key, value in zip(node.value.keys, node.value.values, strict=True):
                texts = [inner.value for inner in ast.walk(value) if isinstance(inner, ast.Constant)]
                places = [
                    str(each).partition(":")[0] for each in texts if re.match(r"tokenmill\.[\w.]+(:\w+)?$", str(each))
                ]
                if isinstance(key, ast.Constant) and places:
                    table[str(key.value)] = (places[0], places[1] if len(places) > 1 else "")
    return found
