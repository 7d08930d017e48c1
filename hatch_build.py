"""Builds the native program's library when tokenmill is installed: a few calls of a C++ compiler, no build system.

native/kernels/kernels.cpp is compiled once per instruction set, everything else once. The best instruction set is
chosen when the library is loaded, so that a wheel serves every processor. Where there is no compiler, or it fails, the
installation succeeds without the library, and the native program then says why it is not there.

    python hatch_build.py      # build it in place, as `pip install -e .` does
"""

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
SOURCES = ROOT / "native"
LIBRARY = ROOT / "src" / "tokenmill" / "kernels" / "libtokenmill.so"

# -ffp-contract=off: a product and a sum become one operation where the source says so and nowhere else.
# -fno-strict-aliasing: rows of the cache are read as words of 32 bits, whatever they hold.
FLAGS = ["-std=c++17", "-O3", "-fPIC", "-pthread", "-fvisibility=hidden", "-Wall", "-Wextra", f"-I{SOURCES}"]
FLAGS += ["-fno-math-errno", "-ffp-contract=off", "-fno-strict-aliasing"]
AVX512 = "-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mavx512bf16 -mavx2 -mfma -mf16c".split()
X86 = {
    "amx": [*AVX512, "-mamx-tile", "-mamx-int8", "-mamx-bf16"],
    "avx512": AVX512,
    "avx2": "-mavx2 -mfma -mf16c".split(),
}
# gcc 12 turns the portable bfloat16 product into a wrong one at -O3 (its loop vectoriser; -O2 is right).
PORTABLE = ["-O2", "-ftree-vectorize"]
KERNELS = SOURCES / "kernels" / "kernels.cpp"


def builds() -> dict[str, list[str]]:
    """Name → flags of every build of the kernels that this kind of processor may run."""
    return {**(X86 if platform.machine() in ("x86_64", "AMD64") else {}), "portable": PORTABLE}


def compiler() -> str | None:
    """CXX, or the first of the usual names that there is."""
    return next(filter(None, map(shutil.which, [os.environ.get("CXX", ""), "c++", "g++", "clang++"])), None)


def compile_all(command: str, folder: Path, of: dict[str, list[str]], extra: tuple[str, ...] = ()) -> list[str]:
    """Object files of all sources, in `folder`; the kernels for each of the builds `of`."""
    jobs = [(f"kernels_{name}", KERNELS, [f"-DTM_BUILD={name}", *flags]) for name, flags in of.items()]
    known = [f"-DTM_WITH_{name.upper()}" for name in of]
    jobs += [(path.stem, path, known) for path in sorted(SOURCES.rglob("*.cpp")) if path != KERNELS]
    assert len({name for name, _, _ in jobs}) == len(jobs), "no two sources have the same name"

    def compile_one(job: tuple[str, Path, list[str]]) -> str:
        name, source, flags = job
        target = str(folder / f"{name}.o")
        _run([command, *FLAGS, *flags, *extra, "-c", str(source), "-o", target])
        return target

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compile_one, jobs))


def build(library: Path = LIBRARY, extra: tuple[str, ...] = ()) -> None:
    """Compile and link. FileNotFoundError without a compiler, CalledProcessError with its output when it fails."""
    command = compiler()
    if command is None:
        raise FileNotFoundError("no C++ compiler: neither CXX nor c++, g++ or clang++")
    with tempfile.TemporaryDirectory() as folder:
        objects = compile_all(command, Path(folder), builds(), extra)
        partial = library.with_suffix(f".{os.getpid()}")
        _run([command, *FLAGS, *extra, "-shared", *objects, "-o", str(partial)])
        partial.replace(library)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  (a compiler and our own arguments)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run by hand
    BuildHookInterface = object


class NativeBuildHook(BuildHookInterface):  # type: ignore[misc]
    """Called by hatchling before it packs a wheel, also an editable one."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the library and mark the wheel as one of this platform; without it the wheel is pure Python.

        The Makefile sets TOKENMILL_KEEP_NATIVE where it has just built the library and only installs an extra.
        """
        del version
        try:
            if not (os.environ.get("TOKENMILL_KEEP_NATIVE") and LIBRARY.is_file()):
                build()
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", "") or str(error)
            self.app.display_warning(f"tokenmill's native program was not built: {said.strip()[-2000:]}")
            LIBRARY.unlink(missing_ok=True)
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_platform()}"
        build_data["artifacts"].append(str(LIBRARY.relative_to(ROOT)))


def _platform() -> str:
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


if __name__ == "__main__":
    try:
        build()
    except subprocess.CalledProcessError as failure:
        sys.exit(failure.stderr)
    sys.stdout.write(f"{LIBRARY}\n")
