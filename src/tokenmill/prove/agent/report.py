"""The result of a check of an agent's log as rows of a table, as remarks, and as one document."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from tokenmill.prove.agent.outcome import AgentOutcome, Turn
from tokenmill.version import __version__

HEADER = ("turn", "route", "prompt", "stood before", "found", "computed again", "new", "found share", "seconds")
UNKNOWN = "-"


def rows(outcome: AgentOutcome) -> list[tuple[str, ...]]:
    """Return a row for each turn, and one for all."""
    turns = [(str(number), *_row(turn)) for number, turn in enumerate(outcome.turns, start=1)]
    total = sum(turn.usage.num_prompt or 0 for turn in outcome.turns)
    found = sum(turn.usage.num_cached or 0 for turn in outcome.turns)
    new = sum(turn.num_new or 0 for turn in outcome.turns)
    seconds = f"{sum(turn.seconds for turn in outcome.turns):.2f}"
    counts = (_count(total), _count(outcome.num_before), _count(found), _count(outcome.num_again), _count(new))
    return [*turns, ("all", "", *counts, percent(outcome.share), seconds)]


def _row(turn: Turn) -> tuple[str, ...]:
    route = turn.recorded.path.removeprefix("/v1/")
    if turn.refusal:
        return (route, "refused", *("",) * 6)
    usage, before, again = turn.usage, turn.num_before, turn.num_again
    share = 1 - again / before if before and again is not None else None
    counts = map(_count, (usage.num_prompt, before, usage.num_cached, again, turn.num_new))
    return (route, *counts, percent(share), f"{turn.seconds:.2f}")


def _count(number: int | None) -> str:
    return UNKNOWN if number is None else f"{number:,}"


def percent(share: float | None) -> str:
    """Write a share of all, never rounded up to all of it."""
    if share is None:
        return UNKNOWN
    return "100 %" if share == 1 else f"{min(100 * share, 99.99):.2f} %"


def notes(outcome: AgentOutcome) -> Iterator[str]:
    """Yield what a reader needs beside the counts."""
    for number, turn in enumerate(outcome.turns, start=1):
        if turn.refusal:
            yield f"turn {number} (line {turn.recorded.number}) was refused: {turn.refusal}"
        if (parting := turn.parting) is not None:
            yield (
                f"turn {number} parts from line {parting.number} after {parting.num_common:,} of its "
                f"{parting.num_tokens:,} tokens: what stood after that place has changed"
            )
    for path, times in outcome.skipped.items():
        yield f"{times:,} lines of {path} were not sent: nothing is generated there"
    answered = [turn for turn in outcome.turns if not turn.refusal]
    if any(turn.num_before is None for turn in answered):
        yield "the server tells no token ids (return_token_ids), so that what stood before is not known"
    if any(turn.usage.num_cached is None for turn in answered):
        yield "the server does not say how many tokens it found (cached tokens in usage)"


def document(outcome: AgentOutcome, url: str) -> dict[str, Any]:
    """Describe the whole result, for --json."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "tokenmill": __version__,
        "url": url,
        "stood_before": outcome.num_before,
        "computed_again": outcome.num_again,
        "found_share": outcome.share,
        "turns": [_facts(turn) for turn in outcome.turns],
        "skipped": outcome.skipped,
        "notes": list(notes(outcome)),
    }


def _facts(turn: Turn) -> dict[str, Any]:
    return {
        "line": turn.recorded.number,
        "path": turn.recorded.path,
        "prompt_tokens": turn.usage.num_prompt,
        "stood_before": turn.num_before,
        "found": turn.usage.num_cached,
        "computed_again": turn.num_again,
        "new": turn.num_new,
        "parts_from": None if turn.parting is None else vars(turn.parting),
        "seconds": turn.seconds,
        "refusal": turn.refusal or None,
    }
