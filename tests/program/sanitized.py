"""native/ compiled with the address and undefined behaviour sanitizers, and the tests that run against it.

Two C++ programs test the kernels and whole steps on arrays of exactly their size. The Python tests of the native
program then run against a sanitized library, which they find by an environment variable. Any report ends a process.

    python tests/program/sanitized.py [pytest arguments]      # what `make test-sanitized` does
"""

import os
import subprocess
import sys
from pathlib import Path

import hatch_build

from tokenmill.kernels import native_library

__all__ = ["build", "environment"]

HERE = Path(__file__).parent
FOLDER = hatch_build.ROOT / "build" / "sanitized"
FLAGS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-O1", "-g1", "-w")
PROGRAMS = ("native_kernels", "native_steps")
TESTS = (
    "tests/program/test_native.py",
    "tests/program/test_native_float16.py",
    "tests/program/test_native_unequal.py",
    "tests/speculate/test_multi_step.py",
    "tests/quant/test_grid.py",
    "tests/quant/test_gptq.py",
)


def build(folder: Path) -> tuple[Path, list[Path]]:
    """The library and the programs, with all builds of the kernels that this processor runs."""
    command = hatch_build.compiler()
    assert command is not None, "no C++ compiler"
    folder.mkdir(parents=True, exist_ok=True)
    names = native_library.BUILDS[native_library.BUILDS.index(native_library.best_build()) :]
    builds = {name: flags for name, flags in hatch_build.builds().items() if name in names}
    objects = hatch_build.compile_all(command, folder, builds, FLAGS)
    base = [command, *hatch_build.FLAGS, *FLAGS, f"-DTM_TESTED={','.join(f'&kernels_{name}' for name in builds)}"]
    library, programs = folder / "libtokenmill.so", [folder / name for name in PROGRAMS]
    subprocess.run([*base, "-shared", *objects, "-o", str(library)], check=True)
    for program in programs:
        subprocess.run([*base, str(HERE / f"{program.name}.cpp"), *objects, "-o", str(program)], check=True)
    return library, programs


def environment(library: Path) -> dict[str, str]:
    """Variables of a Python process that loads the library. Leaks are not looked for, since Python itself leaks."""
    command = hatch_build.compiler()
    assert command is not None
    runtimes = []
    for name in (
        "libasan.so",
        "libstdc++.so",
    ):  # asan first; exceptions need a libstdc++ that is loaded together with it
        found = subprocess.run([command, f"-print-file-name={name}"], capture_output=True, text=True, check=True)
        runtimes.append(found.stdout.strip())
    options = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
    return {"LD_PRELOAD": " ".join(runtimes), "TOKENMILL_NATIVE_LIBRARY": str(library), **options}


def main(arguments: list[str]) -> int:
    """Build and run everything; the exit code of what fails first."""
    library, programs = build(FOLDER)
    for program in programs:
        if code := subprocess.run([str(program)], check=False).returncode:
            return code
    command = [sys.executable, "-m", "pytest", "-m", "not compiler and not model", *(arguments or TESTS)]
    return subprocess.run(command, env=os.environ | environment(library), check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
