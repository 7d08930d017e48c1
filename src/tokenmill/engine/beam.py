"""Beam search: the likeliest texts that are found by going on with several beginnings at the same time.

The arithmetic is that of transformers' generate with num_beams: of all next tokens of all beams the best are kept, by
the sum of their log-probabilities; a text that ends counts if it is among the first `width` of them, with that sum
divided by its length to the power of length_penalty. Beams that have a beginning in common share its rows: the second
child of a beam is a fork of it.
"""

import math
from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tokenmill.engine.claim import end_of
from tokenmill.engine.core import Core, Held
from tokenmill.engine.outputs import Completion
from tokenmill.engine.requests import Prompt
from tokenmill.errors import RequestError
from tokenmill.schedule.sequence import Sequence, Work
from tokenmill.settings.sampling_params import SamplingParams
from tokenmill.value_reader import check_choice, check_number

MAX_WIDTH = 256
NOTHING = -1e9  # below every sum, as in transformers
MAX_EXPONENT = 500.0  # of e, which 64 bits hold with any sum
STOPPING = ("heuristic", "full", "never")
PLAIN = ("max_new_tokens", "ignore_eos", "stop_token_ids", "skip_special_tokens")
"""The settings of a text that a search reads; others choose or forbid tokens, and are refused."""
WITHOUT_EFFECT = ("temperature", "seed")  # since nothing is drawn


@dataclass(frozen=True)
class Beam:
    """One of the texts that were found. score: the sum of its log-probabilities / its tokens ** length_penalty."""

    completion: Completion
    score: float

    @property
    def text(self) -> str:
        return self.completion.text

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.completion.tokens


@dataclass
class Search:
    """The state of a search without its model. stopping: when it ends, beside the limit of tokens: "heuristic" when no
    beam would be among the best if it ended now; "full" when `width` texts have ended; "never" when none could be among
    the best at its longest (transformers' early_stopping: False, True, "never").

    beams: (tokens, sum) of each, the best first; found: (tokens, score), the best first.
    """

    width: int
    max_new: int
    ends: frozenset[int]
    length_penalty: float
    stopping: str
    beams: list[tuple[tuple[int, ...], float]] = field(default_factory=lambda: [((), 0.0)])
    found: list[tuple[tuple[int, ...], float]] = field(default_factory=list)
    is_over: bool = False

    def step(self, logits_BV: Tensor) -> list[int]:
        """Choose the next tokens of all beams; return for each of the new beams the beam that it goes on from."""
        sums_BV = torch.log_softmax(logits_BV.float(), dim=-1) + torch.tensor([[each[1]] for each in self.beams])
        size, length = sums_BV.shape[1], len(self.beams[0][0]) + 1
        wanted = min(max(2, 1 + len(self.ends)) * self.width, sums_BV.numel())
        best = torch.topk(sums_BV.flatten(), wanted)
        parents, beams, ended = (
            list[int](),
            list[tuple[tuple[int, ...], float]](),
            list[tuple[tuple[int, ...], float]](),
        )
        for place, (value, index) in enumerate(zip(best.values.tolist(), best.indices.tolist(), strict=True)):
            parent, token = divmod(index, size)
            tokens = (*self.beams[parent][0], token)
            if token in self.ends or length >= self.max_new:
                ended += [(tokens, value)] if place < self.width else []
            elif len(beams) < self.width and value > NOTHING:
                parents.append(parent)
                beams.append((tokens, value))
        scored = [(tokens, self._score(value, length)) for tokens, value in ended if value > NOTHING]
        self.found = sorted([*self.found, *scored], key=lambda each: -each[1])[: self.width]
        self.beams = beams
        self._end_where_it_should(length)
        return parents

    def _score(self, value: float, length: int) -> float:
        """Divide a sum by the length to the power of the penalty, which may be no number of 64 bits."""
        exponent = self.length_penalty * math.log(length)
        return value / math.exp(min(max(exponent, -MAX_EXPONENT), MAX_EXPONENT))

    def _end_where_it_should(self, length: int) -> None:
        """Note whether the search is over, after a step to so many tokens."""
        if not self.beams:
            self.is_over = True
            return
        longest = self.max_new if self.stopping == "never" and self.length_penalty > 0 else length
        hope = self._score(self.beams[0][1], longest)
        is_full = len(self.found) == self.width
        # A place among the best that no text has yet stands for the worst score, as in transformers.
        worst = self.found[-1][1] if is_full else NOTHING if self.found else -math.inf
        self.is_over = not hope > worst or (self.stopping == "full" and is_full)


class _Text:
    """The sequence of one beam in the engine, and the logits after its last token. It is not reachable from the
    sequence, so that it is released wherever an interrupt leaves it.
    """

    def __init__(self, core: Core, tokens: List[int], salt: bytes, adapter: Any, asked: Sequence) -> None:
        self.sequence: Sequence = core.inputs.kept(list(tokens), salt=salt, adapter=adapter)
        self.sequence.priority, self.sequence.client = asked.priority, asked.client
        self._last: list[Tensor] = []
        self.sequence.on_logits = partial(_collect, self._last)
        self.held = Held(core, self.sequence)

    @property
    def logits_V(self) -> Tensor:
        return self._last[-1]


