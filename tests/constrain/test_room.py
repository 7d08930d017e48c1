"""Grammars whose rules stand deep in one another end no process."""

import subprocess
import sys
import threading

import pytest

from tests.constrain.walks import accepts
from tokenmill.constrain import enforced as module
from tokenmill.constrain.compile import CompileLimits, Compiler
from tokenmill.constrain.enforced import enforced
from tokenmill.constrain.grammar import spec_of
from tokenmill.constrain.room import Budget, GivenUp, check_wanted, with_room
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
    constraint = Compiler(bytes_only, CompileLimits(seconds=120.0)).compile(spec_of(SamplingParams(**settings)))
    constraint.renew()
    assert accepts(constraint, text) and not accepts(constraint, text[:-1])


def test_deep_schemas_of_functions_are_read(monkeypatch):
    monkeypatch.setattr(module, "BUDGET", Budget(120.0, 2))
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


def ended(program):
    """A process that ran a program, after its end."""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)


ABANDONED = """
import atexit, sys, threading
atexit.register(lambda: print(threading.active_count(), flush=True))  # the last of all that is called
from llguidance import LLMatcher
from tokenmill.constrain import room
def slow():
    for number in range(1000):
        room.check_wanted()
        LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema({"properties": {str(n): {} for n in range(500)}}))
try:
    room.Budget(0, 2).within(slow, "x")
except TimeoutError:
    sys.exit(3)
"""
ENDLESS = """
import sys, threading
from tokenmill.constrain import room
room.EXIT_S = 0.01
room.begin(threading.Event().wait)
print("said", end="")
"""


def test_an_interpreter_ends_after_the_threads_for_which_nobody_waits():
    """One that came back from llguidance while it takes itself apart would end the process with a signal."""
    done = ended(ABANDONED)
    assert (done.returncode, done.stdout, done.stderr) == (3, "1\n", "")


def test_a_thread_that_does_not_end_ends_with_the_process():
    done = ended(ENDLESS)
    assert (done.returncode, done.stdout) == (1, "said")
    assert done.stderr == "a constraint is still compiled; the process ends with exit code 1\n"


def test_what_nobody_waits_for_ends_where_it_asks():
    go, ends = threading.Event(), threading.Event()

    def make():
        try:
            check_wanted()
            go.wait()
            check_wanted()
        except GivenUp:
            ends.set()

    with pytest.raises(TimeoutError):
        Budget(0, 1).within(make, "regex")
    go.set()
    assert ends.wait(60)
    check_wanted()  # in any other thread it says nothing
