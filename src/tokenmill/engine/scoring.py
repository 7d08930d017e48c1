"""Logits and log-probabilities without sampling: after every token, and of given continuations."""

from collections.abc import Sequence as List
from typing import Any

import torch
from torch import Tensor

from tokenmill.engine.batch import ROWS, Score, in_order, score_each
from tokenmill.engine.core import Core, Held
from tokenmill.engine.requests import Prompt, for_each
from tokenmill.errors import RequestError
from tokenmill.kernels.threads import torch_threads
from tokenmill.sample.logprobs import TokenLogprobs, token_logprobs
from tokenmill.schedule.sequence import Sequence, Work
from tokenmill.value_reader import brief


def last_logits(core: Core, tokens: list[int], num_rows: int, adapter: Any = None) -> Tensor:
    """Compute the logits after the last `num_rows` tokens, [R, V] float32; rows that are in the cache are reused."""
    core.check_open()
    rows: dict[int, Tensor] = {}
    sequence = core.inputs.kept(list(tokens), len(tokens) - num_rows, adapter=adapter)
    held = Held(core, sequence)
    try:
        sequence.on_logits = lambda work, logits_RV: rows.update(
            enumerate(logits_RV.float().cpu(), start=work.start + work.count - work.num_logits)
        )
        core.enqueue(sequence)
        core.run_to_end(sequence)
    finally:
        held.release()
    with torch_threads(core.loaded.config.threads):
        return torch.stack([rows[position] for position in sorted(rows)])


def score(core: Core, prompt: Prompt, choices: List[Prompt], adapter: Any = None) -> list[float]:
    core.check_open()
    if not isinstance(choices, list | tuple):
        raise RequestError(f"choices = {choices!r}: give a list of texts, or of lists of token ids")
    start = core.inputs.encode(prompt)
    tails = for_each("choice", choices, lambda choice: core.inputs.encode(choice, after=start))
    for_each("choice", tails, lambda tail: core.inputs.check_length(len(start) + len(tail)))
    found = in_order(score_each(core, [(start, tail) for tail in tails], adapter=adapter), len(tails))
    return [each.logprob for each in found]


def score_pairs(core: Core, pairs: List[tuple[Prompt, Prompt]], adapter: Any = None) -> list[Score]:
    if not isinstance(pairs, list | tuple):
        raise RequestError(f"pairs = {brief(pairs)}: give a list of (context, continuation)")

    def encoded(pair: tuple[Prompt, Prompt]) -> tuple[list[int], list[int]]:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise RequestError(f"{brief(pair)} is no pair of a context and its continuation")
        context = core.inputs.encode(pair[0])
        return context, core.inputs.encode(pair[1], after=context)

    return in_order(score_each(core, for_each("pair", pairs, encoded), adapter=adapter), len(pairs))


def prompt_logprobs(
    core: Core, tokens: List[int], num_top: int, priority: int = 0, salt: bytes = b"", adapter: Any = None
) -> tuple[Sequence, dict[int, TokenLogprobs]]:
    """Make a sequence that computes a prompt once it is queued, and the dict of log-probabilities that it fills.

    The dict has, by position, each token of the prompt except the first, with the `num_top` likeliest tokens there.
    priority, salt: see Core.request. adapter: see Kept.
    """
    core.check_open()
    sequence, logprobs = core.inputs.kept(list(tokens), 0, salt, adapter), dict[int, TokenLogprobs]()
    sequence.priority = priority

    def collect(work: Work, logits_RV: Tensor) -> None:
        first = work.start + work.count - work.num_logits
        following_R = torch.tensor(tokens[first + 1 : first + 1 + work.num_logits], dtype=torch.int64)
        for start in range(0, len(following_R), ROWS):  # in pieces, because each row is as long as the vocabulary
            ids_R = following_R[start : start + ROWS].to(logits_RV.device)
            entries = token_logprobs(logits_RV[start : start + len(ids_R)].float(), ids_R, num_top)
            logprobs.update(enumerate(entries, start=first + 1 + start))

    sequence.on_logits = collect
    return sequence, logprobs
