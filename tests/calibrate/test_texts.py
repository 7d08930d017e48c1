"""Texts to calibrate with: what the model is asked to write, and how a file is cut."""

from types import SimpleNamespace

import pytest

from tests.calibrate.told import Told
from tokenmill.calibrate.texts import Texts, cut_text, written_texts
from tokenmill.errors import RequestError


class Writer:
    """In the place of an engine: text i says i in each of its tokens, and comes in two pieces, the last text first."""

    def __init__(self, bos):
        self.tokenizer = None if bos is None else SimpleNamespace(bos_token_id=bos if bos >= 0 else None)
        self.model_config = SimpleNamespace(vocab_size=100)

    def stream(self, prompts, sampling):
        self.prompts, self.sampling = prompts, sampling
        for index in reversed(range(len(prompts) * sampling.n)):
            tokens = [index] * sampling.max_new_tokens
            yield SimpleNamespace(tokens=tokens[:1], done=None, index=index)
            yield SimpleNamespace(tokens=tokens[1:], done=SimpleNamespace(tokens=tokens), index=index)


@pytest.mark.parametrize(
    ("bos", "prompts", "each"),
    [
        (7, [[7]], 3),
        (0, [[0]], 3),
        (None, [[5], [24], [43]], 1),  # 5 + 7919 i, modulo 100
        (-1, [[5], [24], [43]], 1),  # a tokenizer without such a token
    ],
)
def test_what_a_model_is_asked_to_write(bos, prompts, each):
    engine, told = Writer(bos), Told()
    texts = written_texts(engine, 3, 5, 5, told)
    assert engine.prompts == prompts
    sampling = engine.sampling
    assert (sampling.temperature, sampling.ignore_eos, sampling.max_new_tokens, sampling.seed, sampling.n) == (
        1.0, True, 4, 5, each,
    )  # fmt: skip
    begins = [prompts[0]] * 3 if each == 3 else prompts
    assert texts.tokens == [[*begin, *[index] * 4] for index, begin in enumerate(begins)]
    assert texts.origin == "written by the model, seed 5" and texts.num_tokens == 15
    assert told.counts == [(1, 12), (4, 12), (5, 12), (8, 12), (9, 12), (12, 12)]


class Words:
    def encode(self, text):
        return [int(word) for word in text.split()]


def cut(num_tokens, count, length, held_out):
    return cut_text(" ".join(map(str, range(num_tokens))), "a file", Words(), count, length, held_out)


@pytest.mark.parametrize(
    ("num_tokens", "count", "held_out", "firsts", "ends"),
    [
        (8, 2, 9, [0, 2], [4, 6]),  # four pieces of two
        (9, 2, 9, [0, 2], [4, 6]),  # the last token is in none
        (8, 1, 1, [0], [6]),
        (24, 3, 9, [0, 6, 12], [18, 20, 22]),  # nine of twelve are left, spread; a quarter at the end
        (24, 4, 2, [0, 4, 10, 14], [20, 22]),
        (24, 99, 9, [0, 2, 4, 6, 8, 10, 12, 14, 16], [18, 20, 22]),
    ],
)
def test_how_a_file_is_cut(num_tokens, count, held_out, firsts, ends):
    texts, held = cut(num_tokens, count, 2, held_out)
    assert texts == Texts([[first, first + 1] for first in firsts], "a file")
    assert held == Texts([[first, first + 1] for first in ends], "the end of a file")


def test_a_file_that_is_too_short_says_what_is_needed():
    with pytest.raises(RequestError) as error:
        cut(7, 2, 2, 1)
    assert str(error.value) == "a file has 7 tokens, and calibration needs at least 8"
    with pytest.raises(RequestError, match="a file has 1,500 tokens, and calibration needs at least 2,000"):
        cut(1500, 2, 500, 1)
