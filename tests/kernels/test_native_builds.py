"""Which build of the native program's kernels a processor runs, and which of them models take."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.marks import needs_native
from tokenmill.kernels import native_library
from tokenmill.kernels.native_library import BUILDS, X86, builds

pytestmark = needs_native
on_x86 = pytest.mark.skipif(BUILDS != X86, reason="the library is for another kind of processor")

HASWELL = "fpu sse4_2 avx f16c fma avx2"
SKYLAKE_X = f"{HASWELL} avx512f avx512dq avx512cd avx512bw avx512vl"
ICE_LAKE = f"{SKYLAKE_X} avx512ifma avx512vbmi avx512_vbmi2 avx512_vnni avx512_bitalg avx512_vpopcntdq"
COOPER_LAKE = f"{SKYLAKE_X} avx512_vnni avx512_bf16"
AMX = "amx_bf16 amx_tile amx_int8"
# The order in which each processor's names come is not that of the builds, as in /proc/cpuinfo.
PROCESSORS = {
    "Core 2": ("fpu sse sse2 ssse3 sse4_1", ""),
    "Sandy Bridge": ("fpu sse4_2 avx", ""),
    "a guest without FMA": ("fpu sse4_2 avx f16c avx2", ""),
    "Haswell": (HASWELL, "avx2"),
    "Zen 3": (f"{HASWELL} vaes vpclmulqdq", "avx2"),
    "Knights Landing": (f"{HASWELL} avx512f avx512pf avx512er avx512cd", "avx2"),
    "Alder Lake": (f"{HASWELL} avx_vnni gfni", "avx2_vnni avx2"),
    "Skylake-X": (SKYLAKE_X, "avx512_core avx2"),
    "Cascade Lake": (f"{SKYLAKE_X} avx512_vnni", "avx512_vnni avx512_core avx2"),
    "Ice Lake": (ICE_LAKE, "avx512_vnni avx512_core avx2"),
    "Cooper Lake": (COOPER_LAKE, "avx512 avx512_vnni avx512_core avx2"),
    "Zen 4": (f"{COOPER_LAKE} avx512ifma", "avx512 avx512_vnni avx512_core avx2"),
    "Zen 5": (f"avx_vnni {COOPER_LAKE}", "avx512 avx512_vnni avx512_core avx2_vnni avx2"),
    "Sapphire Rapids": (f"{COOPER_LAKE} avx_vnni {AMX}", "amx avx512 avx512_vnni avx512_core avx2_vnni avx2"),
    "the same without AMX": (f"{COOPER_LAKE} avx_vnni", "avx512 avx512_vnni avx512_core avx2_vnni avx2"),
    "the same without bfloat16": (f"{ICE_LAKE} avx_vnni", "avx512_vnni avx512_core avx2_vnni avx2"),
    "AMX without bfloat16": (f"{COOPER_LAKE} amx_tile amx_int8", "avx512 avx512_vnni avx512_core avx2"),
}


@on_x86
@pytest.mark.parametrize("processor", PROCESSORS)
def test_a_processor_runs_the_builds_that_need_what_it_has(processor):
    features, runs = PROCESSORS[processor]
    assert builds(features) == (*runs.split(), "portable")


@on_x86
def test_the_order_is_that_of_python():
    assert builds(" ".join(features for features, _ in PROCESSORS.values())) == X86


@pytest.mark.skipif(BUILDS == X86, reason="the library is for x86-64")
def test_arm_has_two():
    assert builds("fp asimd asimddp") == ("dotprod", "portable") and builds("fp asimd") == ("portable",)


def test_this_processor_runs_what_linux_says_of_it():
    cpuinfo = Path("/proc/cpuinfo")
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo.read_text() if cpuinfo.exists() else "", re.MULTILINE)
    if flags is None:
        pytest.skip("the system does not tell")
    features = bytes(native_library.library().tm_features()).decode().split()
    assert set(features) <= set(flags[1].split())
    # The matrix unit must be asked for, and a system may refuse.
    without = " ".join(set(flags[1].split()) - (set(AMX.split()) - set(features)))
    assert builds() == builds(without)
    assert native_library.best_build() == (native_library.WANTED_BUILD or builds()[0])


def said(code, **environment):
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("build", BUILDS)
def test_the_environment_chooses_a_build_or_hears_which_there_are(build):
    code = "from tokenmill.kernels import native_library as n; print(n.why_not(), n.best_build())"
    done = said(code, TOKENMILL_NATIVE_BUILD=build)
    if build in builds():
        assert done.stdout == f"None {build}\n", done.stderr
    else:
        assert done.returncode and f"does not run the build {build}: it runs {', '.join(builds())}" in done.stderr
