"""The answers of a server under load, read into records and summarised under the names of vLLM's benchmark. No network.

Names and definitions are as in vLLM's `bench serve`, so that its scripts read the result:

 - ttft: first chunk with content, since the request was sent; itl: the gaps between such chunks; e2el: the last of
   them, since the request was sent. So ttft + the sum of a request's itl = its e2el.
 - tpot: (e2el - ttft) / (output tokens - 1), of requests with two tokens or more.
 - client_queue_time, in an open loop: from when a request was due until it was sent. It holds what waiting for
   --concurrency, and this program's own slowness, hide from the other figures.
 - e2el_including_client_queue: the sum of both, request by request.
 - max_output_tokens_per_s: tokens of the best of the seconds since the first request was sent.
 - Only requests that succeeded count, but for `failed` and the errors. What cannot be known is null, never 0.

A chunk may hold several tokens, and chunks that are read together have one time. Counts are the server's own `usage`;
where it gives none, chunks are counted, and `token_counts_from` says so.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenmill.measure.statistics import percentile

LATENCIES = ("ttft", "tpot", "itl", "e2el", "client_queue_time", "e2el_including_client_queue")
GOODPUT = ("ttft", "tpot", "e2el")
PERCENTILES = (50, 90, 95, 99)

# Above this the figures say something about this program, and no longer about the server alone.
_LATE_S = 0.1


class EventStream:
    """Server-sent events as their bytes come in.

    Lines end at "\\n" alone: U+2028 and its like may stand inside a JSON string, which a reader that ends lines there
    tears apart.
    """

    def __init__(self) -> None:
        self._tail, self._data = b"", list[bytes]()

    def feed(self, block: bytes) -> Iterator[bytes]:
        """Yield the data of each event that ends in this block."""
        *lines, self._tail = (self._tail + block).split(b"\n")
        for line in lines:
            content = line.removesuffix(b"\r")
            if content.startswith(b"data:"):
                self._data.append(content[5:].strip())
            elif not content and self._data:
                data, self._data = b"\n".join(self._data), []
                yield data


@dataclass
class Record:
    """One request. Times are seconds of one clock, `due_s` and `sent_s` since the start of the run."""

    due_s: float = 0.0
    sent_s: float = 0.0
    chunks_s: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    input_tokens: int = 0  # as requested, until the server reports its own
    input_reported: bool = False
    cached_tokens: int = 0  # of the prompt, which the server found in its prefix cache, if it says so
    reported_tokens: int | None = None
    ended_properly: bool = True
    failure: str = ""  # a few words that are counted
    detail: str = ""  # and what the server said

    @property
    def ok(self) -> bool:
        """True if the request counts."""
        return not self.failure

    @property
    def output_tokens(self) -> int:
        """The tokens that the server counted; chunks where it counts none."""
        return len(self.chunks_s) if self.reported_tokens is None else self.reported_tokens

    @property
    def ttft_s(self) -> float:
        """First chunk since it was sent; 0 where none came."""
        return self.chunks_s[0] - self.sent_s if self.chunks_s else 0.0

    @property
    def e2el_s(self) -> float:
        """Last chunk since it was sent; 0 where none came."""
        return self.chunks_s[-1] - self.sent_s if self.chunks_s else 0.0

    @property
    def itls_s(self) -> list[float]:
        """Gaps between chunks."""
        return [after - before for before, after in zip(self.chunks_s, self.chunks_s[1:])]

    @property
    def tpot_s(self) -> float | None:
        """Mean time of a token after the first."""
        tokens = self.output_tokens
        return (self.e2el_s - self.ttft_s) / (tokens - 1) if tokens > 1 else None

    @property
    def error(self) -> str:
        """The failure in one line, or nothing."""
        return f"{self.failure}: {self.detail}" if self.detail else self.failure


@dataclass(frozen=True)
class Outcome:
    """A whole run: requests in the order in which they were due, without requests that never ended."""

    records: Sequence[Record]
    num_asked: int
    duration_s: float
    max_in_flight: int = 0
    lag_s: float = 0.0  # the longest delay of this program's own event loop
    interrupted: bool = False


class Failure(Exception):
    """This request failed: a few words to count by, and what the server said."""

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason, self.detail = reason, printable(detail)


class AnswerStream:
    """A streamed answer; what its events hold goes into the record."""

    def __init__(self, record: Record) -> None:
        self.record, self.done, self.finished = record, False, False
        self._events = EventStream()

    def feed(self, block: bytes, now_s: float) -> None:
        """Take bytes that came at `now_s`; Failure where they tell of one."""
        for data in self._events.feed(block):
            self._event(data, now_s)

    def end(self) -> None:
        """Note the end of the stream; Failure unless the answer is complete."""
        if not (self.done or self.finished):
            raise Failure("ended early", "the stream ended without finish_reason or [DONE]")
        if not self.record.chunks_s:
            raise Failure("no content")
        self.record.ended_properly = self.done

    def _event(self, data: bytes, now_s: float) -> None:
        if self.done or data == b"[DONE]":
            self.done = True
            return
        try:
            event = json.loads(data)
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, dict):
            raise Failure("not JSON", data[:200].decode(errors="replace"))
        if event.get("error"):
            raise Failure("error event", message_of(event))
        if isinstance(usage := event.get("usage"), dict):
            self._usage(usage)
        choices = event.get("choices")
        if isinstance(choices, list) and choices and isinstance(choices[0], dict):
            self._choice(choices[0], now_s)

    def _usage(self, usage: Mapping[str, Any]) -> None:
        if type(prompt := usage.get("prompt_tokens")) is int:
            self.record.input_tokens, self.record.input_reported = prompt, True
        if type(completion := usage.get("completion_tokens")) is int:
            self.record.reported_tokens = completion
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict) and type(cached := details.get("cached_tokens")) is int:
            self.record.cached_tokens = cached

    def _choice(self, choice: Mapping[str, Any], now_s: float) -> None:
        delta = choice.get("delta")
        # Thoughts are tokens too; servers call them by one of two names.
        where, names = (delta, ("content", "reasoning_content", "reasoning")) if delta else (choice, ("text",))
        found = [where.get(name) for name in names] if isinstance(where, Mapping) else []
        if text := "".join(part for part in found if isinstance(part, str)):
            self.record.chunks_s.append(now_s)
            self.record.texts.append(text)
        self.finished = self.finished or bool(choice.get("finish_reason"))


def message_of(answer: Any) -> str:
    """Return the message of an error, whichever way it is written."""
    if isinstance(answer, bytes):
        try:
            answer = json.loads(answer)
        except (ValueError, RecursionError):
            answer = answer.decode(errors="replace")
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    return str(error.get("message", error) if isinstance(error, dict) else error)


def printable(text: str) -> str:
    """Shorten a text to one line that is safe to show on a terminal, whatever it contains."""
    words = " ".join(text.split())
    return "".join(letter if letter.isprintable() else "�" for letter in words)[:200]


def figures(outcome: Outcome, goodput_ms: Mapping[str, float], open_loop: bool, detailed: bool) -> dict[str, Any]:
    """Compute every figure under vLLM's key; other figures are named in the module's head, or by their names."""
    good = [record for record in outcome.records if record.ok]
    inputs, outputs = sum(record.input_tokens for record in good), sum(record.output_tokens for record in good)
    latencies_s = {
        "ttft": [record.ttft_s for record in good],
        "tpot": [tpot_s for record in good if (tpot_s := record.tpot_s) is not None],
        "itl": [itl_s for record in good for itl_s in record.itls_s],
        "e2el": [record.e2el_s for record in good],
        "client_queue_time": [record.sent_s - record.due_s for record in good] if open_loop else [],
        "e2el_including_client_queue": [each.e2el_s + each.sent_s - each.due_s for each in good] if open_loop else [],
    }
    failures = [record for record in outcome.records if not record.ok]
    num_met = sum(_meets(record, goodput_ms) for record in good)
    facts: dict[str, Any] = {
        "duration": outcome.duration_s,
        "completed": len(good),
        "failed": len(failures),
        "unfinished": outcome.num_asked - len(outcome.records),
        "interrupted": outcome.interrupted,
        "total_input_tokens": inputs,
        "total_cached_tokens": sum(record.cached_tokens for record in good),
        "total_output_tokens": outputs,
        "token_counts_from": _source(good),
        "request_throughput": _per_second(len(good), outcome.duration_s),
        "request_goodput": _per_second(num_met, outcome.duration_s) if goodput_ms else None,
        "output_throughput": _per_second(outputs, outcome.duration_s),
        "total_token_throughput": _per_second(inputs + outputs, outcome.duration_s),
        "max_output_tokens_per_s": _best_second(good),
        "max_concurrent_requests": outcome.max_in_flight,
        "rtfx": 0.0,  # of audio, which is not sent
        "max_client_lag_ms": outcome.lag_s * 1000,
    }
    for name, values in latencies_s.items():
        facts.update(_statistics(name, [value * 1000 for value in values]))
    facts["error_counts"] = dict(Counter(record.failure for record in failures).most_common())
    facts["error_examples"] = {record.failure: record.error for record in reversed(failures)}
    facts["notes"] = list(_notes(outcome, good, open_loop))
    return facts | (_details(outcome.records) if detailed else {})


def _statistics(name: str, values_ms: Sequence[float]) -> dict[str, float | None]:
    ordered = sorted(values_ms)
    mean = math.fsum(ordered) / len(ordered) if ordered else None
    # Of the population, as numpy.std has it.
    squares = [(value - mean) ** 2 for value in ordered] if mean is not None else []
    named = {
        "mean": mean,
        "median": percentile(ordered, 50),
        "std": math.sqrt(math.fsum(squares) / len(squares)) if squares else None,
    }
    named |= {f"p{percent}": percentile(ordered, percent) for percent in PERCENTILES}
    return {f"{statistic}_{name}_ms": value for statistic, value in named.items()}


def _meets(record: Record, goodput_ms: Mapping[str, float]) -> bool:
    """Tell whether every bound is kept; one token has no tpot, and keeps any, as vLLM counts it."""
    reached_s = {"ttft": record.ttft_s, "tpot": record.tpot_s or 0.0, "e2el": record.e2el_s}
    return all(reached_s[name] * 1000 <= bound_ms for name, bound_ms in goodput_ms.items())


def _per_second(count: float, duration_s: float) -> float:
    return count / duration_s if duration_s > 0 else 0.0


def _best_second(good: Iterable[Record]) -> float:
    """Count the tokens of the best second. A chunk counts for as many as the chunks of its request have on average."""
    good, counts = list(good), dict[int, float]()
    first_s = min((record.sent_s for record in good), default=0.0)
    for record in good:
        for chunk_s in record.chunks_s:
            second = int(chunk_s - first_s)
            counts[second] = counts.get(second, 0.0) + record.output_tokens / len(record.chunks_s)
    return max(counts.values(), default=0.0)


def _source(good: Iterable[Record]) -> str | None:
    sources = {"chunks" if record.reported_tokens is None else "usage" for record in good}
    return "both" if len(sources) > 1 else next(iter(sources), None)


def _details(records: Iterable[Record]) -> dict[str, Any]:
    """Return one entry for each request; an empty string in `errors` is a success."""
    rows = list(records)
    return {
        "input_lens": [record.input_tokens for record in rows],
        "output_lens": [record.output_tokens if record.ok else 0 for record in rows],
        "start_times": [record.sent_s for record in rows],
        "queue_times": [record.sent_s - record.due_s for record in rows],
        "ttfts": [record.ttft_s for record in rows],
        "itls": [record.itls_s for record in rows],
        "latencies": [record.e2el_s for record in rows],
        "generated_texts": ["".join(record.texts) for record in rows],
        "errors": [record.error for record in rows],
    }


def _notes(outcome: Outcome, good: Sequence[Record], open_loop: bool) -> Iterable[str]:
    if outcome.interrupted:
        missing = outcome.num_asked - len(outcome.records)
        yield f"interrupted: {missing} of {outcome.num_asked} requests did not end and are left out"
    if unreported := sum(record.reported_tokens is None for record in good):
        yield f"{unreported} answers came without usage: their chunks are counted as tokens, and may hold several"
    if unreported := sum(not record.input_reported for record in good):
        yield f"the server did not say the prompt tokens of {unreported} requests: words or ids are counted instead"
    if cached := sum(record.cached_tokens for record in good):
        total = sum(record.input_tokens for record in good)
        share = f"{100 * cached / total:.0f} % of the prompt tokens were"
        yield f"{share} in the server's prefix cache: another --seed sends others, unless they come from --prompts"
    if unended := sum(not record.ended_properly for record in good):
        yield f"{unended} streams gave a finish_reason but no [DONE]"
    late_s = max((record.sent_s - record.due_s for record in outcome.records), default=0.0)
    if open_loop and late_s > _LATE_S:
        yield f"a request was sent {late_s:.2f} s after it was due: the real rate was below the requested one"
    if outcome.lag_s > _LATE_S:
        yield f"this program itself fell behind by up to {outcome.lag_s:.2f} s, which latencies may hold"