def _collect(last: list[Tensor], _: Work, logits_RV: Tensor) -> None:
    last[:] = [logits_RV[-1].float().cpu()]


def beam_search(
    core: Core,
    prompt: Prompt,
    width: int,
    params: SamplingParams,
    length_penalty: float = 1.0,
    stopping: str = "heuristic",
    salt: bytes = b"",
    adapter: str | None = None,
    is_given_up: Callable[[], bool] = lambda: False,
    asked: Sequence | None = None,
) -> list[Beam]:
    """Search for the likeliest texts; `width` of them at most, the best first. stopping: see Search. salt, adapter: see
    Core.request. is_given_up: asked in the engine's thread after each step; it may raise an error of its own. asked:
    has the priority and the client of the request. RequestError where it was given up, and for settings that choose or
    forbid tokens.
    """
    core.check_open()
    width = check_number("width", width, maximum=MAX_WIDTH)
    length_penalty = check_number("length_penalty", length_penalty, whole=False, minimum=-100, maximum=100)
    check_choice("stopping", stopping, STOPPING)
    _check_plain(params)
    params = replace(params, temperature=0.0, seed=None)
    tokens, applied = core.inputs.encode(prompt), core.adapter(adapter)
    (wanted,) = core.inputs.sequences(tokens, params, salt=salt, adapter=applied)
    core.scheduler.check_length(wanted.max_tokens)
    ends = frozenset(wanted.choosing.stop_ids)
    search = Search(width, wanted.max_tokens - len(tokens), ends, length_penalty, stopping)
    conditions = salt, applied, asked or wanted
    texts = [_Text(core, tokens, *conditions)]
    try:
        while not search.is_over:
            _compute(core, texts, is_given_up)
            logits_BV = torch.stack([each.logits_V for each in texts])
            if not bool(torch.isfinite(logits_BV.amax(dim=-1)).all()):
                raise RequestError("logits are no numbers, so that no text is likelier than another")
            logits_BV[:, list(_forbidden(wanted))] = -torch.inf
            parents = search.step(logits_BV)
            if not search.is_over:
                texts = _gone_on(core, texts, parents, [beam[0][-1] for beam in search.beams], conditions)
        return [_beam(core, wanted, *each) for each in search.found]
    finally:
        for text in texts:
            text.held.release()


def _check_plain(params: SamplingParams) -> None:
    other = SamplingParams()
    changed = [name for name in params.__dataclass_fields__ if getattr(params, name) != getattr(other, name)]
    if wrong := [name for name in changed if name not in (*PLAIN, *WITHOUT_EFFECT)]:
        raise RequestError(f"{wrong[0]} is nothing that a beam search reads: only {', '.join(PLAIN)}", wrong[0])


def _forbidden(wanted: Sequence) -> List[int]:
    """List the tokens that the model's own files suppress."""
    return [token for token, bias in wanted.choosing.params.logit_bias.items() if bias == -torch.inf]


def _compute(core: Core, texts: List[_Text], is_given_up: Callable[[], bool]) -> None:
    """Compute the logits after the last token of each text, together as far as max_sequences allows."""

    def queue() -> None:
        for text in texts:
            sequence = text.sequence
            sequence.max_tokens = len(sequence.tokens)
            sequence.score_from = sequence.max_tokens - 1
            core.enqueue(sequence)

    def ended() -> bool | None:
        if is_given_up():
            raise RequestError("this was given up before its end")
        for text in texts:
            core.check_scored(text.sequence)
        return all(text.sequence.finish_reason is not None for text in texts) or None

    core.call(queue)
    core.wait(ended)


def _gone_on(
    core: Core, texts: List[_Text], parents: List[int], tokens: List[int], conditions: tuple[bytes, Any, Sequence]
) -> list[_Text]:
    """Give each new beam its text: the first child of a beam takes the beam's own, and further children are forks."""
    new, taken = list[_Text](), set[int]()
    try:
        for parent in parents:
            if parent not in taken:
                taken.add(parent)
                new.append(texts[parent])
            else:
                new.append(_Text(core, (), *conditions))
                core.call(partial(_fork, core, texts[parent].sequence, new[-1].sequence))
    except BaseException:
        for text in new:
            if text not in texts:
                text.held.release()
        raise
    for number, text in enumerate(texts):
        if number not in taken:
            text.held.release()
    for text, token in zip(new, tokens, strict=True):
        text.sequence.tokens.append(token)
    return new


def _fork(core: Core, parent: Sequence, child: Sequence) -> None:
    core.scheduler.park(child)
    core.scheduler.share(parent, child)


def _beam(core: Core, wanted: Sequence, tokens: tuple[int, ...], score: float) -> Beam:
    completion = end_of(core, wanted, tokens)
    assert completion is not None, "it has ended"
    return Beam(completion, score)
