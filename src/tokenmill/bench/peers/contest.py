"""The same model, the same tokens, the same threads: engines measured in turn, in one run, on one machine.

Each engine is a process of its own (`process.py`). An engine that can be run in several ways is several processes, and
the best way counts. All get the same prompts, others in each round. All are loaded first; then come rounds, each
beginning with another engine, with a bandwidth probe before each run, so that a machine that changes from second to
second treats all alike. An engine that is absent, crashes, hangs or answers nonsense is marked with the reason, and the
others go on.
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from tokenmill.bench.peers.known import OURS, PEERS, command_for
from tokenmill.bench.peers.process import PeerFailed, PeerProcess, PeerRefused
from tokenmill.bench.points import Point
from tokenmill.bench.rows import VERSION, provenance
from tokenmill.engine.outputs import hash_tokens
from tokenmill.errors import ConfigError
from tokenmill.hub.progress import Progress
from tokenmill.measure.statistics import Spread
from tokenmill.weights.checkpoint import Checkpoint

PAUSE_S = 0.3  # in which the threads of the engine before stop spinning
UNEVEN = 1.15  # probes further apart than this: a noisy minute


@dataclass(frozen=True)
class ContestRun:
    """One answer. Rates are tokens of all sequences per second. drafted, accepted: None if the engine tells neither."""

    probe_gb_s: float
    prefill_tok_s: float
    decode_tok_s: float
    total_s: float
    tokens: tuple[tuple[int, ...], ...] | None
    drafted: int | None = None
    accepted: int | None = None


@dataclass
class Contestant:
    """One way to run an engine: its process while it is alive, what it says of itself, the runs of a point."""

    name: str
    variant: str = ""
    process: PeerProcess | None = None
    said: dict[str, Any] = field(default_factory=dict)
    runs: dict[int, ContestRun] = field(default_factory=dict)  # by round
    reason: str = ""  # why there are no figures
    status: str = "ok"

    def median(self, rate: str) -> float:
        """Return the median of a rate over the runs so far."""
        return Spread.of([getattr(run, rate) for run in self.runs.values()]).median

    def lose(self, status: str, reason: str) -> None:
        """Note that this peer can be used at no further point."""
        self.status, self.reason = status, reason
        if self.process is not None:
            self.process.kill()
            self.process = None


@dataclass
class Contest:
    """Engines that are measured in turn. A context: its end ends every process.

    `wanted`: peer name → path given for it, or None. Times are limits for one answer, in seconds. `options` are engine
    settings for processes of tokenmill, by peer.
    """

    model: str
    wanted: Mapping[str, str | None]
    threads: int
    dtype: str
    probe: Callable[[], float]
    progress: Progress
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rounds: int = 3
    load_limit_s: float = 300.0
    run_limit_s: float = 120.0
    contestants: list[Contestant] = field(default_factory=list)

    def __enter__(self) -> "Contest":
        return self

    def __exit__(self, *_: object) -> None:
        for contestant in self.contestants:
            if contestant.process is not None:
                contestant.process.stop()

    def load(self, points: List[Point]) -> None:
        """Start every engine, one after the other, with a context that fits all points."""
        request = {
            "op": "load",
            "model": self.model,
            "threads": self.threads,
            "dtype": self.dtype,
            "max_length": max(point.length for point in points),
            "batch": max(point.batch for point in points),
        }
        for name, given in self.wanted.items():
            for variant, options in PEERS[name].variants.items():
                self.progress.stage(f"loading {name}{variant and f', {variant}'}")
                contestant = Contestant(name, variant)
                self.contestants.append(contestant)
                self._start(contestant, given, {**request, **options, **self.options.get(name, {})})

    def rows(self, point: Point, prompts: Callable[[], List[List[int]]]) -> list[dict[str, Any]]:
        """Measure one point, and return a row for each engine. `prompts` gives new ones for each round."""
        for contestant in self.contestants:
            contestant.runs.clear()
            if contestant.status == "refused":
                contestant.status, contestant.reason = "ok", ""
        for number in range(-1, self.rounds):  # round -1 warms up
            name = f"round {number + 1} of {self.rounds}" if number >= 0 else "warm-up"
            self.progress.stage(f"{point.title}, {name}")
            texts = prompts()
            for at, contestant in enumerate(self._order(number)):
                self.progress.advance(at, len(self.contestants))
                self._turn(contestant, number, point, texts)
        names = dict.fromkeys(contestant.name for contestant in self.contestants)
        ours = self._best(OURS, "decode_tok_s") if OURS in names else None
        return [self._row(name, point, ours) for name in names]

    def _start(self, contestant: Contestant, given: str | None, request: Mapping[str, Any]) -> None:
        command = command_for(PEERS[contestant.name], given)
        if command is None:
            contestant.lose("absent", _how_to_get(contestant.name))
            return
        try:
            contestant.process = PeerProcess(command, self.threads)
            contestant.said = contestant.process.ask(request, self.load_limit_s)
        except PeerFailed as error:
            contestant.lose("failed", str(error))

    def _best(self, name: str, rate: str) -> Contestant:
        """Find the way of running an engine that has the largest median; the first way if no way has figures."""
        every = [contestant for contestant in self.contestants if contestant.name == name]
        return max(every, key=lambda each: each.median(rate) if each.status == "ok" else -1.0)

    def _order(self, number: int) -> Iterator[Contestant]:
        count = len(self.contestants)
        return (self.contestants[(at + max(number, 0)) % count] for at in range(count))

    def _turn(self, contestant: Contestant, number: int, point: Point, prompts: List[List[int]]) -> None:
        if contestant.process is None or contestant.status != "ok":
            return
        # The first of many long prompts are done with 8 tokens before the last is read: then nothing decodes together.
        new = min(point.new, 8) if number < 0 and point.batch == 1 else point.new
        try:
            time.sleep(PAUSE_S)
            probe_gb_s = self.probe()
            answer = contestant.process.ask({"op": "run", "prompts": prompts, "new": new}, self.run_limit_s)
            run = _read(answer, probe_gb_s, point, new)
        except PeerRefused as refused:
            contestant.status, contestant.reason = "refused", str(refused)
        except PeerFailed as error:
            contestant.lose("failed", str(error))
        else:
            if number >= 0:
                contestant.runs[number] = run

    def _row(self, name: str, point: Point, ours: Contestant | None) -> dict[str, Any]:
        best, prefill = self._best(name, "decode_tok_s"), self._best(name, "prefill_tok_s")
        row = {
            "version": VERSION,
            "kind": "peers",
            "test": point.title,
            "label": name,
            "model": Path(self.model).name,
            "dtype": self.dtype,
            "threads": self.threads,
            "batch": point.batch,
            "prompt": point.prompt,
            "new": point.new,
            "depth": 0,
            "status": best.status,
            "reason": best.reason or None,
            "note": best.said.get("note"),
            "versions": best.said.get("versions"),
            "load_s": best.said.get("load_s"),
            **provenance(),
        }
        if best.status == "ok":
            row["variant"] = _variants(best.variant, prefill.variant)
            row.update(_decode_figures(list(best.runs.values()), point))
            row.update(_prefill_figures(list(prefill.runs.values()), point))
            if ours is not None and ours.status == "ok" and ours is not best:
                row["same_tokens"] = _same(ours.runs, best.runs)
                if not PEERS[name].is_ours:
                    row.update(_ratios("decode", ours.runs, best.runs) | _ratios("prefill", ours.runs, prefill.runs))
        return row


def _variants(decode: str, prefill: str) -> str | None:
    """Name the ways in which the engine ran for its figures."""
    return decode or None if decode == prefill else f"decode {decode}, prefill {prefill}"


def _how_to_get(name: str) -> str:
    if PEERS[name].is_binary:
        return f"give its path: --peer {name}=PATH"
    return f"not installed: tokenmill bench install-peer {name}, or --peer {name}=PYTHON"


def _read(answer: Mapping[str, Any], probe_gb_s: float, point: Point, new: int) -> ContestRun:
    try:
        times = {name: float(answer[name]) for name in ("prefill_s", "decode_s", "total_s")}
        reported = answer["tokens"]
        tokens = None if reported is None else tuple(tuple(int(token) for token in tokens) for tokens in reported)
        decoded = int(answer.get("decode_tokens", point.batch * (new - 1)))
        fed = int(answer.get("prefill_tokens", point.batch * point.prompt))
        drafts = [None if answer.get(name) is None else int(answer[name]) for name in ("drafted", "accepted")]
    except (KeyError, TypeError, ValueError):
        raise PeerFailed(f"a run without prefill_s, decode_s, total_s and tokens: {str(answer)[:80]}") from None
    if not all(value > 0 for value in times.values()):
        raise PeerFailed(f"a run that took no time: {times}")
    if fed < point.batch * point.prompt:
        raise PeerFailed(f"prefill fed {fed} of {point.batch * point.prompt} tokens: its time measures something else")
    if tokens is not None and [len(row) for row in tokens] != [new] * point.batch:
        raise PeerFailed(f"{[len(row) for row in tokens]} tokens instead of {new} for each of {point.batch} prompts")
    return ContestRun(
        probe_gb_s,
        point.batch * point.prompt / times["prefill_s"],
        decoded / times["decode_s"],
        times["total_s"],
        tokens,
        *drafts,
    )


def _decode_figures(runs: list[ContestRun], point: Point) -> dict[str, Any]:
    decode, probes = Spread.of([run.decode_tok_s for run in runs]), Spread.of([run.probe_gb_s for run in runs])
    texts = [run.tokens for run in runs if run.tokens is not None]
    drafts = [(run.drafted, run.accepted) for run in runs if run.drafted is not None and run.accepted is not None]
    return {
        "repetitions": len(runs),
        **decode.columns("decode_tok_s"),
        "decode_ms": 1e3 * point.batch / decode.median,
        "total_s": Spread.of([run.total_s for run in runs]).median,
        "probe_gb_s": probes.median,
        "noisy": probes.max > UNEVEN * probes.min,
        "hash": hash_tokens([token for rows in texts for row in rows for token in row]) if texts else None,
        "drafted": sum(drafted for drafted, _ in drafts) if drafts else None,
        "accepted": sum(accepted for _, accepted in drafts) if drafts else None,
    }


def _prefill_figures(runs: list[ContestRun], point: Point) -> dict[str, Any]:
    prefill, fed = Spread.of([run.prefill_tok_s for run in runs]), 1e3 * point.batch * point.prompt
    return {
        "prefill_tok_s": prefill.median,
        "prefill_ms": fed / prefill.median,
        "prefill_ms_min": fed / prefill.max,
        "prefill_ms_max": fed / prefill.min,
    }


def _ratios(phase: str, ours: Mapping[int, ContestRun], theirs: Mapping[int, ContestRun]) -> dict[str, Any]:
    rate = f"{phase}_tok_s"
    ratios = [getattr(ours[at], rate) / getattr(theirs[at], rate) for at in sorted(set(ours) & set(theirs))]
    return Spread.of(ratios).columns(f"{phase}_ratio")


def _same(ours: Mapping[int, ContestRun], theirs: Mapping[int, ContestRun]) -> float | None:
    """Compute the share of the tokens of all rounds that are the same, each text up to the first difference."""
    pairs = [(ours[at].tokens, theirs[at].tokens) for at in sorted(set(ours) & set(theirs))]
    rows = [pair for a, b in pairs if a is not None and b is not None for pair in zip(a, b, strict=True)]
    return sum(_common(a, b) for a, b in rows) / sum(len(a) for a, _ in rows) if rows else None


def _common(a: List[int], b: List[int]) -> int:
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))


class Prompts:
    """The prompts that all engines continue: pieces of Python's own documentation, so that greedy tokens rarely hang on
    a tie; random ids for a model that has no tokenizer.

    No part of the text is used twice. A prompt that comes again could be answered out of a cache, and a prompt that
    holds the same text twice gives speculation more to copy than texts have. num_tokens: of all prompts together.
    ConfigError if there is less text than that.
    """

    def __init__(self, checkpoint: Checkpoint, vocab_size: int, num_tokens: int) -> None:
        tokenizer = checkpoint.tokenizer()
        if tokenizer is None:
            rng = random.Random(0)  # noqa: S311  (no secret)
            self._ids = [rng.randrange(vocab_size) for _ in range(num_tokens)]
        else:
            self._ids = tokenizer.encode(documentation(), add_special_tokens=False)
        if num_tokens > len(self._ids):
            needed = f"less: {num_tokens:,} tokens for every batch and round, and the text that is used has "
            allowed = f"{needed}{len(self._ids):,}; or less of --batch, --rounds"
            raise ConfigError("--prompt", "too many tokens", allowed)
        self._at = 0

    def take(self, length: int, batch: int) -> list[list[int]]:
        """Return `batch` prompts of `length` ids that were in no prompt before."""
        starts = range(self._at, self._at + batch * length, length)
        self._at = starts.stop
        return [self._ids[start : start + length] for start in starts]


def documentation() -> str:
    """Return the text that `help()` shows of Python's topics, each paragraph once: 90,000 tokens or more."""
    paragraphs = (paragraph for _, text in sorted(topics.items()) for paragraph in text.split("\n\n"))
    return "\n\n".join({" ".join(paragraph.split()): paragraph for paragraph in paragraphs}.values())
