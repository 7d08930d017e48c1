"""The result of a check as rows of a table, as lines for a reader, and as one document."""

from collections.abc import Iterator
from datetime import UTC, datetime
from statistics import median_low
from typing import Any

from tokenmill.prove.compare import CHARACTER, TOKEN, first_index
from tokenmill.prove.run import ProofOutcome
from tokenmill.prove.tally import Count, Example, Tally
from tokenmill.version import __version__

HEADER = ("case", "requests", "compared", "differ", "greedy", "seeded", "logprobs differ", "first at", "failed")
_AROUND = 60  # characters of an example that are shown on either side of the first difference


def rows(outcome: ProofOutcome) -> list[tuple[str, ...]]:
    """Return a row for each case, and one for all."""
    shown = [_row(tally) for tally in outcome.tallies]
    total = Tally("all", "")
    for tally in outcome.tallies:
        _merge(total, tally)
    return [*shown, _row(total)]


def _row(tally: Tally) -> tuple[str, ...]:
    if not tally.total.comparisons and not tally.failures:
        return (tally.name, f"{tally.requests:,}", _why_nothing(tally), *("",) * 6)
    greedy = _sum([each for (_, temperature), each in tally.by.items() if temperature == 0])
    seeded = _sum([each for (_, temperature), each in tally.by.items() if temperature != 0])
    logprobs = _of(tally.logprobs) if tally.logprobs.comparisons else "-"
    counts = (f"{tally.requests:,}", f"{tally.total.comparisons:,}", f"{tally.total.differ:,}")
    return (tally.name, *counts, _of(greedy), _of(seeded), logprobs, _first(tally), f"{tally.num_failed:,}")


def _why_nothing(tally: Tally) -> str:
    return "left out" if tally.is_left_out else "not offered" if tally.not_offered else "nothing"


def _of(count: Count) -> str:
    return f"{count.differ:,} of {count.comparisons:,}" if count.comparisons else "-"


def _first(tally: Tally) -> str:
    if (found := tally.first()) is None:
        return "-"
    unit, smallest, middle = found
    return f"{unit} {smallest}, median {middle}"


def _sum(counts: list[Count]) -> Count:
    return Count(sum(each.comparisons for each in counts), sum(each.differ for each in counts))


def _merge(total: Tally, more: Tally) -> None:
    total.requests += more.requests
    total.total = _sum([total.total, more.total])
    total.logprobs = _sum([total.logprobs, more.logprobs])
    total.by |= {key: _sum([total.by.get(key, Count()), each]) for key, each in more.by.items()}
    total.differences += more.differences
    total.failures += more.failures


def notes(outcome: ProofOutcome) -> Iterator[str]:
    """Yield the remarks that a reader needs before trusting the counts."""
    yield f"texts are compared by {outcome.offer.compares}"
    for route, reason in outcome.offer.missing.items():
        yield f"not offered: /v1/{route} ({reason})"
    nothing = outcome.compared_nothing
    for tally in outcome.tallies:
        if tally.name in nothing:
            yield f"{tally.name}: compared nothing: {nothing[tally.name]}"
        else:
            for reason in tally.not_offered:
                if not any(reason.startswith(f"/v1/{route}:") for route in outcome.offer.missing):
                    yield f"{tally.name}: {'left out' if tally.is_left_out else 'not offered'}: {reason}"
        yield from _of_tally(tally)
    if outcome.num_waits:
        yield f"the server was full {outcome.num_waits:,} times; those requests were sent again when it asked for it"
    if outcome.interrupted or outcome.error:
        said = f" ({outcome.error})" if outcome.error else ""
        yield f"ended by {outcome.ended_by}{said}: what is here was found before"


def _of_tally(tally: Tally) -> Iterator[str]:
    compared = tally.total.comparisons
    if tally.empty:
        yield f"{tally.name}: {tally.empty:,} of {compared:,} texts were empty, which says little"
    if compared > 4 and len(tally.seen) == 1:
        yield f"{tally.name}: all {compared:,} texts were the same, which says little"
    for failure, times in tally.failures.most_common(3):
        yield f"{tally.name}: {times:,} requests failed: {failure}"


def examples(outcome: ProofOutcome) -> Iterator[str]:
    """Yield lines about the first difference of each case."""
    for tally in outcome.tallies:
        if tally.examples:
            yield from _lines(tally.name, tally.examples[0])


def _lines(name: str, example: Example) -> Iterator[str]:
    found, fields = example.difference, {**example.ask.fields}
    prompt = example.ask.prompt if isinstance(example.ask.prompt, str) else f"{len(example.ask.prompt)} token ids"
    yield f"{name}: /v1/{example.ask.route} {fields}, prompt {_cut(repr(prompt))}"
    if found is None:
        yield f"  log-probabilities differ by {example.logprob_distance:g}, and the tokens are the same"
        return
    place = found.index if found.unit == CHARACTER else first_index(example.one.text, example.two.text)
    yield f"  they differ from {found.unit} {found.index} on" + ("" if found.unit == TOKEN else f" ({found.unit})")
    for how, text in ((example.usual, example.one), (example.other, example.two)):
        start = max(0, place - _AROUND)
        shown = text.text[start : place + _AROUND]
        yield f"  {how}: {'…' if start else ''}{shown!r} ({text.reason})"


def _cut(text: str) -> str:
    return text if len(text) <= 2 * _AROUND else f"{text[:_AROUND]} … {text[-_AROUND:]}"


def document(outcome: ProofOutcome) -> dict[str, Any]:
    """Describe the whole result, for --json."""
    settings, offer = outcome.settings, outcome.offer
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "tokenmill": __version__,
        "url": settings.url,
        "model": offer.model,
        "system_fingerprint": offer.fingerprint,
        "seed": settings.seed,
        "concurrency": settings.concurrency,
        "max_tokens": settings.max_tokens,
        "compared_by": offer.compares,
        "logprobs": settings.logprobs,
        "tolerance": settings.tolerance,
        "routes": {f"/v1/{each.route}": {"missing": each.missing} for each in offer.routes}
        | {f"/v1/{route}": {"missing": {"route": reason}} for route, reason in offer.missing.items()},
        "requests": outcome.num_requests,
        "comparisons": outcome.num_comparisons,
        "differences": outcome.num_differences,
        "failed": outcome.num_failed,
        "compared_nothing": outcome.compared_nothing,
        "waits": outcome.num_waits,
        "duration_s": outcome.duration_s,
        "ended_by": outcome.ended_by,
        "interrupted": outcome.interrupted,
        "cases": [_facts(tally) for tally in outcome.tallies],
        "notes": list(notes(outcome)),
    }


def _facts(tally: Tally) -> dict[str, Any]:
    first = tally.first()
    return {
        "case": tally.name,
        "help": tally.help,
        "requests": tally.requests,
        "comparisons": tally.total.comparisons,
        "differ": tally.total.differ,
        "by": [
            {"route": f"/v1/{route}", "temperature": temperature, **vars(each)}
            for (route, temperature), each in tally.by.items()
        ],
        "first_difference": None if first is None else dict(zip(("unit", "min", "median"), first)),
        "logprobs_compared": tally.logprobs.comparisons,
        "logprobs_differ": tally.logprobs.differ,
        "max_logprob_difference": tally.max_logprob_distance if tally.logprobs.comparisons else None,
        "median_length": median_low(tally.lengths) if tally.lengths else None,
        "distinct_texts": len(tally.seen),
        "empty": tally.empty,
        "failed": tally.num_failed,
        "failures": dict(tally.failures),
        "not_offered": tally.not_offered,
        "examples": [each.facts() for each in tally.examples],
    }
