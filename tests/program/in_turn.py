"""Which pairs of a product the default run tries, where everything works alike for all of them."""

from collections.abc import Collection, Sequence
from typing import Any

import pytest


def in_turn(
    families: Sequence[str],
    others: Sequence[Any],
    whole: Collection[str] = (),
    *,
    rest: Sequence[str] = (),
    ids: Sequence[str] = (),
    marks: Any = (),
) -> list[Any]:
    """All pairs of a family and one of the others. Long are all but as many as it takes for each family and each of the
    others to occur, and all pairs of the families in `whole`.

    rest: more families, of which others have the arithmetic: their pairs are long. ids: names of the others, which are
    strings themselves if there are none. marks: of pairs that are not long.
    """
    count = max(len(families), len(others))
    tried = {(families[turn % len(families)], turn % len(others)) for turn in range(count)}
    return [
        pytest.param(
            family,
            other,
            marks=marks if (family, at) in tried or family in whole else pytest.mark.long,
            id=f"{family}-{(ids or others)[at]}",
        )
        for family in (*families, *rest)
        for at, other in enumerate(others)
    ]
