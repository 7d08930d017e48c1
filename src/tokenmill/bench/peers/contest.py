"""The same model, the same tokens, the same threads: engines measured in turn, in one run, on one machine.

Each engine is a process of its own (`process.py`) and gets the same prompts (`prompts.py`). All are loaded
first; then come rounds, each beginning with another engine, with a bandwidth probe before each run, so that a machine
that changes from second to second treats all alike. One that is absent, crashes, hangs or answers nonsense is marked
with the reason, and the others go on.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenmill.bench.peers.known import PEERS, command_for
from tokenmill.bench.peers.process import PeerFailed, PeerProcess, PeerRefused
from tokenmill.bench.points import Point
from tokenmill.bench.rows import VERSION, provenance
from tokenmill.engine.outputs import hash_tokens
from tokenmill.hub.progress import Progress
from tokenmill.measure.statistics import Spread

__all__ = ["OURS", "Contest"]

OURS = "tokenmill"
PAUSE_S = 0.3  # threads of the one before stop spinning
UNEVEN = 1.15  # probes further apart than this: a noisy minute


@dataclass(frozen=True)
class Run:
    """One answer. Rates are tokens of all sequences per second."""

    probe_gb_s: float
    prefill_tok_s: float
    decode_tok_s: float
    total_s: float
    tokens: tuple[tuple[int, ...], ...] | None


@dataclass
class Contestant:
    """One engine: its process while it is alive, what it said of itself, the runs of the point at hand."""

    name: str
    process: PeerProcess | None = None
    said: dict[str, Any] = field(default_factory=dict)
    runs: dict[int, Run] = field(default_factory=dict)  # by round
    reason: str = ""  # why there are no figures
    status: str = "ok"

    def lose(self, status: str, reason: str) -> None:
        """It is of no further use, at no point."""
        self.status, self.reason = status, reason
        if self.process is not None:
            self.process.kill()
            self.process = None


@dataclass
class Contest:
    """`wanted`: peer name → path given for it, or None. Times are limits for one answer, in seconds.

    `options` are engine settings for tokenmill's own process. Used as a context: leaving it ends every process.
    """

    model: str
    wanted: Mapping[str, str | None]
    threads: int
    dtype: str
    probe: Callable[[], float]
    progress: Progress
    options: Mapping[str, Any] = field(default_factory=dict)
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
            self.progress.stage(f"loading {name}")
            contestant = Contestant(name)
            self.contestants.append(contestant)
            command = command_for(PEERS[name], given)
            if command is None:
                contestant.lose("absent", _how_to_get(name))
                continue
            try:
                contestant.process = PeerProcess(command, self.threads)
                own = dict(self.options) if name == OURS else {}
                contestant.said = contestant.process.ask({**request, **own}, self.load_limit_s)
            except PeerFailed as error:
                contestant.lose("failed", str(error))

    def rows(self, point: Point, prompts: List[List[int]]) -> list[dict[str, Any]]:
        """A row per engine for one point."""
        for contestant in self.contestants:
            contestant.runs.clear()
            if contestant.status == "refused":
                contestant.status, contestant.reason = "ok", ""
        for number in range(-1, self.rounds):  # round -1 warms up
            self.progress.stage(
                f"{point.title}, " + (f"round {number + 1} of {self.rounds}" if number >= 0 else "warm-up")
            )
            for at, contestant in enumerate(self._order(number)):
                self.progress.advance(at, len(self.contestants))
                self._turn(contestant, number, point, prompts)
        ours = next((found for found in self.contestants if found.name == OURS), None)
        return [self._row(contestant, point, ours) for contestant in self.contestants]

    # ---- inside

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

    def _row(self, contestant: Contestant, point: Point, ours: Contestant | None) -> dict[str, Any]:
        row = {
            "version": VERSION,
            "kind": "peers",
            "test": point.title,
            "label": contestant.name,
            "model": Path(self.model).name,
            "dtype": self.dtype,
            "threads": self.threads,
            "batch": point.batch,
            "prompt": point.prompt,
            "new": point.new,
            "depth": 0,
            "status": contestant.status,
            "reason": contestant.reason or None,
            "note": contestant.said.get("note"),
            "versions": contestant.said.get("versions"),
            "load_s": contestant.said.get("load_s"),
            **provenance(),
        }
        if contestant.status == "ok":
            row.update(_figures(list(contestant.runs.values()), point))
            if ours is not None and ours.status == "ok" and ours is not contestant:
                row.update(_ratios(ours.runs, contestant.runs))
        return row


def _how_to_get(name: str) -> str:
    if PEERS[name].is_binary:
        return f"give its path: --peer {name}=PATH"
    return f"not installed: tokenmill bench install-peer {name}, or --peer {name}=PYTHON"


def _read(answer: Mapping[str, Any], probe_gb_s: float, point: Point, new: int) -> Run:
    """PeerFailed for an answer that cannot be."""
    try:
        times = {name: float(answer[name]) for name in ("prefill_s", "decode_s", "total_s")}
        reported = answer["tokens"]
        tokens = None if reported is None else tuple(tuple(int(token) for token in tokens) for tokens in reported)
        decoded = int(answer.get("decode_tokens", point.batch * (new - 1)))
    except (KeyError, TypeError, ValueError):
        raise PeerFailed(f"a run without prefill_s, decode_s, total_s and tokens: {str(answer)[:80]}") from None
    if not all(value > 0 for value in times.values()):
        raise PeerFailed(f"a run that took no time: {times}")
    if tokens is not None and [len(row) for row in tokens] != [new] * point.batch:
        raise PeerFailed(f"{[len(row) for row in tokens]} tokens instead of {new} for each of {point.batch} prompts")
    return Run(
        probe_gb_s,
        point.batch * point.prompt / times["prefill_s"],
        decoded / times["decode_s"],
        times["total_s"],
        tokens,
    )


def _figures(runs: list[Run], point: Point) -> dict[str, Any]:
    decode, prefill = Spread.of([run.decode_tok_s for run in runs]), Spread.of([run.prefill_tok_s for run in runs])
    probes = Spread.of([run.probe_gb_s for run in runs])
    fed = 1e3 * point.batch * point.prompt
    tokens = runs[-1].tokens
    return {
        "repetitions": len(runs),
        **decode.columns("decode_tok_s"),
        "decode_ms": 1e3 * point.batch / decode.median,
        "prefill_tok_s": prefill.median,
        "prefill_ms": fed / prefill.median,
        "prefill_ms_min": fed / prefill.max,
        "prefill_ms_max": fed / prefill.min,
        "total_s": Spread.of([run.total_s for run in runs]).median,
        "probe_gb_s": probes.median,
        "noisy": probes.max > UNEVEN * probes.min,
        "hash": None if tokens is None else hash_tokens([token for row in tokens for token in row]),
    }


def _ratios(ours: Mapping[int, Run], theirs: Mapping[int, Run]) -> dict[str, Any]:
    """Ours over theirs, round by round; and how far the tokens are the same."""
    rounds = sorted(set(ours) & set(theirs))
    decode = Spread.of([ours[at].decode_tok_s / theirs[at].decode_tok_s for at in rounds])
    prefill = Spread.of([ours[at].prefill_tok_s / theirs[at].prefill_tok_s for at in rounds])
    a, b = ours[rounds[-1]].tokens, theirs[rounds[-1]].tokens
    return {
        **decode.columns("decode_ratio"),
        **prefill.columns("prefill_ratio"),
        "same_tokens": None if a is None or b is None else sum(map(_common, a, b)) / sum(map(len, a)),
    }


def _common(a: List[int], b: List[int]) -> int:
    """How many tokens are equal before the first that is not."""
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))
