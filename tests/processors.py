"""Laws and products under the instruction sets of other processors, which torch and oneDNN take where they are told to.

A newer processor behaves so as an older one does: bfloat16 is multiplied by other kernels without its instructions, or
by none of oneDNN's. Under each setting run the tests of what torch computes, and not those of the native program, which
has instructions of its own, nor those of schedules, which have none; and a setting that leaves a processor what it has
is left out, as its tests are the default ones. Then the laws of programs with each build of the native program that
runs here but the best one, which the default tests run; each is also tried by the tests of its kernels themselves.

    python -m tests.processors [pytest arguments]      # what `make test-processors` does
"""

import os
import subprocess
import sys
from pathlib import Path

import torch

from tokenmill.kernels.native_library import builds, is_usable

ROOT = Path(__file__).parent.parent
SETTINGS = {
    "AVX-512 without bfloat16": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
    "AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "neither": {"ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default"},
}
BEYOND = {
    "AVX-512 without bfloat16": ("avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "avx10_1"),
    "AVX2": ("avx512_f", "avx_vnni", "avx_vnni_int8", "avx_ne_convert", "avx10_1"),
    "neither": ("avx",),
}
"""Instructions that a setting takes from a processor, as torch names them. One that has none of them is as it was."""
BUILD = "TOKENMILL_NATIVE_BUILD"
TESTS_OF_BUILDS = ("tests/laws/test_law_06_programs.py", "-k", "not compiled")
PRODUCTS = (
    "tests/quant",
    "tests/kernels",
    "tests/model/test_activations.py",
    "tests/model/test_layers.py",
    "tests/program/test_native.py::test_sizes_that_are_no_multiple_of_anything",
)
"""In every number format."""
IN_FLOAT32 = (
    "tests/laws/test_law_02_to_04_equal_text.py::test_every_kernel_equals_gather",
    "tests/laws/test_law_06_programs.py::test_every_program_says_what_eager_says",
    "tests/program/test_native.py::test_logits_are_those_of_eager",
    "tests/program/test_native.py::test_the_cache_in_bytes",
)
"""What program eager computes in float32, which the instructions for bfloat16 do not change."""
TESTS = {
    "AVX-512 without bfloat16": PRODUCTS,
    "AVX2": PRODUCTS + IN_FLOAT32,
    "neither": PRODUCTS + IN_FLOAT32,
}


def main(arguments: list[str]) -> int:
    """Run the tests under each setting; the number of settings under which one failed."""
    failed = 0
    has = torch.cpu.get_capabilities()
    of_builds = {f"build {name}": {BUILD: name} for name in builds()[1:]} if is_usable() else {}
    for name, variables in {**SETTINGS, **of_builds}.items():
        told = " ".join(f"{key}={value}" for key, value in variables.items())
        if name in BEYOND and not any(has.get(instructions) for instructions in BEYOND[name]):
            sys.stdout.write(f"== {name}: left out, as this processor has no more than that\n")
            continue
        sys.stdout.write(f"== {name}: {told}\n")
        sys.stdout.flush()
        tests = TESTS.get(name, TESTS_OF_BUILDS)
        command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "worksteal", *tests, *arguments]
        failed += subprocess.run(command, cwd=ROOT, env=os.environ | variables, check=False).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
