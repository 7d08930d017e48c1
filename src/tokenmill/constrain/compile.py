"""Compiling: a constraint becomes a grammar that some text of the model's tokens fits, or is refused.

A refusal has llguidance's message and, for a JSON schema, the place in it. Compiling lets other threads run, has
limits for what a grammar may cost, and a budget of time: one that is over it goes on in its thread, and nobody waits.
"""

import json
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from llguidance import LLMatcher, LLParserLimits

from tokenmill.constrain.constraint import CompiledGrammar, TooMuchForced, check_forced
from tokenmill.constrain.grammar import Spec, grammar_text, is_forcing, warnings_of, with_options, without_forcing
from tokenmill.constrain.room import Budget, check_wanted
from tokenmill.constrain.schema import parts_of, read_schema
from tokenmill.constrain.schema_parts import Path, SchemaError, pointer
from tokenmill.constrain.vocabulary import Vocabulary
from tokenmill.errors import ConfigError
from tokenmill.settings.constraint import shortened

log = logging.getLogger(__name__)

T = TypeVar("T")
_TRACES = re.compile(r"\n<backtrace>|<state>|<non-verbose/>|\n *while processing json-schema:")
KEPT = 32  # constraints, since the requests of an agent have the same ones again and again


@dataclass(frozen=True)
class CompileLimits:
    """The limits on the cost of a constraint. seconds: until it is compiled. abandoned: compilations that may go on
    after that.

    Sizes are llguidance's: items of a position, of which an optional property is four, and whose mask takes 25 ms where
    there are as many as may be; symbols of a grammar; states of its lexer, which take one to two kB each.
    """

    seconds: float = 5.0
    abandoned: int = 2
    max_items_in_row: int = 8_000
    max_lexer_states: int = 250_000
    max_grammar_size: int = 500_000

    @property
    def of_parser(self) -> LLParserLimits:
        """The limits as llguidance takes them. Its errors do not show the parser's state."""
        return LLParserLimits(
            max_items_in_row=self.max_items_in_row,
            max_lexer_states=self.max_lexer_states,
            max_grammar_size=self.max_grammar_size,
            verbose_errors=False,
        )


class Compiler:
    """The compiler of the constraints of one model, which keeps the last ones."""

    def __init__(self, vocabulary: Vocabulary, limits: CompileLimits | None = None) -> None:
        self.vocabulary, self._limits = vocabulary, limits or CompileLimits()
        self._budget = Budget(self._limits.seconds, self._limits.abandoned)
        self._kept = lru_cache(KEPT)(self._compile)

    def compile(self, spec: Spec) -> CompiledGrammar:
        """Compile the constraint of a spec. ConfigError, which names the setting, for one that cannot be."""
        found = self._kept(spec)
        return self.within(spec, found.apart) if found.is_spent else found

    def _compile(self, spec: Spec) -> CompiledGrammar:
        made = self.within(spec, lambda: compile(spec, self.vocabulary, self._limits))
        for each in made.warnings:
            log.warning("%s: %s", spec.kind, each)
        return made

    def within(self, spec: Spec, make: Callable[[], T]) -> T:
        """Call a function, and return or raise what it does, if it does so in time."""
        try:
            return self._budget.within(make, spec.kind)
        except TimeoutError:
            raise refusal(spec, f"it was not compiled in {self._budget.seconds:g} s: make it simpler") from None


def compile(spec: Spec, vocabulary: Vocabulary, limits: CompileLimits | None = None) -> CompiledGrammar:
    """Compile the constraint of a spec, however long it takes. Errors are Compiler's."""
    of_parser = (limits or CompileLimits()).of_parser
    try:
        grammar = grammar_text(spec, vocabulary)
    except SchemaError as error:
        raise refusal(spec, str(error)) from None
    except RecursionError:
        raise refusal(spec, "it is nested too deeply") from None
    if not (forces := is_forcing(spec, vocabulary)):
        grammar = without_forcing(grammar)
    check_wanted()
    begun_s = time.thread_time()
    first = LLMatcher(vocabulary.tokens, grammar, log_level=0, limits=of_parser)
    took_s = time.thread_time() - begun_s
    if first.is_error():
        raise refusal(spec, _placed(spec, told(first.get_error())))
    made = CompiledGrammar(grammar, first, vocabulary, of_parser, is_forcing=forces, took_s=took_s)
    made.warnings = tuple(warnings_of(spec))
    try:
        _check_begins(spec, made)
    except TooMuchForced as error:
        raise refusal(spec, str(error)) from None
    return made


def _check_begins(spec: Spec, made: CompiledGrammar) -> None:
    """Raise ConfigError where no token may come first or after forced bytes; TooMuchForced if these are too many."""
    first = made.first
    _check_goes_on(spec, first)
    if not made.is_forcing:
        return
    check_forced(first)
    ahead, forced = first.deep_copy(), made.vocabulary.tokens.tokenize_bytes(first.compute_ff_bytes())
    ahead.try_consume_tokens(forced)
    _check_goes_on(spec, ahead)


def _check_goes_on(spec: Spec, matcher: LLMatcher) -> None:
    """Raise ConfigError where no token may come next."""
    mask = matcher.compute_bitmask()
    if matcher.is_error() or not any(mask):
        why = told(matcher.get_error())
        is_dead = not why or why.startswith("NoExtension")
        raise refusal(spec, "no text of this model's tokens fits it" if is_dead else why)


def told(error: str) -> str:
    """Cut llguidance's message: no traces, and no references that it was following."""
    return _TRACES.split(error, maxsplit=1)[0].strip()


def refusal(spec: Spec, why: str) -> ConfigError:
    """Make the error for a constraint that is refused."""
    return ConfigError(spec.kind, shortened(spec.value), why)


def _placed(spec: Spec, message: str) -> str:
    """Put the place in a schema that is wrong by itself before a message about the schema."""
    if spec.kind != "json_schema":
        return message
    parts = parts_of(read_schema(json.loads(str(spec.value)), is_open=True))
    path: Path = ()
    while True:
        inner = (each for each in parts if each[: len(path)] == path and _error(parts[each]) == message)
        path = next(inner, path)
        found = _REQUIRED.fullmatch(message)  # not the part, but one inside it is what no text fits
        needed = (*path, "properties", found[1]) if found else path
        if needed == path or needed not in parts or not (error := _error(parts[needed])):
            return f"at {pointer(path)}: {message}"
        path, message = needed, error


_REQUIRED = re.compile("Unsatisfiable schema: required property '(.*)' is unsatisfiable")


def _error(schema: dict[str, Any]) -> str:
    """Return what is wrong with a schema by itself; empty if nothing is."""
    check_wanted()
    grammar = LLMatcher.grammar_from_json_schema(json.dumps(with_options(schema)))
    return told(LLMatcher.validate_grammar(grammar))
