"""Names that are almost those of fields: misspelt, in another case, or with other signs between their words."""

from collections.abc import Iterable
from difflib import SequenceMatcher

LIKE = 0.87  # of difflib's ratio: `temprature` is like `temperature` (0.95), `top_a`, another sampler, unlike `top_p`
LONGEST = 50  # characters: the ratio takes quadratic time


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant; None if there is none like it."""
    plain, found = _normalize(name), [(0.0, "")]
    if len(name) <= LONGEST:
        found += [(SequenceMatcher(None, plain, _normalize(each)).ratio(), each) for each in known]
    ratio, best = max(found)
    return best if ratio >= LIKE else None


def _normalize(name: str) -> str:
    return "".join(filter(str.isalnum, name)).casefold()
