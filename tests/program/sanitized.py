"""native/ compiled with the address and undefined behaviour sanitizers, and the tests that run against it.

Two C++ programs test the kernels and whole steps on arrays of exactly their size. The second runs once more under the
thread sanitizer, since threads hand work and rows to each other in every step. The Python tests of the native program
then run against a sanitized library, which they find by an environment variable. Any report ends a process.

    python tests/program/sanitized.py [pytest arguments]      # what `make test-sanitized` does
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import hatch_build

from tokenmill.kernels import native_library

__all__ = ["build", "environment"]

HERE = Path(__file__).parent
FOLDER = hatch_build.ROOT / "build" / "sanitized"
FLAGS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-O1", "-g1", "-w")
RACES = ("-fsanitize=thread", "-fno-omit-frame-pointer", "-O1", "-g1", "-w")
PROGRAMS = ("native_kernels", "native_steps")
TESTS = (
    "tests/engine/test_adapters.py",
    "tests/model/test_encoders.py",
    "tests/program/test_native.py",
    "tests/program/test_native_float16.py",
    "tests/program/test_native_codes.py",
    "tests/program/test_native_unequal.py",
    "tests/program/test_native_states.py",
    "tests/program/test_native_nodes.py",
    "tests/program/test_native_small_steps.py",
    "tests/weights/test_mapped_table.py",
    "tests/parallel/test_native_ranks.py",
    "tests/speculate/test_multi_step.py",
    "tests/quant/test_grid.py",
    "tests/quant/test_gptq.py",
    "tests/sample/test_native.py",
)


def build(folder: Path) -> tuple[Path, list[Path]]:
    """The library and the programs, with all builds of the kernels that this processor runs; the last, which looks for
    races, with the best of them.
    """
    library, programs = build_for_memory(folder, native_library.builds())
    races = folder / "races"
    return library, [*programs, _link(*_compile(races, RACES, native_library.builds()[:1]), PROGRAMS[1], races)]


def build_for_memory(folder: Path, tested: Sequence[str]) -> tuple[Path, list[Path]]:
    """The library and the programs that find reads and writes outside of what is allocated, with these builds."""
    base, objects = _compile(folder, FLAGS, tested)
    library = folder / "libtokenmill.so"
    subprocess.run([*base, "-shared", *objects, "-o", str(library)], check=True)
    return library, [_link(base, objects, name, folder) for name in PROGRAMS]


def _compile(folder: Path, flags: tuple[str, ...], tested: Sequence[str]) -> tuple[list[str], list[str]]:
    """The compiler's command so far, and the object files. The name of the portable kernels, which every library has,
    stands for others where those are not tested.
    """
    command = hatch_build.compiler()
    assert command is not None, "no C++ compiler"
    folder.mkdir(parents=True, exist_ok=True)
    builds = {name: how for name, how in hatch_build.builds().items() if name in tested}
    objects = hatch_build.compile_all(command, folder, builds, flags)
    kernels = ",".join(f"&kernels_{name}" for name in tested)
    lacking = [] if "portable" in tested else [f"-Wl,--defsym=kernels_portable=kernels_{tested[0]}"]
    return [*command, *hatch_build.FLAGS, *flags, f"-DTM_TESTED={kernels}", *lacking], objects


def _link(base: list[str], objects: list[str], name: str, folder: Path) -> Path:
    subprocess.run([*base, str(HERE / f"{name}.cpp"), *objects, "-o", str(folder / name)], check=True)
    return folder / name


def environment(library: Path) -> dict[str, str]:
    """Variables of a Python process that loads the library. Leaks are not looked for, since Python itself leaks."""
    command = hatch_build.compiler()
    assert command is not None
    runtimes = []
    for name in (
        "libasan.so",
        "libstdc++.so",
    ):  # asan first; exceptions need a libstdc++ that is loaded together with it
        found = subprocess.run([*command, f"-print-file-name={name}"], capture_output=True, text=True, check=True)
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
