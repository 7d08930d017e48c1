"""Laws and products under the instruction sets of other processors, which torch and oneDNN take where they are told to.

A newer processor behaves so as an older one does: bfloat16 is multiplied by other kernels without its instructions, or
by none of oneDNN's. Then the laws of programs with each build of the native program that runs here, each of which is
also tried by the tests of its kernels themselves.

    python -m tests.processors [pytest arguments]      # what `make test-processors` does
"""

import os
import subprocess
import sys
from pathlib import Path

from tokenmill.kernels.native_library import builds, is_usable

ROOT = Path(__file__).parent.parent
SETTINGS = {
    "AVX-512 without bfloat16": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
    "AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "neither": {"ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default"},
}
BUILD = "TOKENMILL_NATIVE_BUILD"
TESTS_OF_BUILDS = ("tests/laws/test_law_06_programs.py",)
TESTS = (
    "tests/quant",
    "tests/kernels",
    "tests/model/test_activations.py",
    "tests/model/test_layers.py",
    "tests/program/test_native.py",
    "tests/laws/test_law_02_to_04_equal_text.py",
    "tests/laws/test_law_06_programs.py",
    "tests/laws/test_law_10_blocks.py",
)


def main(arguments: list[str]) -> int:
    """Run the tests under each setting; the number of settings under which one failed."""
    failed = 0
    of_builds = {f"build {name}": {BUILD: name} for name in builds()} if is_usable() else {}
    for name, variables in {**SETTINGS, **of_builds}.items():
        tests = TESTS_OF_BUILDS if BUILD in variables else TESTS
        told = " ".join(f"{key}={value}" for key, value in variables.items())
        sys.stdout.write(f"== {name}: {told}\n")
        sys.stdout.flush()
        command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "worksteal", *tests, *arguments]
        failed += subprocess.run(command, cwd=ROOT, env=os.environ | variables, check=False).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
