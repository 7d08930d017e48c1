"""Engines that take turns on the same prompts and must give the same answers; for benchmarks/speculation.py."""

import statistics
import sys
from collections.abc import Callable, Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tokenmill.engine.engine import Engine
from tokenmill.measure.recorder import StepRecord, record
from tokenmill.speculate.proposer import Proposer

__all__ = ["Contender", "Group", "Run", "Runs", "Texts", "Turns", "ratios"]

GRAM = 8

Texts = list[list[int]]


@dataclass
class Group:
    """Prompts that run together, and the answers that all must give. copied: the share that stands in the prompts."""

    name: str
    kind: str
    prompts: Texts
    answers: Texts = field(default_factory=list)
    copied: float = 0.0


@dataclass
class Contender:
    """An engine with a proposer. renew: makes one for each run; None keeps the engine's own, and what it has learnt."""

    name: str
    engine: Engine
    renew: Callable[[], Proposer] | None = None


@dataclass(frozen=True)
class Run:
    """The steps of one run in which every sequence had its first token. tokens_per_pass: of each sequence."""

    seconds: float
    num_tokens: int
    num_passes: int
    tokens_per_pass: float

    @property
    def rate(self) -> float:
        """Tokens a second, of all sequences together."""
        return self.num_tokens / self.seconds

    @property
    def pass_ms(self) -> float:
        return 1e3 * self.seconds / self.num_passes


Runs = dict[str, list[Run]]
"""The runs of each contender, one for each round."""


@dataclass(frozen=True)
class Turns:
    """new: most new tokens of an answer. to_the_end: so many, past the end of the text. sampling: of `generate`."""

    groups: List[Group]
    new: int
    to_the_end: bool = False
    sampling: Mapping[str, Any] = field(default_factory=dict)

    def answer(self, contender: Contender) -> None:
        """Let a contender say what the answers are."""
        for number, group in enumerate(self.groups, start=1):
            tell(f"{contender.name} answers {number} of {len(self.groups)}")
            _, group.answers = self._run(contender, group)
            group.copied = statistics.mean(map(copied, group.prompts, group.answers))

    def check(self, contender: Contender) -> None:
        """End the benchmark if a contender gives another text."""
        for number, group in enumerate(self.groups, start=1):
            tell(f"{contender.name} is checked on {number} of {len(self.groups)}")
            self._checked(contender, group)

    def measure(self, contenders: List[Contender], rounds: int) -> list[Runs]:
        """The runs of all rounds for each group; each second round goes through the contenders backwards."""
        found: list[Runs] = [{contender.name: [] for contender in contenders} for _ in self.groups]
        for number in range(rounds):
            for place, (group, runs) in enumerate(zip(self.groups, found, strict=True), start=1):
                tell(f"round {number + 1} of {rounds}, {place} of {len(self.groups)}")
                for contender in contenders if number % 2 == 0 else contenders[::-1]:
                    runs[contender.name].append(self._checked(contender, group))
        tell("")
        return found

    def _checked(self, contender: Contender, group: Group) -> Run:
        run, answers = self._run(contender, group)
        for number, (wanted, found) in enumerate(zip(group.answers, answers, strict=True), start=1):
            if wanted != found:
                differ = (at for at, (a, b) in enumerate(zip(wanted, found, strict=False)) if a != b)
                at = next(differ, min(len(wanted), len(found)))
                raise SystemExit(f"{contender.name} gives another text: {group.name}, prompt {number}, token {at}")
        return run

    def _run(self, contender: Contender, group: Group) -> tuple[Run, Texts]:
        engine = contender.engine
        if contender.renew is not None:
            engine.core.speculation.proposer = contender.renew()
        with record(engine) as recorder:
            settings = {"max_new_tokens": self.new, "ignore_eos": self.to_the_end, **self.sampling}
            done = engine.generate(group.prompts, **settings)
        return summed(recorder.steps), [list(completion.tokens) for completion in done]


def summed(steps: List[StepRecord]) -> Run:
    """The decoding steps, each from the end of the one before. The first step is never one of them."""
    pairs = [(before, step) for before, step in pairwise(steps) if step.is_decode]
    num_tokens = sum(step.num_new for _, step in pairs)
    return Run(
        seconds=sum(step.ended_s - before.ended_s for before, step in pairs),
        num_tokens=num_tokens,
        num_passes=sum(step.num_passes for _, step in pairs),
        tokens_per_pass=num_tokens / sum(step.num_passes * step.num_sequences for _, step in pairs),
    )


def copied(prompt: list[int], answer: list[int]) -> float:
    """The share of an answer's tokens that stand in 8-grams of the prompt, with the end of the prompt before them."""
    grams = {tuple(prompt[at : at + GRAM]) for at in range(len(prompt) - GRAM + 1)}
    text = prompt[-(GRAM - 1) :] + answer
    inside = [False] * len(text)
    for at in range(len(text) - GRAM + 1):
        if tuple(text[at : at + GRAM]) in grams:
            inside[at : at + GRAM] = [True] * GRAM
    return sum(inside[GRAM - 1 :]) / len(answer)


def ratios(runs: Runs, name: str, base: str) -> list[float]:
    """The factor of speed over the other contender in each round."""
    return [run.rate / other.rate for run, other in zip(runs[name], runs[base], strict=True)]


def tell(text: str) -> None:
    """Show on a terminal how far it is, in the place of what was shown last."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
