"""Two texts of the same request: where they first differ, and how far their log-probabilities are apart."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenmill.prove.answer import Text

TOKEN, CHARACTER, END = "token", "character", "end"


@dataclass(frozen=True)
class TextDifference:
    """The first place where two texts differ: the number of a token or of a character, from 0. END: they are alike but
    for the reason why they ended.
    """

    unit: str
    index: int


def first_difference(one: Text, other: Text) -> TextDifference | None:
    """Find where two texts differ: by token ids where both have them, else by tokens, and by characters; None for equal
    texts.

    A server may list the token that ended a text in one answer, and leave it out in another: where the texts are alike
    and end for the same reason, that is no difference.
    """
    are_alike = one.text == other.text and one.reason == other.reason
    for ours, theirs in ((one.ids, other.ids), (one.tokens, other.tokens)):
        if ours is not None and theirs is not None and ours != theirs:
            place = first_index(ours, theirs)
            if not (are_alike and abs(len(ours) - len(theirs)) == 1 and place == min(len(ours), len(theirs))):
                return TextDifference(TOKEN, place)
    if one.text != other.text:
        return TextDifference(CHARACTER, first_index(one.text, other.text))
    if one.reason != other.reason:
        return TextDifference(END, one.length)
    return None


def first_index(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return the index of the first difference; where one is a beginning of the other, its length."""
    pairs = enumerate(zip(one, other))
    return next((index for index, (ours, theirs) in pairs if ours != theirs), min(len(one), len(other)))


def logprob_distance(one: Text, other: Text) -> float | None:
    """Return the largest difference of the log-probabilities before the first token that differs; None where there are
    none.

    inf: one of the two has none for a token, where the other has one.
    """
    if one.logprobs is None or other.logprobs is None:
        return None
    found, lengths = first_difference(one, other), (len(one.logprobs), len(other.logprobs))
    end = max(lengths) if found is not None else min(lengths)
    if found is not None and found.unit == TOKEN:
        end = found.index
    ours, theirs = one.logprobs[:end], other.logprobs[:end]
    if len(ours) != len(theirs):
        return float("inf")
    return max((_distance(a, b) for a, b in zip(ours, theirs)), default=0.0)


def _distance(one: float | None, other: float | None) -> float:
    if one is None or other is None:
        return 0.0 if one is other else float("inf")
    return abs(one - other) if one != other else 0.0
