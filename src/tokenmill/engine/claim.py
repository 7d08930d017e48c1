"""A claimed text: its tokens are checked as the drafts of one long step, by the logits of one pass over the text.

A token is right if the sampler chooses it after the tokens before it: by the same code that decodes, with the same
random number, penalties and masks. So a check costs as much as a prompt of that length, not a step for each token.
"""

from collections.abc import Sequence as List
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tokenmill.engine.core import Core, Held
from tokenmill.engine.outputs import Completion, Tracker
from tokenmill.errors import RequestError
from tokenmill.receipts.read import sampling_of
from tokenmill.receipts.receipt import Receipt
from tokenmill.sample.matchers import Matchers
from tokenmill.sample.sampler import choose, sample_singly
from tokenmill.sample.state import Row, rows_of
from tokenmill.schedule.sequence import Plan, Sequence, Work

ROWS = 64
"""Tokens are chosen for so many rows of logits at a time."""

SHIFT = {"float32": 1e-4, "rounded": 0.1}
"""The largest difference between the logits of two builds, in standard deviations of a row: with float32 everywhere,
and where something is rounded to 8 or 16 bits. The tests of program native hold its builds to this."""
HALVINGS = 16
"""Steps of the bisection for logits with which a draw falls on a claimed token."""


@dataclass(frozen=True)
class Difference:
    """A claimed token that the engine does not choose. error: the reason, where it can choose no token at all. is_near:
    it would choose the claimed token if logits were different by SHIFT.
    """

    index: int
    claimed: int
    chosen: int | None
    error: str | None = None
    is_near: bool = False


def sequence_of(core: Core, receipt: Receipt, adapter: Any = None) -> Sequence:
    """Make the sequence of a receipt's text as it was before the first token. RequestError or ConfigError for a receipt
    that no engine of this model and max_length could have given.
    """
    prompt, session = core.inputs.encode(list(receipt.prompt)), receipt.session
    begin = None if session is None else session["constrained_from"]
    (sequence,) = core.inputs.sequences(prompt, receipt.sampling, constrained_from=begin, adapter=adapter)
    if session is not None:
        start, before = session["answer_from"], session["before"]
        sequence.choosing, sequence.keep = replace(sequence.choosing, penalties_from=start), True
        sequence.earlier = None if before is None else (start, sampling_of(before))
    return sequence


class Claim:
    """The claimed tokens of a receipt while they are computed. shift: see SHIFT; 0 where both have the same bits."""

    def __init__(self, core: Core, sequence: Sequence, tokens: List[int], shift: float = 0.0) -> None:
        self._core, self._tokens, self._shift = core, list(tokens), shift
        self._prompt, self._wanted = list(sequence.tokens), replace(sequence, tokens=list(sequence.tokens))
        self._matchers = Matchers()
        self._error: Exception | None = None
        self._differences: list[Difference] = []
        fed, length = [*self._prompt, *self._tokens[:-1]], len(self._prompt)
        self._scored = core.inputs.kept(fed, length - 1, adapter=sequence.kept.adapter)
        self._scored.on_logits = self._collect
        self._held = Held(core, self._scored)

    def start(self) -> None:
        """Queue the tokens to be computed."""
        self._core.enqueue(self._scored)

    @property
    def has_ended(self) -> bool:
        """Say whether all tokens were checked. RequestError if the sequence was ended early."""
        self._core.check_scored(self._scored)
        return self._scored.finish_reason is not None

    def take(self) -> list[Difference]:
        """Return the differences, once all tokens were checked; raise the error of the check if it had one."""
        if self._error is not None:
            raise self._error
        return self._differences

    def release(self) -> None:
        """Give the blocks of the sequence back."""
        self._held.release()

    def _collect(self, work: Work, logits_RV: Tensor) -> None:
        """Check the rows of a work item. It keeps any error: the step must not fail because of one claim."""
        try:
            for first in range(0, len(logits_RV), ROWS):
                if self._error is None:
                    self._check(logits_RV[first : first + ROWS])
        except Exception as error:  # noqa: BLE001  (it is raised by `take`)
            self._error = error

    def _check(self, logits_RV: Tensor) -> None:
        """Choose a token for each row, with the claimed tokens as drafts, and note where they differ."""
        wanted, start = self._wanted, len(self._wanted.tokens) - len(self._prompt)
        claimed = self._tokens[start : start + len(logits_RV)]
        drafts = tuple(claimed[:-1])
        work = Work(wanted, len(wanted.tokens) - 1, len(claimed), len(claimed), drafts)
        masks = self._matchers.masks(Plan([work])).get(wanted.id, ())
        rows = list(rows_of(work, masks))
        for index, (claim, token, why) in enumerate(zip(claimed, *_chosen(logits_RV, rows), strict=True)):
            if why is not None or token != claim:
                near = why is None and self._shift > 0 and _is_near(logits_RV[index], rows[index], claim, self._shift)
                self._differences.append(Difference(start + index, claim, None if why else token, why, near))
        wanted.tokens += claimed


