"""Prints what the masks of a constraint cost in a step, at several batches, and what forced tokens bring.

    python benchmarks/masks.py [MODEL] [--batch 1 16] [--scheme dense] [--temperature 0 1] [--tokens 192] [--rounds 5]

Texts under a JSON schema and free ones take turns; their prompts show two lists of the same kind. `masks` is the time
that the engine spends on matchers in a step: following the tokens, filling masks and finding ends; `llguidance` is the
time that it takes by itself for the same texts. What the sampler does with a mask is in the difference of the two
steps. The last columns are tokens per second with speculation, where forced tokens are drafts, of eight texts or of
four times as many as a step takes, so that a step has as many texts most of the time. Greedy free texts of a small
model repeat themselves without end, which drafts guess; those of temperature 1 do not. Times are medians, of steps and
of rounds.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import tokenmill
from tokenmill.constrain.constraint import CompiledGrammar
from tokenmill.sample.matchers import Matchers

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 10, "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"type": "string", "minLength": 5}, "minItems": 2, "maxItems": 4},
        "kind": {"enum": ["customer", "supplier"]},
    },
    "required": ["name", "age", "tags", "kind"],
    "additionalProperties": False,
}
SCHEMA = {"type": "array", "items": PERSON, "minItems": 30}
NAMES = ("Ada Lovelace", "Alan Turing", "Grace Hopper", "Edsger Dijkstra", "Barbara Liskov", "Donald Knuth")
TAGS = ("mathematics", "compilers", "theory", "networks", "rockets", "software", "languages", "graphs")


def prompt(number: int) -> str:
    """Two lists of people, and the beginning of a third; no two prompts are alike."""
    people = [
        {"name": NAMES[at % 6], "age": 23 + 7 * at % 60, "tags": [TAGS[at % 8], TAGS[(3 * at + 1) % 8]], "kind": kind}
        for at, kind in enumerate(["customer", "supplier", "supplier", "customer"], start=number)
    ]
    lists = [json.dumps(people[first : first + 2], separators=(",", ":")) for first in (0, 2)]
    return f"People in list {number}, as JSON:\n{lists[0]}\nAnother list:\n{lists[1]}\nAnother list:\n"


class Timed(Matchers):
    """Matchers that add up their time."""

    seconds = 0.0

    def __getattribute__(self, name: str) -> Any:
        """A public method is timed."""
        found = super().__getattribute__(name)
        return (
            self._timed(found)
            if name in ("forced", "drafts", "leave_out_certain", "masks", "settle", "whole")
            else found
        )

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            begun_s = time.perf_counter()
            try:
                return method(*given)
            finally:
                self.seconds += time.perf_counter() - begun_s

        return call


class Steps:
    """An observer that notes the seconds of steps in which all texts decode, and those of matchers among them."""

    in_order = False

    def __init__(self, batch: int, matchers: Timed) -> None:
        self.batch, self.matchers = batch, matchers
        self.seconds, self.of_masks = list[float](), list[float]()
        self._begun_s, self._counts = 0.0, False

    def phase(self, name: str, plan: Any) -> None:
        """See Observer."""
        now_s = time.perf_counter()
        if name == "begin":
            self._begun_s, self.matchers.seconds = now_s, 0.0
        if name == "plan":
            self._counts = len(plan.work) == self.batch and all(
                len(each.drafts) + 1 == each.count for each in plan.work
            )
        if name == "deliver" and self._counts:
            self.seconds.append(now_s - self._begun_s)
            self.of_masks.append(self.matchers.seconds)

    def logits(self, *_: Any) -> None:
        """See Observer."""


def run(
    engine: tokenmill.Engine, batch: int, num_texts: int, num_tokens: int, settings: dict[str, Any]
) -> dict[str, Any]:
    """The time of a step, its part in matchers, tokens per second and the texts."""
    engine.core.loop.matchers = matchers = Timed()
    steps = Steps(batch, matchers)
    prompts = [prompt(number) for number in range(num_texts)]
    is_free = "json_schema" not in settings
    with engine.core.observed_by(steps):
        begun_s = time.perf_counter()
        done = engine.generate(prompts, max_new_tokens=num_tokens, ignore_eos=is_free, **settings)
        took_s = time.perf_counter() - begun_s
    return {
        "step_ms": 1e3 * statistics.median(steps.seconds or [0.0]),
        "masks_ms": 1e3 * statistics.median(steps.of_masks or [0.0]),
        "tokens_per_s": sum(len(each.tokens) for each in done) / took_s,
        "texts": [each.tokens for each in done],
    }


def alone_ms(constraint: CompiledGrammar, texts: list[tuple[int, ...]]) -> float:
    """The milliseconds of a step that llguidance takes for the masks and the tokens of these texts."""
    words_W = np.zeros(constraint.vocabulary.words, dtype=np.int32)
    begun_s = time.perf_counter()
    for text in texts:
        compiled = constraint.first.deep_copy()
        for token in text:
            compiled.unsafe_compute_mask_ptr(words_W.ctypes.data, words_W.nbytes)
            compiled.consume_token(token)
    return 1e3 * (time.perf_counter() - begun_s) / max(map(len, texts))


def main() -> None:
    """Measure and print one row for each batch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--scheme", default="auto", help="of the weights")
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    how: dict[str, Any] = {"scheme": given.scheme, "max_length": given.tokens + 256}
    print("batch  temp.  free ms  JSON ms  masks ms  llguidance ms  masks %  free tok/s  JSON tok/s  JSON / free")
    for batch in given.batch:
        plain = tokenmill.load(given.model, speculate="off", max_sequences=batch, **how)
        drafting = tokenmill.load(given.model, max_sequences=batch, **how)
        for temperature in given.temperature:
            rows = [row(plain, drafting, batch, given.tokens, temperature) for _ in range(given.rounds)]
            medians = [statistics.median(values) for values in zip(*rows, strict=True)]
            print(f"{batch:5}  {temperature:5}" + "".join(f"  {value:9.3f}" for value in medians), flush=True)


def row(
    plain: tokenmill.Engine, drafting: tokenmill.Engine, batch: int, num_tokens: int, temperature: float
) -> tuple[float, ...]:
    """One round: the columns of the table."""
    free_settings = {"temperature": temperature, "seed": 1}
    settings = free_settings | {"json_schema": SCHEMA}
    constraint = plain.core.inputs.constraints.constraint(tokenmill.SamplingParams(**settings))
    assert constraint is not None
    free, under = (run(plain, batch, batch, num_tokens, each) for each in (free_settings, settings))
    many = 8 if batch == 1 else 4 * batch
    drafted = [run(drafting, batch, many, num_tokens, each)["tokens_per_s"] for each in (free_settings, settings)]
    masks_ms, step_ms = under["masks_ms"], under["step_ms"]
    own_ms = alone_ms(constraint, under["texts"])
    return free["step_ms"], step_ms, masks_ms, own_ms, 100 * masks_ms / step_ms, *drafted, drafted[1] / drafted[0]


if __name__ == "__main__":
    main()
