"""Compiling: a constraint becomes a grammar that some text of the model's tokens fits, or is refused.

A refusal has llguidance's message. Compiling lets other threads run, has limits of its own for what a grammar may
cost, and a budget of time: one that is over it goes on in its thread, and nobody waits for it.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from llguidance import LLMatcher, LLParserLimits

from tokenmill.constrain.constraint import Constraint
from tokenmill.constrain.grammar import Spec, grammar_text
from tokenmill.constrain.vocabulary import Vocabulary
from tokenmill.errors import CapacityError, ConfigError
from tokenmill.settings.constraint import shortened

T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """What a constraint may cost. seconds: until it is compiled. abandoned: compilations that may go on after that.

    Sizes are llguidance's: items of a position, and states of the lexer, which take one to two kB each.
    """

    seconds: float = 5.0
    abandoned: int = 2
    max_lexer_states: int = 250_000
    max_grammar_size: int = 500_000

    @property
    def of_parser(self) -> LLParserLimits:
        """The limits as llguidance takes them. Its errors do not show the parser's state."""
        return LLParserLimits(
            max_lexer_states=self.max_lexer_states, max_grammar_size=self.max_grammar_size, verbose_errors=False
        )


_abandoned: set[threading.Thread] = set()


def compile(spec: Spec, vocabulary: Vocabulary, limits: Limits = Limits()) -> Constraint:
    """The constraint of a spec. ConfigError, which names the setting, for one that cannot be."""
    return within(limits, spec, lambda: _compiled(spec, vocabulary, limits))


def within(limits: Limits, spec: Spec, make: Callable[[], T]) -> T:
    """What a function returns or raises, if it does so in time."""
    _abandoned.difference_update([thread for thread in list(_abandoned) if not thread.is_alive()])
    if len(_abandoned) >= limits.abandoned:
        raise CapacityError(
            "constraints that are being compiled for too long", 1, 0, f"{spec.kind}, or try again later"
        )
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(make())
        except Exception as error:  # noqa: BLE001  (it is raised where it is waited for)
            outcome.set_exception(error)

    thread = threading.Thread(target=run, name="compile a constraint", daemon=True)
    thread.start()
    try:
        return outcome.result(limits.seconds)
    except TimeoutError:
        _abandoned.add(thread)
        raise refusal(spec, f"it was not compiled in {limits.seconds:g} s: make it simpler") from None


def _compiled(spec: Spec, vocabulary: Vocabulary, limits: Limits) -> Constraint:
    grammar = grammar_text(spec, vocabulary)
    matcher = LLMatcher(vocabulary.tokens, grammar, log_level=0, limits=limits.of_parser)
    if matcher.is_error():
        raise refusal(spec, told(matcher.get_error()))
    mask = matcher.compute_bitmask()
    if matcher.is_error() or not any(mask):
        raise refusal(spec, "no text of this model's tokens fits it")
    return Constraint(grammar, matcher, vocabulary, limits.of_parser)


def told(error: str) -> str:
    """llguidance's message, without the traces that it may have."""
    return error.partition("\n<backtrace>")[0].partition("<state>")[0].strip()


def refusal(spec: Spec, why: str) -> ConfigError:
    """The error for a constraint that is refused."""
    return ConfigError(spec.kind, shortened(str(spec.value)), why)
