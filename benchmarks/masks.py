"""Prints what the masks of a constraint cost in a step, at several batches, and what forced tokens bring.

    python benchmarks/masks.py [MODEL] [--batch 1 16] [--scheme dense] [--tokens 192] [--rounds 5]

Texts under a JSON schema and free ones take turns. `masks` is the time that the engine spends on matchers in a step:
following the tokens, filling masks and finding ends; `llguidance` is the time that it takes by itself for the same
texts. What the sampler does with a mask is in the difference of the two steps. The last columns are tokens per second
with speculation, where forced tokens are drafts. Times are medians, of steps and of rounds.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import tokenmill
from tokenmill.constrain.constraint import Constraint
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
PROMPT = "A list of people, as JSON:"


class Timed(Matchers):
    """Matchers that add up their time."""

    seconds = 0.0

    def __getattribute__(self, name: str) -> Any:
        """A public method is timed."""
        found = super().__getattribute__(name)
        return self._timed(found) if name in ("drafts", "masks", "settle", "whole") else found

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


def run(engine: tokenmill.Engine, batch: int, num_tokens: int, settings: dict[str, Any]) -> dict[str, Any]:
    """The time of a step, its part in matchers, tokens per second and the texts."""
    engine.core.loop.matchers = matchers = Timed()
    steps = Steps(batch, matchers)
    with engine.core.observed_by(steps):
        begun_s = time.perf_counter()
        prompts = [f"{PROMPT} ({number})" for number in range(batch)]
        done = engine.generate(prompts, max_new_tokens=num_tokens, ignore_eos=not settings, **settings)
        took_s = time.perf_counter() - begun_s
    return {
        "step_ms": 1e3 * statistics.median(steps.seconds),
        "masks_ms": 1e3 * statistics.median(steps.of_masks),
        "tokens_per_s": sum(len(each.tokens) for each in done) / took_s,
        "texts": [each.tokens for each in done],
    }


def alone_ms(constraint: Constraint, texts: list[tuple[int, ...]]) -> float:
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
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    how: dict[str, Any] = {"scheme": given.scheme, "max_length": given.tokens + 64, "max_sequences": max(given.batch)}
    plain = tokenmill.load(given.model, speculate="off", **how)
    drafting = tokenmill.load(given.model, **how)
    constrained = {"json_schema": SCHEMA}
    constraint = plain.core.inputs.constraints.constraint(tokenmill.SamplingParams(**constrained))
    print("batch  free ms  JSON ms  masks ms  llguidance ms  masks %  free tok/s  JSON tok/s")
    for batch in given.batch:
        found: dict[str, list[float]] = {}
        for _ in range(given.rounds):
            free, json_text = (run(plain, batch, given.tokens, each) for each in ({}, constrained))
            drafted = [run(drafting, batch, given.tokens, each) for each in ({}, constrained)]
            own_ms = alone_ms(constraint, json_text["texts"])
            row = (free["step_ms"], json_text["step_ms"], json_text["masks_ms"], own_ms)
            row += (100 * row[2] / row[1], *(each["tokens_per_s"] for each in drafted))
            for name, value in enumerate(row):
                found.setdefault(str(name), []).append(value)
        medians = [statistics.median(values) for values in found.values()]
        print(f"{batch:5}  " + "  ".join(f"{value:9.3f}" for value in medians))


if __name__ == "__main__":
    main()
