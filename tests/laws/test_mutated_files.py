"""Whatever a file holds, opening and using it ends in a text or in an error of ours, soon, and in bounded memory.

The default run tries a few hundred mutations. TOKENMILL_MUTATIONS=6000 tries so many of each kind of file, from
TOKENMILL_MUTATIONS_FROM on, so that several processes can share the numbers. The config.json of every family is mutated
by `make test-long`.
"""

import os
from random import Random

import pytest

from tests.mutations import CASES, Case, outcome
from tokenmill.kernels.native_library import why_not

COUNT = int(os.environ.get("TOKENMILL_MUTATIONS", "40"))
FIRST = int(os.environ.get("TOKENMILL_MUTATIONS_FROM", "0"))

pytestmark = pytest.mark.skipif(why_not() is not None, reason="packed models and half of the runs are native")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("mutations")


KINDS = [pytest.param(kind, marks=pytest.mark.long) if "every" in kind else kind for kind in CASES]


@pytest.mark.parametrize("kind", KINDS)
def test_no_mutated_file_does_harm(kind, folder):
    ends = [outcome(kind, number, folder) for number in range(FIRST, FIRST + COUNT)]
    assert max(map(len, ends)) < 20_000, "a message is no copy of the file"
    assert any(end.startswith("refused") for end in ends)


@pytest.mark.parametrize("kind", KINDS)
def test_the_files_are_good_before_they_are_mutated(kind, folder):
    for case in CASES[kind]:
        if isinstance(case, Case):
            Case(case.make, case.file, lambda _, data: data).run(folder, Random(0))
