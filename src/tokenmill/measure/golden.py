"""Texts that every right engine gives: a benchmark of wrong numbers is worth nothing.

Greedy continuations of SmolLM2-135M-Instruct as transformers computes them. Only prompts were taken whose first 32
tokens transformers gives alike in float32, bfloat16 and float16, so that no tie can excuse a difference.
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
        "Water boils at": "96ce01a7",
        "The reason why the sky is blue is that": "0095f7e0",
        "def fibonacci(n):\n": "a7864e7f",
        "1, 2, 3, 4, 5,": "6e0cdb20",
        "To make bread you need": "d4b7e641",
        "Photosynthesis is the process by which": "6799c6c9",
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
