"""DRY ("don't repeat yourself"): a token that would go on with a repetition of several tokens becomes less likely, the
more so the longer the repetition is.

As in llama.cpp, after p-e-w's proposal (oobabooga/text-generation-webui#5677). A repetition reaches back to the last
token that breaks sequences, at most.
"""

import math
from collections.abc import Sequence as List

import numpy as np

from tokenmill.settings.sampling_params import SamplingParams
from tokenmill.text.breakers import MAX_TAIL, Breakers, breakers_of
from tokenmill.text.tokenizer import Tokenizer

LARGEST = 1e30  # a penalty: no token with it comes beside one without, and a token that must come still can
ROUNDS = 32  # repetitions that are longer are few, but of a text that says one token again and again


def dry_breakers(tokenizer: Tokenizer | None, params: SamplingParams) -> Breakers:
    """Find the tokens that end a repetition; none where DRY is off, and without a tokenizer."""
    known = tokenizer if params.uses_dry else None
    return {} if known is None else breakers_of(known, params.dry_sequence_breakers)


def dry_penalties(
    tokens: List[int], multiplier: float, base: float, allowed_length: int, last_n: int, breakers: Breakers
) -> dict[int, float]:
    """Compute the penalty of each token that would go on with a repetition: multiplier * base ** (length -
    allowed_length), where `length` tokens before it are the last ones of the text, too.

    last_n: looks at so many tokens; -1: all. breakers: after them a sequence begins anew; a token that holds one whole
    gets no penalty.
    """
    tokens = tokens[len(tokens) - last_n :] if 0 <= last_n < len(tokens) else tokens
    limit = _since_breaker(tokens, breakers)
    if limit < allowed_length or len(tokens) <= allowed_length:
        return {}
    longest: dict[int, int] = {}
    for next_, length in zip(*_lengths(np.asarray(tokens, dtype=np.int64), limit), strict=True):
        if length >= allowed_length and () not in breakers.get(next_, ()) and length > longest.get(next_, 0):
            longest[next_] = length
    log, first, most = math.log(base), math.log(multiplier), math.log(LARGEST)
    return {token: math.exp(min(first + (length - allowed_length) * log, most)) for token, length in longest.items()}


def _since_breaker(tokens: List[int], breakers: Breakers) -> int:
    """Count the tokens behind the breaker that begins last; all tokens where there is none."""
    for begin in range(len(tokens) - 1, -1, -1):
        tails = breakers.get(tokens[begin], ())
        rest = tokens[begin + 1 : begin + 1 + MAX_TAIL] if tails else ()
        ends = [len(tail) for tail in tails if tuple(rest[: len(tail)]) == tail]
        if ends:
            return len(tokens) - 1 - begin - max(ends)
    return len(tokens)


def _lengths(text: np.ndarray, limit: int) -> tuple[list[int], list[int]]:
    """Find the places where the last token of a text stands before: the tokens behind them, and how many tokens back
    from there are the last ones of the text, `limit` at most.
    """
    ends, length = np.arange(len(text) - 1), 0
    behind, lengths = list[int](), list[int]()
    while len(ends) and length < min(limit, ROUNDS):
        goes_on = (ends >= length) & (text[np.maximum(ends - length, 0)] == text[-1 - length])
        behind += text[ends[~goes_on] + 1].tolist() if length else []
        lengths += [length] * int(len(ends) - goes_on.sum()) if length else []
        ends, length = ends[goes_on], length + 1
    behind += text[ends + 1].tolist()
    if len(ends) and length < limit:
        common = _common_beginnings(text[::-1].tolist())
        return behind, lengths + [min(common[len(text) - 1 - end], limit) for end in ends.tolist()]
    return behind, lengths + [length] * len(ends)


def _common_beginnings(tokens: list[int]) -> list[int]:
    """Count for each place how many tokens from there are the first ones: the Z function, in linear time."""
    found, left, right = [0] * len(tokens), 0, 0
    for place in range(1, len(tokens)):
        length = min(right - place, found[place - left]) if place < right else 0
        while place + length < len(tokens) and tokens[length] == tokens[place + length]:
            length += 1
        found[place] = length
        if place + length > right:
            left, right = place, place + length
    return found
