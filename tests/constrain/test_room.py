"""Grammars whose rules stand deep in one another end no process."""

import threading

import pytest

from tests.constrain.walks import accepts
from tokenmill.constrain.compile import Compiler
from tokenmill.constrain.enforced import enforced
from tokenmill.constrain.grammar import spec_of
from tokenmill.constrain.room import with_room
from tokenmill.errors import RequestError
from tokenmill.settings.sampling_params import SamplingParams
from tokenmill.text.tools.functions import Function

NUMBER = 12_000
SCHEMA = {
    "$ref": "#/$defs/d0",
    "$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(NUMBER)} | {f"d{NUMBER}": {"const": "a"}},
}
DEEP = {
    "rules": (
        {"grammar": "start: r0\n" + "".join(f"r{n}: r{n + 1}\n" for n in range(NUMBER)) + f'r{NUMBER}: "a"'},
        "a",
    ),
    "references": ({"json_schema": SCHEMA}, '"a"'),
}


@pytest.mark.parametrize("kind", DEEP)
def test_deep_grammars_are_compiled_and_made_anew(kind, bytes_only):
    settings, text = DEEP[kind]
    constraint = Compiler(bytes_only).compile(spec_of(SamplingParams(**settings)))
    constraint.renew()
    assert accepts(constraint, text) and not accepts(constraint, text[:-1])


def test_deep_schemas_of_functions_are_read():
    parameters = {**SCHEMA, "$ref": "#/$defs/x", "$defs": {**SCHEMA["$defs"], "x": {"type": "object"}}}
    parameters["properties"] = {"a": {"$ref": "#/$defs/d0"}}
    (function,), _ = enforced([Function("f", "", parameters, None)], "hermes")
    assert function.name == "f"


def test_without_room_it_is_refused(monkeypatch):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    before = threading.stack_size()
    with pytest.raises(RequestError, match=r"needs 1024 MiB of addresses to compile in: can't start"):
        with_room(list)
    assert threading.stack_size() == before
