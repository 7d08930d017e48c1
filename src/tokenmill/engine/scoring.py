"""Reading without sampling: logits after every token, and the log-probability of given continuations."""

from collections.abc import Callable
from collections.abc import Sequence as List
from typing import Any

import torch
from torch import Tensor

from tokenmill.engine.core import Core
from tokenmill.engine.requests import Prompt
from tokenmill.schedule.sequence import Sequence, Work

__all__ = ["last_logits", "logits", "run_to_end", "score"]


def logits(core: Core, prompt: Prompt) -> Tensor:
    """Logits after every token of the prompt, [T, V] float32 on the CPU."""
    return _read(core, core.inputs.scored(core.inputs.encode(prompt), 0))


def last_logits(core: Core, tokens: list[int], num_rows: int) -> Tensor:
    """Logits after the last `num_rows` tokens, [R, V] float32; rows that the cache shares are not computed again."""
    return _read(core, core.inputs.scored(list(tokens), len(tokens) - num_rows))


def score(core: Core, prompt: Prompt, choices: List[Prompt]) -> list[float]:
    """Log-probability of each choice as the continuation of the prompt; the prompt is computed once."""
    start = core.inputs.encode(prompt)
    tails = [core.inputs.encode(choice, after=start) for choice in choices]
    if not tails:
        return []
    sequence = core.inputs.scored(start + max(tails, key=len), len(start) - 1)
    totals = [torch.zeros((), dtype=torch.float64) for _ in tails]
    try:
        for number, tail in enumerate(tails):
            with core.exclusive():
                if number:
                    core.scheduler.rewind(sequence, len(start))
                sequence.tokens, sequence.score_from = start + tail, len(start) - 1
                sequence.collect = _add_logprobs(totals[number])
                core.enqueue(sequence)
            run_to_end(core, sequence)
    finally:
        _drop(core, sequence)
    return [float(total) for total in totals]


def run_to_end(core: Core, sequence: Sequence) -> None:
    """Step until the sequence has ended."""
    while sequence.finish_reason is None:
        core.step()


def _read(core: Core, sequence: Sequence) -> Tensor:
    """All wanted logits of a scored sequence."""
    rows: list[Tensor] = []
    try:
        sequence.collect = lambda _, logits_RV: rows.append(logits_RV.float().cpu())
        core.enqueue(sequence)
        run_to_end(core, sequence)
    finally:
        _drop(core, sequence)
    return torch.cat(rows)


def _drop(core: Core, sequence: Sequence) -> None:
    sequence.keep = False
    core.abandon([sequence])


def _add_logprobs(total: Tensor) -> Callable[[Work, Any], None]:
    """Adds, row by row, the log-probability of the token that follows in the sequence."""

    def collect(work: Work, logits_RV: Tensor) -> None:
        first = work.start + work.count - work.num_logits
        following = work.sequence.tokens[first + 1 : first + 1 + work.num_logits]
        logprobs_RV = torch.log_softmax(logits_RV[: len(following)].float(), dim=-1)
        ids_R1 = torch.tensor(following, dtype=torch.int64, device=logits_RV.device)[:, None]
        total.add_(logprobs_RV.gather(1, ids_R1).double().sum().cpu())

    return collect
