"""Marks of tests: which cases of a large product the default run tries, and which tests need the library of program
native. CI runs the default tests and those of `make test-slow`, which tries further cases; `make test-long` tries all.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import product
from typing import Any

import pytest

from tests.tiny_models import HYBRIDS, KINDS, UNLIKE
from tokenmill.kernels.native_library import builds, why_not

needs_native = pytest.mark.skipif(why_not() is not None, reason=f"the library {why_not()}")


def skip_unless_it_runs(build: str) -> None:
    """Skip the test where this processor does not run a build of the native program."""
    if build not in builds():
        pytest.skip(f"this processor does not run {build}")


QUICK_FAMILIES = ("llama", "mixtral")
"""Families for which everything is tried: a plain one, and one whose rows are computed by experts."""


def crossed(families: Iterable[str], others: Iterable[Any], always: Iterable[Any], as_one: bool = False) -> list[Any]:
    """Pairs of a family and something that works alike for all of them; slow unless one of the two is named for it, and
    long where others have the family's arithmetic.

    always: those of the others that are tried with each family. as_one: each pair is the value of one parameter.
    """
    always = tuple(always)
    return [
        pytest.param(
            *([pair] if as_one else pair),
            marks=_marks(pair, always),
            id="-".join(pair),
        )
        for pair in product(families, others)
    ]


def _marks(pair: tuple[str, Any], always: tuple[Any, ...]) -> Any:
    if pair[0] not in (*KINDS, *HYBRIDS):
        return pytest.mark.long
    return () if pair[1] in always or pair[0] in QUICK_FAMILIES else pytest.mark.slow


def slow_but(cases: Iterable[str], *quick: str) -> list[Any]:
    """Cases that are slow, but for those that are named."""
    return [pytest.param(case, marks=() if case in quick else pytest.mark.slow) for case in cases]


def each(families: Iterable[str]) -> list[Any]:
    """The families; `make test-long` alone tries those whose arithmetic others have, too."""
    return [
        family if family in (*KINDS, *HYBRIDS, *UNLIKE) else pytest.param(family, marks=pytest.mark.long)
        for family in families
    ]


def covering(
    families: Sequence[str],
    others: Sequence[Any],
    whole: Collection[str] = (),
    *,
    rest: Sequence[str] = (),
    ids: Sequence[str] = (),
    marks: Any = (),
) -> list[Any]:
    """All pairs of a family and one of the others. By default run as many pairs as it takes for each family and each of
    the others to occur, and all pairs of the families in `whole`; the other pairs are long.

    rest: more families, whose arithmetic those before have: their pairs are long. ids: names of the others; without
    names the others are strings. marks: of pairs that are not long.
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
