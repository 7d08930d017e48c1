"""Many requests at once: scores and completions, each as soon as it is there, with contexts that are shared.

`score_each` computes log-probabilities of given continuations, `generate_each` continues prompts. Pairs with equal
contexts are one sequence, which is rewound from continuation to continuation. It feeds the context once, and of the
continuations only tokens whose successors are not known yet: choices of one token cost nothing after the first.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Any, TypeVar

import torch
from torch import Tensor

from tokenmill.engine.core import Core, Held
from tokenmill.engine.outputs import Completion
from tokenmill.engine.requests import Request
from tokenmill.errors import RequestError, overflow_remedy
from tokenmill.sample.logprobs import log_probability_of
from tokenmill.sample.native import largest
from tokenmill.schedule.sequence import Sequence, Work

ROWS = 64  # rows of logits that become log-probabilities at a time
Result = TypeVar("Result")


@dataclass(frozen=True)
class Score:
    """How likely a model finds a continuation.

    logprobs: the log-probability of each token, in nats. is_greedy: each token is the likeliest in its place (among
    equals the lowest id), so greedy sampling would choose the same ones.
    """

    logprobs: tuple[float, ...]
    is_greedy: bool

    @property
    def logprob(self) -> float:
        """Sum the log-probabilities of its tokens."""
        return math.fsum(self.logprobs)


def score_each(
    core: Core,
    pairs: List[tuple[List[int], List[int]]],
    salt: bytes = b"",
    is_given_up: Callable[[], bool] = lambda: False,
    adapter: Any = None,
) -> Iterator[tuple[int, Score]]:
    """Score each continuation after its context, both given as token ids; yield its place in `pairs` and its Score.

    The order is arbitrary. The last token of a pair is not fed, so a pair may have one token more than max_length.
    RequestError for an empty context, for ids that the model does not have, and for logits that are no numbers. salt:
    see Core.request. adapter: see Kept. is_given_up: asked in the engine's thread after each step; RequestError then.
    """
    core.check_open()
    contexts: dict[tuple[int, ...], dict[int, tuple[int, ...]]] = {}
    for number, (context, tail) in enumerate(pairs):
        core.inputs.encode([*context, *tail] if context else ())
        core.inputs.check_length(len(context) + len(tail) - 1)
        contexts.setdefault(tuple(context), {})[number] = tuple(tail)
    waiting = (_Continuations(core, list(context), tails, salt, adapter) for context, tails in contexts.items())
    running: dict[_Continuations, Held] = {}

    def ended() -> list[_Continuations] | None:
        if is_given_up():
            raise RequestError("this was given up before its end")
        return [each for each in running if each.has_ended] or None

    try:
        while True:
            for each in islice(waiting, core.loaded.config.max_sequences - len(running)):
                running[each] = Held(core, each.sequence)
                each.start()
            if not running:
                return
            for each in core.wait(ended):
                yield from each.take().items()
                if not each.resume():
                    running.pop(each).release()
    finally:
        for held in running.values():
            held.release()


def generate_each(core: Core, requests: Iterable[Request]) -> Iterator[tuple[int, Completion]]:
    """Complete requests of one continuation each; yield the place and the Completion of each as it ends.

    As many requests wait as run, so that the next one runs in the step in which another has ended. An error ends all.
    """
    waiting, running = enumerate(requests), dict[int, Request]()
    try:
        while True:
            for number, request in islice(waiting, 2 * core.loaded.config.max_sequences - len(running)):
                running[number] = request
                core.submit(request)
            if not running:
                return
            for number, request in core.wait(lambda: [each for each in running.items() if each[1].is_done] or None):
                (piece,) = core.take(request)
                del running[number]
                assert piece.done is not None, "it has ended"
                yield number, piece.done
    finally:
        for request in running.values():
            core.cancel(request)
            request.forget_errors()


def in_order(results: Iterable[tuple[int, Result]], count: int) -> list[Result]:
    """Sort results by their places."""
    found = dict(results)
    return [found[number] for number in range(count)]


class _Continuations:
    """One context with all of its continuations: `tails`, by their numbers in the list of pairs."""

    def __init__(
        self, core: Core, context: list[int], tails: Mapping[int, tuple[int, ...]], salt: bytes, adapter: Any
    ) -> None:
        self._core, self._context = core, context
        self._tails = dict(sorted(tails.items(), key=lambda item: item[1]))  # neighbours begin alike
        self._known: dict[int, dict[int, tuple[float, bool]]] = {number: {} for number in tails}
        longest = max(self._tails.values(), key=len)
        self.sequence: Sequence = core.inputs.kept([*context, *longest[:-1]], len(context) - 1, salt, adapter)
        self.sequence.tokens = [*context, *next(iter(self._tails.values()))[:-1]]
        self.sequence.on_logits = self._collect

    @property
    def has_ended(self) -> bool:
        """Say whether the queued continuation has been computed. RequestError if it was ended early."""
        self._core.check_scored(self.sequence)
        return self.sequence.finish_reason is not None

    def start(self) -> None:
        """Queue the first continuation."""
        self._core.enqueue(self.sequence)

    def resume(self) -> bool:
        """Queue the next continuation with a token that has no score yet; False if there is no such continuation."""
        if not self._tails:
            return False
        number, tail = next(iter(self._tails.items()))
        start, tokens = len(self._context), self.sequence.tokens
        place = start + _num_alike(tokens[start:], tail[:-1])

        def queue() -> None:
            self._core.scheduler.rewind(self.sequence, place, tail[place - start : -1])
            self.sequence.score_from = start - 1 + len(self._known[number])
            self._core.enqueue(self.sequence)

        self._core.call(queue)
        return True

    def take(self) -> dict[int, Score]:
        """Take the scores that are complete now, by the number of the continuation."""
        done = [number for number, tail in self._tails.items() if len(self._known[number]) == len(tail)]
        found = {}
        for number in done:
            entries = [entry for _, entry in sorted(self._known.pop(number).items())]
            found[number] = Score(tuple(value for value, _ in entries), all(is_largest for _, is_largest in entries))
            del self._tails[number]
            if not all(math.isfinite(value) for value, _ in entries):
                dtype = self._core.loaded.config.dtype
                raise RequestError(f"logits overflow in dtype {dtype}; {overflow_remedy(dtype)}")
        return found

    def _collect(self, work: Work, logits_RV: Tensor) -> None:
        """Note the score of the next token of every continuation that begins with the tokens fed, row by row."""
        end = work.start + work.count
        first = end - work.num_logits - len(self._context) + 1  # place, in a continuation, that the first row predicts
        fed = work.sequence.tokens[len(self._context) : end]
        ends = {number: min(len(tail), _num_alike(fed, tail) + 1) for number, tail in self._tails.items()}
        for start in range(0, work.num_logits, ROWS):
            rows_RV = logits_RV[start : min(start + ROWS, work.num_logits)]
            places = range(first + start, first + start + len(rows_RV))
            wanted = [
                (number, place, self._tails[number][place])
                for number, last in ends.items()
                for place in range(places.start, min(places.stop, last))
            ]
            for number, place, entry in _entries(rows_RV, wanted, first + start):
                self._known[number][place] = entry


def _entries(
    rows_RV: Tensor, wanted: List[tuple[int, int, int]], first: int
) -> Iterator[tuple[int, int, tuple[float, bool]]]:
    """Look up each wanted (number, place, token) in the row of its place: its log-probability, and whether its logit is
    the largest. first: the place that the first row predicts.
    """
    if not wanted:
        return
    rows_N = torch.tensor([place - first for _, place, _ in wanted], device=rows_RV.device)
    ids_N = torch.tensor([token for *_, token in wanted], device=rows_RV.device)
    logprobs_N = log_probability_of(rows_RV.float(), rows_N, ids_N).tolist()
    largest_R, _ = largest(rows_RV)
    for (number, place, token), logprob in zip(wanted, logprobs_N, strict=True):
        yield number, place, (logprob, int(largest_R[place - first]) == token)


def _num_alike(one: List[int], other: List[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
