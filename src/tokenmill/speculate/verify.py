"""Verification of drafts: the target's own choices are accepted up to and including the first that differs from its
draft. With no drafts that is the one sampled token, so plain decoding is the same code. Drafts that are the only tokens
that may come need no choice.
"""

from collections.abc import Sequence as List

from tokenmill.schedule.sequence import Plan


def verify(plan: Plan, chosen: List[list[int]]) -> list[list[int]]:
    """Accept, for each work item of the plan, the chosen tokens that count; none if nothing was sampled."""
    accepted: list[list[int]] = []
    for work, sampled in zip(plan.work, chosen, strict=True):
        if not work.drafts:
            accepted.append(sampled)
            continue
        drafts = work.drafts[work.num_certain :]
        differ = (at for at, (draft, token) in enumerate(zip(drafts, sampled, strict=False)) if draft != token)
        accepted.append([*work.certain, *sampled[: next(differ, len(drafts)) + 1]])
    return accepted
