"""Texts to calibrate with, or to measure on: what the model writes by itself, or a file.

What a model writes is as good for calibration as the texts that it was trained on, or better (Williams, Chrysostomou
and Aletras, "Self-calibration for language model quantization and pruning", NAACL 2025). It needs no file, is in
whatever languages the model knows, and is the same every time, since the seed decides it.
"""

from typing import NamedTuple

from tokenmill.engine.engine import Engine
from tokenmill.errors import RequestError
from tokenmill.hub.progress import Progress
from tokenmill.settings.sampling_params import SamplingParams
from tokenmill.text.tokenizer import Tokenizer


class Texts(NamedTuple):
    """Token ids of texts that are equally long, and where they come from, in a few words."""

    tokens: list[list[int]]
    origin: str

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.tokens))


def written_texts(engine: Engine, count: int, length: int, seed: int, progress: Progress) -> Texts:
    """Have the model write `count` texts of `length` tokens from its first token on, at temperature 1.

    A text goes on behind an end token, as those do that models are trained on. The first token is the model's
    beginning-of-sequence token; without one, each text begins with another token of the vocabulary.
    """
    bos = None if engine.tokenizer is None else engine.tokenizer.bos_token_id
    vocab_size = engine.model_config.vocab_size
    prompts = [[bos]] if bos is not None else [[(seed + number * 7919) % vocab_size] for number in range(count)]
    sampling = SamplingParams(
        temperature=1.0, ignore_eos=True, max_new_tokens=length - 1, seed=seed, n=count // len(prompts)
    )
    texts: dict[int, list[int]] = {}
    done, total = 0, count * (length - 1)
    for piece in engine.stream(prompts, sampling):
        done += len(piece.tokens)
        progress.advance(done, total)
        if piece.done is not None:
            texts[piece.index] = [*prompts[piece.index % len(prompts)], *piece.done.tokens]
    return Texts([texts[index] for index in sorted(texts)], f"written by the model, seed {seed}")


def cut_text(
    written: str, name: str, tokenizer: Tokenizer, count: int, length: int, held_out: int
) -> tuple[Texts, Texts]:
    """Cut up to `count` texts of `length` tokens for calibration, spread over a file, and up to `held_out` from its
    end.

    RequestError where the file is too short for two of each.
    """
    tokens = tokenizer.encode(written)
    pieces = [tokens[first : first + length] for first in range(0, len(tokens) - length + 1, length)]
    if len(pieces) < 4:
        needed = 4 * length
        raise RequestError(f"{name} has {len(tokens):,} tokens, and calibration needs at least {needed:,}")
    held_out = min(held_out, max(len(pieces) // 4, 2))
    ends, pieces = pieces[-held_out:], pieces[:-held_out]
    count = min(count, len(pieces))
    chosen = [pieces[number * len(pieces) // count] for number in range(count)]
    return Texts(chosen, name), Texts(ends, f"the end of {name}")
