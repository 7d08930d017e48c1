"""DRY ("don't repeat yourself"): a token that would go on with a repetition of several tokens becomes less likely, the
more so the longer the repetition is.

As in llama.cpp, after p-e-w's proposal (oobabooga/text-generation-webui#5677). A repetition reaches back to the last
token that breaks sequences, at most.
"""

import math
from collections.abc import Collection
from collections.abc import Sequence as List

import numpy as np

LARGEST_LOG = 88.7228391  # of float32, as in llama.cpp


def dry_penalties(
    tokens: List[int], multiplier: float, base: float, allowed_length: int, last_n: int, breakers: Collection[int]
) -> dict[int, float]:
    """Compute the penalty of each token that would go on with a repetition: multiplier * base ** (length -
    allowed_length), where `length` tokens before it are the last ones of the text, too.

    last_n: looks at so many tokens; -1: all. breakers: ids of tokens that begin a sequence anew, which get no penalty.
    """
    text = np.asarray(tokens[len(tokens) - last_n :] if 0 <= last_n < len(tokens) else tokens, dtype=np.int64)
    limit = next((back for back, token in enumerate(text[::-1].tolist()) if token in breakers), len(text))
    if limit < allowed_length or len(text) <= allowed_length:
        return {}
    most = math.floor(LARGEST_LOG / math.log(base)) if base > 1.000001 else 0
    lengths: dict[int, int] = {}
    ends, length = np.arange(len(text) - 1), 0  # of earlier places where the last tokens of the text stand
    while len(ends) and length < limit:
        ends = ends[ends >= length]
        ends = ends[text[ends - length] == text[-1 - length]]
        length += 1
        if length >= allowed_length:
            lengths.update(dict.fromkeys(text[ends + 1].tolist(), length))
    powers = {token: length - allowed_length for token, length in lengths.items() if token not in breakers}
    return {token: multiplier * base ** (min(power, most) if most else power) for token, power in powers.items()}
