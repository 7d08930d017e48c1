"""The public surface as text: names of Python with signatures, options of the command line, HTTP, formats of files.

`python -m tests.compatibility.surface` writes it to public.txt, on purpose: what scripts and programs rely on is in
there. It is read from the source, so that it does not depend on the version of Python.
"""

import ast
import re
import tempfile
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path

import tokenmill
from tests.word_model import save_chat_model
from tokenmill.batches import journal
from tokenmill.cache import header
from tokenmill.cli.parser.command import Command
from tokenmill.cli.parser.other_names import ALIASES
from tokenmill.receipts import receipt
from tokenmill.registry import VERBS
from tokenmill.serve.facts.document import document_of
from tokenmill.serve.start.options import Options
from tokenmill.serve.start.server import Served
from tokenmill.weights.packed import reader

PAGE = Path(__file__).with_name("public.txt")
ROOT = Path(tokenmill.__file__).parent
LOOP = (
    "call wait watch enqueue run_to_end check_scored release release_with observed_by loop inputs thread step_begun_s"
)
NOT_PROMISED = {
    "Core": (*LOOP.split(), "loaded", "scheduler", "speculation", "trackers", "receipts", "__init__"),
    "Engine": ("__init__",),
    "Session": ("__init__", "core", "open", "begin_load"),
    "Stream": ("__init__",),
    "Completion": ("origin",),
    "Request": ("trackers", "sequences", "forget_errors"),
}
"""Attributes that are there for the server and for measurements; and what others make."""
SPECIAL = ("__init__", "__enter__", "__iter__", "__aiter__", "__len__", "__str__")


def definition(found):
    """The statement that defines a function or a class."""
    path = ROOT.parent / f"{found.__module__.replace('.', '/')}.py"
    if not path.exists():
        path = path.with_suffix("") / "__init__.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return next(node for node in tree.body if getattr(node, "name", None) == found.__name__)


def signature(node):
    result = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    return f"{node.name}({ast.unparse(node.args)}){result}"


def is_property(node):
    return any(getattr(each, "id", "") in ("property", "cached_property") for each in node.decorator_list)


def members(found):
    """The public members that a class has in its own source."""
    left_out, node = NOT_PROMISED.get(found.__name__, ()), definition(found)
    if is_dataclass(found):
        for field in fields(found):
            default = "" if field.default is MISSING else f" = {field.default!r}"
            if is_public(field.name, left_out):
                yield f"{field.name}: {annotation(node, field.name)}{default}"
    for each in node.body:
        if not isinstance(each, ast.FunctionDef) or any("overload" in ast.unparse(one) for one in each.decorator_list):
            continue
        if is_property(each) and is_public(each.name, left_out):
            yield f"{each.name} -> {ast.unparse(each.returns)}"
        elif is_public(each.name, left_out) or (each.name in SPECIAL and each.name not in left_out):
            yield signature(each)
        if each.name == "__init__":
            yield from sorted(name for name in assigned(each) if is_public(name, left_out))


def is_public(name, left_out):
    return not name.startswith("_") and name not in left_out


def assigned(function):
    """The attributes that a function gives to self."""
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr


def annotation(node, name):
    found = [each for each in node.body if isinstance(each, ast.AnnAssign) and each.target.id == name]
    return ast.unparse(found[0].annotation)


def python_lines():
    for name in sorted(tokenmill.__all__):
        found = getattr(tokenmill, name)
        if not isinstance(found, type):
            yield signature(definition(found))
            continue
        bases = [each.__name__ for each in found.__bases__ if issubclass(each, BaseException)]
        yield f"class {name}{f'({bases[0]})' if bases else ''}"
        yield from (f"  {line}" for line in members(found))


def command_lines():
    for command in map(Command, sorted(VERBS)):
        yield f"tokenmill {command.path}"
        for parameter in command.parameters:
            yield f"  {' '.join([*parameter.names, *parameter.off]) or parameter.name.upper()}"
    yield "other names"
    yield from (f"  {alias} = {name}" for alias, name in sorted(ALIASES.items()))


def properties(schema, document, prefix="", seen=()):
    """The fields of a body or an answer, those of objects within behind a dot, of lists behind []."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name not in seen:
            yield from properties(document["components"]["schemas"][name], document, prefix, (*seen, name))
        return
    for part in (*schema.get("anyOf", ()), *schema.get("allOf", ()), *schema.get("oneOf", ())):
        yield from properties(part, document, prefix, seen)
    if isinstance(schema.get("items"), dict):
        yield from properties(schema["items"], document, f"{prefix}[]", seen)
    for name, inner in schema.get("properties", {}).items():
        place = f"{prefix}.{name}" if prefix else name
        yield place + (" (required)" if name in schema.get("required", ()) else "")
        yield from properties(inner, document, place, seen)


def http_lines():
    with tempfile.TemporaryDirectory() as folder:
        engine = tokenmill.load(save_chat_model(Path(folder)), max_length=64, packed_cache=False)
        parts = {"session_dir": Path(folder) / "sessions", "batch_dir": Path(folder) / "batches"}
        service = Served(engine, Options(name="words", **parts)).service
        document = document_of(service.routes, service.options)
        engine.close()
    for path, methods in sorted(document["paths"].items()):
        for method, told in sorted(methods.items()):
            yield f"{method.upper()} {path}"
            for each in told.get("parameters", ()):
                yield f"  {each['in']} {each['name']}"
            for kind, content in told.get("requestBody", {}).get("content", {}).items():
                fields_of = sorted(set(properties(content.get("schema", {}), document)))
                yield from (f"  takes {kind} {name}" for name in fields_of)
            for code, answer in sorted(told.get("responses", {}).items()):
                if code.startswith("2"):
                    for kind, content in answer.get("content", {}).items():
                        found = properties(content.get("schema", {}), document)
                        names = sorted({each.removesuffix(" (required)") for each in found})
                        yield from (f"  gives {kind} {name}" for name in names)


def environment_lines():
    """The variables that are read, as the source spells them."""
    found = set()
    for path in ROOT.rglob("*.py"):
        found |= set(re.findall(r"[\"'](TOKENMILL_[A-Z_]+)[\"']", path.read_text(encoding="utf-8")))
    yield from sorted(found)


def file_lines():
    yield f"saved session, prefix block: {header.FORMAT}"
    yield f"packed model: {reader.FORMAT}"
    yield f"receipt: {receipt.FORMAT}"
    yield f"journal of a batch: {journal.FORMAT}"


SECTIONS = {
    "Python": python_lines,
    "Command line": command_lines,
    "HTTP": http_lines,
    "Environment": environment_lines,
    "Formats of files": file_lines,
}


def page():
    """The text that public.txt must have."""
    return "\n".join(f"# {title}\n\n" + "".join(f"{line}\n" for line in lines()) for title, lines in SECTIONS.items())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
