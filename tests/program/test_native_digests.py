"""Each kernel has the same bits in all builds that run here: schemes, 1 to 21 tokens, attention of unequal widths."""

import hatch_build
import pytest

from tests.marks import needs_native
from tests.program.digests import compiled, digests, said
from tokenmill.kernels import native_library

pytestmark = [pytest.mark.compiler, needs_native]

ROUNDED_TWICE = {"portable"}
"""A product and a sum are rounded one after the other."""
OTHER_ORDER = {"amx": {"product:1", "subnormal", "attend:1:64"}}
"""Where the matrix unit sums products of bfloat16 in an order of its own: kernels of heads that it takes whole."""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    command = hatch_build.compiler()
    if command is None:
        pytest.skip("no C++ compiler")
    builds = {name: flags for name, flags in hatch_build.builds().items() if name in native_library.builds()}
    return digests(said([compiled(tmp_path_factory.mktemp("digests"), command, builds)("native_digests")]))


def test_every_kernel_has_the_same_bits(found):
    exact = set(found) - ROUNDED_TWICE
    first = next((build for build in found if build in exact - set(OTHER_ORDER)), "portable")
    assert set(found) == set(native_library.builds()) and len(found[first]) > 50
    for build in exact:
        differ = {kernel for kernel in found[first] if found[build][kernel] != found[first][kernel]}
        assert differ <= OTHER_ORDER.get(build, set()), build


def test_sums_of_integers_are_the_same_in_all(found):
    kernels = {kernel for kernel in found["portable"] if kernel.startswith("exact")}
    assert len(kernels) == 14
    for kernel in kernels:
        assert len({tuple(each[kernel]) for each in found.values()}) == 1, kernel
