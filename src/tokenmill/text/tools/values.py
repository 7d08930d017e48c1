"""Argument values that a format writes as plain text or as Python literals, and the JSON that they stand for."""

import json
import re
from typing import Any

PYTHON = {"True": "true", "False": "false", "None": "null"}
_LITERAL = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\b(?:True|False|None)\b""", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|(.))", re.DOTALL)
_LETTERS = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "0": "\0", "'": "'", '"': '"', "\\": "\\", "\n": ""}


def json_of_text(text: str) -> str:
    """JSON text of a text, without its quotes; of pieces it is the pieces of the whole."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def json_of_value(written: str, kinds: frozenset[str]) -> str:
    """JSON text of a value of one of these types, which JSON or Python writes so, or which is a text as it stands."""
    stripped = written.strip()
    spelled = PYTHON.get(stripped, stripped)
    found, value = _read(spelled)
    if found and (kind_of(value) & kinds) and not isinstance(value, str):
        return spelled
    if found and isinstance(value, str) and "string" not in kinds:
        return spelled
    return json.dumps(written, ensure_ascii=False)


def json_of_literal(written: str) -> str | None:
    """JSON text of a literal in JSON's or Python's spelling; None for anything else."""
    stripped = written.strip()
    for text in (stripped, _LITERAL.sub(_json_of_python, stripped)):
        if _read(text)[0]:
            return text
    return None


def _json_of_python(found: re.Match[str]) -> str:
    """JSON text of one of Python's texts or names."""
    if found[0] in PYTHON:
        return PYTHON[found[0]]
    return json.dumps(_ESCAPE.sub(_unescaped, found[0][1:-1]), ensure_ascii=False)


def _unescaped(found: re.Match[str]) -> str:
    """The letter that an escape stands for; what is none to Python stays as it is."""
    code = found[1] or found[2]
    return chr(int(code, 16)) if code else _LETTERS.get(found[3], found[0])


def spelled(value: Any) -> str:
    """JSON text of a value, as Python spaces it."""
    return json.dumps(value, ensure_ascii=False)


def kind_of(value: Any) -> frozenset[str]:
    """The types of a value in JSON schema."""
    if isinstance(value, bool):
        return frozenset({"boolean"})
    if isinstance(value, int):
        return frozenset({"integer", "number"})
    for kind, name in ((float, "number"), (str, "string"), (list, "array"), (dict, "object")):
        if isinstance(value, kind):
            return frozenset({name})
    return frozenset({"null"})


def _read(text: str) -> tuple[bool, Any]:
    """Whether a text is JSON, and its value."""
    try:
        return True, json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False, None


def _refuse(name: str) -> None:
    raise ValueError(name)