def _chosen(logits_RV: Tensor, rows: List[Row]) -> tuple[list[int], list[str | None]]:
    """Choose the token of each row; the second list has the error of each row that cannot be sampled."""
    try:
        return choose(logits_RV, rows).read().tokens, [None] * len(rows)
    except RequestError:
        sampled, errors = sample_singly(logits_RV, rows)
    return sampled.tokens, [str(errors[index]) if index in errors else None for index in range(len(rows))]


def _is_near(logits_V: Tensor, row: Row, claimed: int, shift: float) -> bool:
    """Say whether the claimed token would be chosen if logits were at most `shift` standard deviations higher or lower.

    A draw adds probabilities in the order of ids. So a token is favoured by its own logit, and by raising the logits of
    all lower ids, or of all higher ids, until the draw falls on it: bisection finds by how much.
    """
    logits_V = logits_V.float()
    finite = logits_V[logits_V.isfinite()]
    size = 2 * shift * float(finite.std()) if len(finite) > 1 else 0.0
    ids = torch.arange(len(logits_V), device=logits_V.device)
    favoured = logits_V + size * (ids == claimed)
    first = _choice(favoured, row)
    if first is None or first == claimed:
        return first is not None
    is_low = first < claimed
    others = (ids > claimed if is_low else ids < claimed) * size
    least, most = 0.0, 2.0  # so that the first share is 1
    for _ in range(HALVINGS):
        share = (least + most) / 2
        token = _choice(favoured + share * others, row)
        if token is None or token == claimed:
            return token is not None
        if (token < claimed) != is_low:
            most = share
        elif share == 1:
            return False
        else:
            least = share
    return False


def _choice(logits_V: Tensor, row: Row) -> int | None:
    (token,), (why,) = _chosen(logits_V[None], [row])
    return token if why is None else None


def end_of(core: Core, sequence: Sequence, tokens: List[int]) -> Completion | None:
    """Complete a sequence that has generated these tokens; None if it would go on. RequestError for an earlier end."""
    tracker = _resumed(core, sequence, tokens)
    if tracker.completion is None and sequence.choosing.params.stop:
        return _flushed(core, sequence, tokens)
    return tracker.completion


def _resumed(core: Core, sequence: Sequence, tokens: List[int]) -> Tracker:
    resumed = replace(sequence, tokens=list(sequence.tokens))
    core.inputs.resume([resumed], [list(tokens)])
    tracker = Tracker(resumed, core.inputs.detokenizer(resumed), 0.0)
    tracker.resume()
    return tracker


def _flushed(core: Core, sequence: Sequence, tokens: List[int]) -> Completion | None:
    """Complete the text if its next token ends it, and the text held back before that token is a stop text."""
    length = len(sequence.tokens) + len(tokens)
    if length >= sequence.max_tokens:
        return None
    claim = Claim(core, replace(sequence, tokens=[*sequence.tokens, *tokens]), [-1])
    try:
        claim.start()
        core.wait(lambda: claim.has_ended or None)
        (next_one,) = claim.take()
    finally:
        claim.release()
    if next_one.chosen is None or next_one.chosen not in sequence.choosing.stop_ids:
        return None
    done = _resumed(core, sequence, [*tokens, next_one.chosen]).completion
    return done if done is not None and done.tokens == tuple(tokens) else None
