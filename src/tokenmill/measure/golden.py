"""Texts that every right engine gives: a benchmark of wrong numbers is worth nothing.

Greedy continuations of SmolLM2-135M-Instruct as transformers computes them. Only prompts were taken whose first 32
tokens transformers gives alike in float32, bfloat16 and float16, and where in float32 the likeliest token leads the
next by 0.15 or more at every step, so that no order of summation in bfloat16 can excuse a difference.
`python benchmarks/golden_texts.py` makes them anew and compares.
"""

from collections.abc import Mapping
from pathlib import Path

from tokenmill.engine import Engine
from tokenmill.errors import WrongText
from tokenmill.weights.hub import SHORT_NAMES

__all__ = ["GOLDEN", "NEW_TOKENS", "check_text", "reference_for"]

NEW_TOKENS = 32
GOLDEN: dict[str, dict[str, str]] = {
    "smollm2-135m": {
        "1, 2, 3, 4, 5,": "6e0cdb20",
        "2, 4, 6, 8, 10,": "baf9012a",
        "10, 9, 8, 7,": "60fd0e0b",
        "class Stack:\n    def __init__(self):\n": "42bb7253",
        "The mitochondria is the": "e9b03ebb",
        "SELECT * FROM": "fac73cde",
        "To make bread you need": "d4b7e641",
        "The Pythagorean theorem states that": "1e34cc36",
    }
}


def reference_for(path: Path) -> Mapping[str, str] | None:
    """Prompt → hash for a file that is one of the short names' own; None for any other model."""
    for name, packaged in SHORT_NAMES.items():
        if path.name == packaged.file_name and path.stat().st_size == packaged.num_bytes:
            return GOLDEN.get(name)
    return None


def check_text(engine: Engine, reference: Mapping[str, str]) -> int:
    """Generate every golden text; returns how many there were. Raises WrongText with what differs."""
    wrong = []
    for prompt, expected in reference.items():
        done = engine.generate(prompt, max_new_tokens=NEW_TOKENS, ignore_eos=True)
        if done.hash != expected:
            wrong.append(f"{prompt!r} gives {done.hash} ({done.text[:40]!r} …) and not {expected}")
    if wrong:
        raise WrongText(
            f"{len(wrong)} of {len(reference)} texts are not those of transformers: {'; '.join(wrong)}: "
            "figures of a wrong computation are not reported"
        )
    return len(reference)
