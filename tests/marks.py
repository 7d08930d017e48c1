"""Which cases of a large product the default run tries. `make test-slow` tries the others, and CI runs both."""

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest

__all__ = ["QUICK_FAMILIES", "crossed"]

QUICK_FAMILIES = ("llama", "mixtral")
"""Families for which everything is tried: a plain one, and one whose rows are computed by experts."""


def crossed(families: Iterable[str], others: Iterable[Any], always: Iterable[Any], as_one: bool = False) -> list[Any]:
    """Pairs of a family and something that works alike for all of them; slow unless one of the two is named for it.

    always: those of the others that are tried with each family. as_one: each pair is the value of one parameter.
    """
    always = tuple(always)
    return [
        pytest.param(
            *([pair] if as_one else pair),
            marks=() if pair[1] in always or pair[0] in QUICK_FAMILIES else pytest.mark.slow,
            id="-".join(pair),
        )
        for pair in product(families, others)
    ]
