"""native/ on aarch64, compiled for it and emulated: the same bits as on x86-64, and what the sanitizers' programs test.

`make test-arm` runs these. Only functions of the C library may differ, since that may be another one elsewhere.
"""

from pathlib import Path
from shutil import which

import hatch_build
import pytest

from tests.program.digests import compiled, digests, said

CROSS, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"

pytestmark = [
    pytest.mark.arm,
    pytest.mark.skipif(not (which(CROSS) and which(EMULATOR)), reason=f"no {CROSS} or {EMULATOR}"),
]


@pytest.fixture(scope="module")
def on_arm(tmp_path_factory):
    """Runs a program with both builds in the emulator; what it says."""
    builds = {**hatch_build.ARM, "portable": hatch_build.PORTABLE}
    program = compiled(tmp_path_factory.mktemp("arm"), [CROSS], builds)
    return lambda name: said([EMULATOR, program(name)])


@pytest.fixture(scope="module")
def on_x86(tmp_path_factory):
    """The same on this machine of x86-64: its portable build, and one of those that round once."""
    builds = {name: flags for name, flags in hatch_build.builds().items() if name in ("avx2", "portable")}
    if "avx2" not in builds or "avx2" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this machine has no AVX2 to compare with")
    program = compiled(tmp_path_factory.mktemp("x86"), hatch_build.compiler(), builds)
    return lambda name: said([program(name)])


@pytest.fixture(scope="module")
def both(on_arm, on_x86):
    return digests(on_arm("native_digests")), digests(on_x86("native_digests"))


@pytest.mark.parametrize("build", ["dotprod", "portable"])
def test_every_kernel_has_the_bits_of_avx2(both, build):
    arm, x86 = both
    assert arm[build] == x86["avx2"] and len(x86["avx2"]) > 40


def test_integer_products_have_the_bits_of_the_portable_build_of_x86(both):
    """Which rounds twice where the others round once: only sums that are integers can be the same."""
    arm, x86 = both
    exact = {kernel for kernel in x86["portable"] if kernel.startswith("exact")}
    assert len(exact) == 14  # one for each integer scheme
    for kernel in exact:
        assert arm["dotprod"][kernel] == arm["portable"][kernel] == x86["portable"][kernel], kernel


@pytest.mark.parametrize("name", ["native_kernels", "native_steps"])
def test_kernels_and_steps(on_arm, name):
    """Odd sizes, rows alone and among others, attention and sums in double; models in any chunks, with threads."""
    assert on_arm(name).splitlines()[-2:] == ["dotprod: 0 differences", "portable: 0 differences"]
