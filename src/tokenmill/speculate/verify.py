"""Which tokens of a step stand: the target's own choice at each drafted position, up to and including the first that
differs from the draft. With no drafts that is the one sampled token, so plain decoding is the same code.
"""

from collections.abc import Sequence as List

from tokenmill.schedule.sequence import Plan

__all__ = ["verify"]


def verify(plan: Plan, tokens: List[int]) -> list[list[int]]:
    """Per work of the plan, the accepted tokens; none where nothing was sampled.

    `tokens` holds one sampled token per wanted row of the sequences that sample, in the order of the plan.
    """
    accepted: list[list[int]] = []
    place = 0
    for work in plan.work:
        if work.sequence.score_from is not None:
            accepted.append([])
            continue
        sampled = list(tokens[place : place + work.num_logits])
        place += work.num_logits
        agreed = 0
        for draft, token in zip(work.sequence.drafts, sampled[:-1], strict=False):
            if draft != token:
                break
            agreed += 1
        accepted.append(sampled[: agreed + 1])
    return accepted
