"""Every error and result that a user of the library can meet is importable from `tokenmill`."""

import ast
import builtins
import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import UnionType
from typing import get_args, get_origin, get_type_hints

import pytest

import tokenmill
from tests.imports import nodes
from tokenmill.engine import core, engine, session

ROOT = Path(tokenmill.__file__).parent
PUBLIC = set(tokenmill.__all__)
OUTSIDE = ("batches", "bench", "cli", "prove", "scale", "serve")  # whose errors become a row, an exit code, an answer
CAUGHT = {
    "GivenUp": "ends a thread of constrain/room.py whose outcome nobody wants",
    "MergeError": "constrain/grammar.py makes a ConfigError of it",
    "NotInvertible": "calibrate/rounding.py makes a CheckpointError of it",
    "NumberError": "constrain/grammar.py makes a ConfigError of it",
    "PatternError": "constrain/grammar.py makes a ConfigError of it",
    "RefersToItself": "serve/request/custom_tools.py takes another way",
    "SchemaError": "constrain/compile.py makes a ConfigError of it",
    "TerminalError": "constrain/gbnf_words.py takes another way",
    "TooMany": "text/schema/number_rules.py leaves multipleOf to llguidance",
    "TooMuchForced": "constrain/compile.py makes a ConfigError of it, sample/sampler.py a RequestError",
}
FACES = (engine.Engine, session.Session, core.Core)


def classes() -> dict[str, tuple[str, list[str]]]:
    """The room of each class in src, and the names of its bases."""
    found = {}
    for path in ROOT.rglob("*.py"):
        for node in nodes(path):
            if isinstance(node, ast.ClassDef):
                found[node.name] = (path.relative_to(ROOT).parts[0], [ast.unparse(base) for base in node.bases])
    return found


@cache
def errors() -> set[str]:
    """Names of the classes of exceptions that a library user can meet."""
    known = classes()
    found = {name for name, each in vars(builtins).items() if isinstance(each, type) and issubclass(each, Exception)}
    while more := {name for name, (_, bases) in known.items() if name not in found and found & set(bases)}:
        found |= more
    return {name for name in found if name in known and known[name][0] not in OUTSIDE}


def test_every_error_is_public():
    assert {"ConfigError", "DeadlinePassed", "NotInvertible"} <= errors()
    assert errors() - PUBLIC == CAUGHT.keys()


def named(hint: object) -> Iterator[type]:
    """The classes within a type."""
    if isinstance(hint, type) and not get_origin(hint):
        yield hint
    elif get_origin(hint) or isinstance(hint, UnionType):
        for inner in get_args(hint):
            yield from named(inner)


PARTS = {
    "loaded",
    "scheduler",
    "speculation",
    "trackers",
    "receipts",
}  # of Core's loop, for server and measurements, not promised


def methods(face: type) -> list[object]:
    found = [each for name, each in inspect.getmembers(face) if not name.startswith("_")]
    return [each.fget if isinstance(each, property) else each for each in found]


@pytest.mark.parametrize("face", FACES)
def test_every_result_is_public_and_every_method_documented(face):
    count = 0
    for method in methods(face):
        for each in () if method.__name__ in PARTS else named(get_type_hints(method).get("return")):
            count += each.__module__.startswith("tokenmill")
            assert not each.__module__.startswith("tokenmill") or each.__name__ in PUBLIC, (method, each)
        assert inspect.getdoc(method), method
    assert count > 1


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_public_names_say_what_they_are(name):
    found = getattr(tokenmill, name)
    assert found.__name__ == name and inspect.getdoc(found)
