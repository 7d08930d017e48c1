"""The prompts that all engines continue: the same ids, of real text, so that greedy tokens rarely hang on a tie.

No part of the text is used twice. A prompt that comes again could be answered out of a cache, and one that holds the
same text twice gives speculation more to copy than texts have.
"""

import random
from pydoc_data.topics import topics

from tokenmill.errors import ConfigError
from tokenmill.weights.checkpoint import Checkpoint


class Prompts:
    """Hands out pieces of Python's own documentation; random ids for a model that has no tokenizer.

    num_tokens: of all prompts together. ConfigError if there is less text than that.
    """

    def __init__(self, checkpoint: Checkpoint, vocab_size: int, num_tokens: int) -> None:
        tokenizer = checkpoint.tokenizer()
        if tokenizer is None:
            rng = random.Random(0)  # noqa: S311  (no secret)
            self._ids = [rng.randrange(vocab_size) for _ in range(num_tokens)]
        else:
            self._ids = tokenizer.encode(documentation(), add_special_tokens=False)
        if num_tokens > len(self._ids):
            allowed = f"less: {num_tokens:,} tokens for every batch and round, and the text that is used has "
            raise ConfigError(
                "--prompt", "too many tokens", f"{allowed}{len(self._ids):,}; or less of --batch, --rounds"
            )
        self._at = 0

    def take(self, length: int, batch: int) -> list[list[int]]:
        """`batch` prompts of `length` ids that were in no prompt before."""
        starts = range(self._at, self._at + batch * length, length)
        self._at = starts.stop
        return [self._ids[start : start + length] for start in starts]


def documentation() -> str:
    """The text that `help()` shows of Python's topics, each paragraph once: 90,000 tokens, more in newer versions."""
    paragraphs = (paragraph for _, text in sorted(topics.items()) for paragraph in text.split("\n\n"))
    return "\n\n".join({" ".join(paragraph.split()): paragraph for paragraph in paragraphs}.values())
