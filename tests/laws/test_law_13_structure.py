"""Law 13: who may import whom, no circles, sizes, public names. The house stays a house by test."""

import ast
import math
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import tokenmill
from tests import trunk
from tests.imports import FILES, imports, module, nodes, parsed, room
from tests.rooms import PAGE, RANK, ROOT, page
from tokenmill.registry import (
    ATTEND,
    CHECKPOINTS,
    CODES,
    EXPORTS,
    FAMILIES,
    FORMATS,
    PROGRAMS,
    PROPOSERS,
    SCHEMES,
    Entry,
)

LONGEST_FILE, LONGEST_FUNCTION = 350, 60
MOST_ALIKE = 15  # names that several classes have
TRUNK = ("schedule", "cache", "kernels", "quant", "model", "program", "sample", "speculate", "loader", "engine")
PORTS = {"constrain": "schedule/matcher.py"}
"""A room that is optional → the file of the trunk with the Protocols that it answers, through which the trunk uses it.
"""


def in_each_file(check: Callable[[Path], None]) -> Callable[[str], None]:
    """A test for each room, which makes a check of each of its files; what fails names the file."""

    @pytest.mark.parametrize("name", dict.fromkeys(map(room, FILES)))
    def test(name):
        for path in FILES:
            if room(path) == name:
                check(path)

    test.__doc__ = check.__doc__
    return test


@in_each_file
def test_imports_go_one_way(path):
    if path == ROOT / "__init__.py":
        return  # the public face names rooms of every rank
    for name in imports(path):
        if name == "tokenmill" and "programs" in path.parts:
            continue  # a program of its own, that uses what anybody may use
        other = name.split(".")[1]
        assert room(path) in RANK, f"{path}: give its room a row in tests/rooms.py"
        assert other == room(path) or RANK[other] < RANK[room(path)], f"{module(path)} may not import {name}"


@pytest.mark.parametrize("branch", PORTS)
def test_the_trunk_knows_what_is_optional_by_its_port_alone(branch):
    """A registry names what answers the port."""
    port = ROOT / PORTS[branch]
    users = [path for path in FILES if module(port) in imports(path)]
    assert {room(path) for path in users} & set(TRUNK) and branch in map(room, users)
    for path in FILES:
        if room(path) in TRUNK:
            known = [name for name in imports(path) if name.split(".")[1:2] == [branch]]
            assert not known, f"{module(path)} imports {known}: what it needs of it belongs into {module(port)}"


def test_the_trunk_stands_alone():
    """A person can read it in an evening. Who adds to it takes something out, or has a branch in hand."""
    assert len(trunk.files()) <= 60 and trunk.num_lines() <= 8_000
    assert len(trunk.imported()) <= 20, "what is optional hangs on a port"
    leaves = {"bench", "prove", "measure", "receipts", "batches", "serve", "scale", "cli", "calibrate"}
    assert not leaves & {room(path) for path in trunk.imported()}
    assert trunk.PAGE.read_text(encoding="utf-8") == trunk.page(), "make map"


def test_no_branch_needs_a_leaf():
    """What is measured, proved or told of texts may be taken away."""
    leaves = ("bench", "prove", "batches")
    for path in FILES:
        if room(path) in (*TRUNK, "constrain", "text", "weights", "hub", "parallel"):
            assert not [name for name in imports(path) if name.split(".")[1] in leaves], path


