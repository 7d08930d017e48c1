"""Reading without sampling: logits after every token, the log-probability of given continuations."""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as List
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tokenmill.engine.requests import Prompt
from tokenmill.schedule.sequence import Plan, Sequence, Work

if TYPE_CHECKING:
    from tokenmill.engine.engine import Engine

__all__ = ["collect", "last_logits", "logits", "score", "until_scored"]


def logits(engine: "Engine", prompt: Prompt) -> Tensor:
    """See Engine.logits."""
    return _read(engine, engine.intake.scored(engine.encode(prompt), 0))


def last_logits(engine: "Engine", tokens: list[int], num_rows: int) -> Tensor:
    """Logits after the last `num_rows` tokens, [R, V] float32; what the cache shares is not computed again."""
    return _read(engine, engine.intake.scored(list(tokens), len(tokens) - num_rows))


def _read(engine: "Engine", sequence: Sequence) -> Tensor:
    rows: list[Tensor] = []
    try:
        with engine.alone():
            engine.collectors[sequence.id] = lambda _, logits_RV: rows.append(logits_RV.float().cpu())
            engine.scheduler.add(sequence)
        until_scored(engine, sequence)
    finally:
        _drop(engine, sequence)
    return torch.cat(rows)


def score(engine: "Engine", prompt: Prompt, choices: List[Prompt]) -> list[float]:
    """See Engine.score."""
    start = engine.encode(prompt)
    tails = [engine.encode(choice, after=start) for choice in choices]
    if not tails:
        return []
    sequence = engine.intake.scored(start + max(tails, key=len), len(start) - 1)
    totals = [torch.zeros((), dtype=torch.float64) for _ in tails]
    try:
        for number, tail in enumerate(tails):
            with engine.alone():
                if number:
                    engine.scheduler.rewind(sequence, len(start))
                sequence.tokens, sequence.score_from = start + tail, len(start) - 1
                engine.collectors[sequence.id] = _sum_logprobs(sequence, totals[number])
                (engine.scheduler.resume if number else engine.scheduler.add)(sequence)
            until_scored(engine, sequence)
    finally:
        _drop(engine, sequence)
    return [float(total) for total in totals]


def collect(collectors: Mapping[int, Callable[[Work, Tensor], None]], plan: Plan, logits_RV: Tensor) -> None:
    """Hand the rows of sequences that are scored to whoever asked for them, by sequence."""
    first = 0
    for work in plan.work:
        if work.sequence.id in collectors and work.num_logits:
            collectors[work.sequence.id](work, logits_RV[first : first + work.num_logits])
            work.sequence.score_from = work.start + work.count  # preempted or not, no row is handed over twice
        first += work.num_logits


def until_scored(engine: "Engine", sequence: Sequence) -> None:
    """Steps until it has been read to its end."""
    while sequence.finish_reason is None:
        engine.step()


def _drop(engine: "Engine", sequence: Sequence) -> None:
    sequence.keep = False
    engine.abandon([sequence])


def _sum_logprobs(sequence: Sequence, total: Tensor) -> Callable[[Work, Tensor], None]:
    """Adds, row by row, the log-probability of the token that really follows."""

    def collect(work: Work, logits_RV: Tensor) -> None:
        first = work.start + work.count - work.num_logits
        following = sequence.tokens[first + 1 : first + 1 + work.num_logits]
        logprobs_RV = torch.log_softmax(logits_RV[: len(following)].float(), dim=-1)
        ids_R1 = torch.tensor(following, dtype=torch.int64, device=logits_RV.device)[:, None]
        total.add_(logprobs_RV.gather(1, ids_R1).double().sum().cpu())

    return collect
