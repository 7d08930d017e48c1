"""How fast a layer that predicts further tokens (MTP) makes one text, by how often its drafts are right.

Run: python benchmarks/mtp.py FILE [--threads N] [--rounds N] [--tokens N] [--rates R …] [--drafts N …]
FILE has random weights and such a layer (random_gguf.py SHAPE+mtp), so that its own drafts are never right. The layer
computes each draft in full; then a draft is replaced by the token that the model will choose in RATE of all cases. All
settings run in one process, alternating; a row has the medians of the tokens in a second. Texts are drawn at
temperature 1, so that they repeat nothing: repeated text is drafted without a model.
"""

import argparse
import random
import statistics
import time
from collections.abc import Sequence as List
from pathlib import Path
from typing import Any

from tokenmill import Engine, load
from tokenmill.schedule.sequence import Sequence

TEXT: dict[str, Any] = {"temperature": 1.0, "seed": 7, "ignore_eos": True}


class Scripted:
    """A draft model that is right so often. tokens: the whole text, known before."""

    def __init__(self, draft: Any) -> None:
        self._draft, self.tokens, self.rate, self.random = draft, list[int](), 0.0, random.Random(1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._draft, name)

    def continuations(self, sequences: List[Sequence], limit: int) -> dict[int, list[int]]:
        """Replace drafts, up to the first that is left wrong."""
        made = self._draft.continuations(sequences, limit)
        for sequence in sequences:
            begin = len(sequence.tokens)
            for at in range(len(made.get(sequence.id, []))):
                if begin + at < len(self.tokens) and self.random.random() < self.rate:
                    made[sequence.id][at] = self.tokens[begin + at]
        return made


def speed(engine: Engine, prompt: List[int], count: int) -> float:
    """Measure the tokens in a second behind the first."""
    times = [time.perf_counter() for _ in engine.stream(prompt, max_new_tokens=count, **TEXT)]
    return (count - 1) / (times[-1] - times[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.0, 0.7, 0.85])
    parser.add_argument("--drafts", type=int, nargs="*", default=[1, 2, 3])
    given = parser.parse_args()
    shared: dict[str, Any] = {"threads": given.threads, "max_length": 1024, "prefix_cache": False}
    prompt = list(range(100, 228))
    plain = load(given.file, speculate="off", **shared)
    tokens = [*prompt, *plain.generate(prompt, max_new_tokens=given.tokens, **TEXT).tokens]
    engines = {"plain": plain, "adaptive": load(given.file, speculate="adaptive", **shared)}
    engines["adaptive, mtp"] = load(given.file, draft_model="mtp", speculate="adaptive", **shared)
    for count in given.drafts:
        drafted = {"draft_model": "mtp", "speculate": "draft_model", "num_draft_tokens": count}
        engines[f"mtp, {count} drafts"] = load(given.file, **drafted, **shared)
    scripted = {}
    for name, engine in engines.items():
        if "mtp" in name:
            speculation = engine.core.speculation
            wrapped = scripted[name] = Scripted(speculation.draft)
            wrapped.tokens = tokens
            speculation.draft = wrapped
            if hasattr(speculation.proposer, "_draft"):
                speculation.proposer._draft = wrapped
            else:
                speculation.proposer._facts = speculation.proposer._facts._replace(draft=wrapped)
    rows: dict[tuple[str, float], list[float]] = {}
    for _ in range(given.rounds + 1):
        for number, rate in enumerate(given.rates):
            for name, engine in engines.items():
                if name in scripted:
                    scripted[name].rate = rate
                elif number:
                    continue
                rows.setdefault((name, rate if name in scripted else 0.0), []).append(
                    speed(engine, prompt, given.tokens)
                )
    base = statistics.median(rows["plain", 0.0][1:])
    for (name, rate), values in rows.items():
        found = statistics.median(values[1:])
        print(f"{name:20} {rate:5.0%} {found:8.1f} tok/s {found / base:6.2f}", flush=True)


if __name__ == "__main__":
    main()