def test_no_module_imports_itself_through_others():
    graph = {module(path): set(imports(path)) for path in FILES}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, f"circle: {' -> '.join((*trail, name))}"
        if name not in done:
            for other in graph.get(name, ()):
                visit(other, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_nothing_imports_the_command_line():
    for path in FILES:
        if room(path) not in ("cli", "__main__"):
            assert not [name for name in imports(path) if name.startswith("tokenmill.cli")], path


@in_each_file
def test_only_registries_import_by_name(path):
    """`lookup(TABLE, ...)` is the only way to an object by name; a reader, mypy and a rename follow everything else."""
    if path == ROOT / "registry.py":
        return
    names = {alias.name for node in nodes(path) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert not names & {"import_module", "__import__"}, f"{path} imports by name"
    for node in nodes(path):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "lookup":
            table = node.args[0]
            assert isinstance(table, ast.Name) and table.id.isupper(), f"{path}:{node.lineno}: give lookup a registry"


@in_each_file
def test_no_table_of_names_stands_outside_the_registry(path):
    """But the public face, which imports nothing by itself. The tables of verbs are of modules, not of objects."""
    if path not in (ROOT / "registry.py", ROOT / "__init__.py"):
        for node in nodes(path):
            is_place = isinstance(node, ast.Constant) and re.match(r"tokenmill\.[\w.]+:\w+$", str(node.value))
            assert not is_place, f"{path}:{node.lineno} names an object by text"


def test_the_registry_needs_no_torch_and_says_what_everything_is():
    assert {name.split(".")[0] for name in external(ROOT / "registry.py")} <= {*sys.stdlib_module_names, "tokenmill"}
    for table in (FAMILIES, FORMATS, PROGRAMS, SCHEMES, ATTEND, PROPOSERS, CODES, EXPORTS):
        assert all(isinstance(entry, Entry) and entry.help for entry in table.values())


@in_each_file
def test_our_own_modules_are_imported_at_the_top_only(path):
    """A verb of the command line may import what is slow when it runs; the public face imports nothing by itself."""
    if room(path) in ("cli", "__init__"):
        return
    for function in nodes(path):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                ours = [name for name in names if name.startswith("tokenmill")]
                assert not ours, f"{path}: {function.name} imports {ours}"


@in_each_file
def test_files_and_functions_stay_short(path):
    text = path.read_text(encoding="utf-8")
    limit = math.inf if path == ROOT / "registry.py" else LONGEST_FILE  # a table, with a line for each name
    assert text.count("\n") <= limit, f"{path} has {text.count(chr(10))} lines"
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= LONGEST_FUNCTION, f"{path}: {node.name} has {length} lines"


@cache
def private_names(path: Path) -> frozenset[str]:
    """Private attributes and methods that the classes of a file define."""
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.ClassDef):
            for inner in ast.walk(node):
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                    found.add(inner.name)
                elif isinstance(inner, ast.AnnAssign | ast.Assign):
                    targets = inner.targets if isinstance(inner, ast.Assign) else [inner.target]
                    names = [name for target in targets for name in ast.walk(target)]
                    found |= {name.id for name in names if isinstance(name, ast.Name)}
                    found |= {name.attr for name in names if isinstance(name, ast.Attribute)}
    return frozenset(name for name in found if name.startswith("_") and not name.startswith("__"))


@cache
def all_private_names() -> frozenset[str]:
    return frozenset().union(*map(private_names, FILES))


@in_each_file
def test_nobody_reads_what_is_private_to_a_class_of_another_file(path):
    ours = all_private_names() - private_names(path)
    for node in nodes(path):
        if isinstance(node, ast.Attribute) and node.attr in ours:
            is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls", "torch")
            assert is_own, f"{path}:{node.lineno} reads {ast.unparse(node)}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "setattr"):
            name = node.args[1]
            assert not (isinstance(name, ast.Constant) and str(name.value).startswith("_")), f"{path}:{node.lineno}"


@in_each_file
def test_every_module_says_what_lives_in_it(path):
    assert ast.get_docstring(parsed(path)), f"{path} has no docstring"


@in_each_file
def test_names_that_say_nothing_are_not_used(path):
    for word in ("utils", "helpers", "manager", "common", "misc"):
        assert word not in path.stem.lower()
    for node in nodes(path):
        if isinstance(node, ast.ClassDef):
            assert not node.name.endswith("Manager"), node.name
            assert not node.name.startswith("Base"), node.name


def test_few_classes_have_a_name_that_another_class_has():
    """A reader who looks for a class finds one."""
    places: dict[str, list[str]] = {}
    for path in FILES:
        for node in nodes(path):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(module(path))
    twice = {name: modules for name, modules in places.items() if len(modules) > 1}
    assert len(twice) <= MOST_ALIKE, twice


def test_scheduling_knows_no_torch():
    for path in (ROOT / "schedule").glob("*.py"):
        assert "torch" not in {name.split(".")[0] for name in external(path)}, path


# What `info` and `plan` ask of a model. The registries among them name facts, never what computes.
DESCRIBING = (
    *("cache.header", "loader.resolve", "hub.names", "measure.cost", "program.aot.manifest"),
    *("weights.checkpoint", "weights.tensor_file", "weights.safetensors_file"),
)
TABLES = (FAMILIES, CHECKPOINTS, CODES, FORMATS, PROGRAMS, SCHEMES)
FACTS = [entry.place if isinstance(entry, Entry) else entry for table in TABLES for entry in table.values()]


def test_what_describes_a_model_needs_no_torch():
    """No module of it imports torch when it is imported, nor does one that it imports."""
    paths = {module(path): path for path in FILES}
    left, seen = [f"tokenmill.{name}" for name in DESCRIBING] + [name.partition(":")[0] for name in FACTS], set[str]()
    while left:
        name = left.pop()
        parts = name.split(".")
        found = imported_at_once(parsed(paths[name]).body)
        assert not [other for other in found if "torch" in other.split(".")], f"{name} imports torch"
        seen.add(name)
        packages = {".".join(parts[:length]) for length in range(1, len(parts))}
        left += [other for other in packages | set(found) if other in paths and other not in seen]
    assert {"tokenmill.model.description", "tokenmill.program.native.spec", "tokenmill.text.tokenizer"} <= seen


def imported_at_once(body: list[ast.stmt]) -> list[str]:
    """What is imported when a module is: not in its functions, and not for types alone."""
    found = []
    for node in body:
        if isinstance(node, ast.ImportFrom):
            found.append(node.module or "")
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            found += imported_at_once(node.orelse)
        elif isinstance(node, ast.If | ast.Try | ast.With):
            found += imported_at_once(node.body)
    return found


def external(path: Path) -> list[str]:
    found = []
    for node in nodes(path):
        found += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        found += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    return found


def test_public_names():
    assert sorted(tokenmill.__all__) == [
        "Adapter",
        "Beam",
        "CapacityError",
        "CheckpointError",
        "Completion",
        "ConfigError",
        "Core",
        "DeadlinePassed",
        "Engine",
        "EngineConfig",
        "NoKernel",
        "NumberTooLarge",
        "PackageMismatch",
        "PackedModelError",
        "Piece",
        "RankLost",
        "Receipt",
        "ReceiptError",
        "Request",
        "RequestError",
        "SamplingParams",
        "Score",
        "Session",
        "SnapshotError",
        "Stream",
        "Timing",
        "TokenLogprobs",
        "TokenmillError",
        "Verification",
        "WrongText",
        "load",
    ]
    for name in tokenmill.__all__:
        assert getattr(tokenmill, name).__doc__


def test_the_map_is_what_make_map_prints():
    assert PAGE.read_text(encoding="utf-8") == page()
