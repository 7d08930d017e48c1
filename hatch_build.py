"""Builds the native program's library when tokenmill is installed: a few calls of a C++ compiler, no build system.

native/kernels/kernels.cpp is compiled once per instruction set, everything else once. The best instruction set is
chosen when the library is loaded, so that a wheel serves every processor. Where there is no compiler, or it fails, the
installation succeeds without the library, and the native program then says why it is not there.

The library has the digest of its sources and flags and the name of its compiler as a text in it. One that is up to date
is not built again. CXX may name a compiler for another machine, with arguments; the wheel's platform is then told by
_PYTHON_HOST_PLATFORM, as everywhere in Python's builds, and nothing is written into the source tree.

    python hatch_build.py      # build it in place, as `pip install -e .` does
"""

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
SOURCES = ROOT / "native"
LIBRARY = ROOT / "src" / "tokenmill" / "kernels" / "libtokenmill.so"

# -ffp-contract=off: a product and a sum become one operation where the source says so and nowhere else.
# -fno-strict-aliasing: rows of the cache are read as words of 32 bits, whatever they hold.
FLAGS = ["-std=c++17", "-O3", "-fPIC", "-pthread", "-fvisibility=hidden", "-Wall", "-Wextra", f"-I{SOURCES}"]
FLAGS += ["-fno-math-errno", "-ffp-contract=off", "-fno-strict-aliasing", f"-ffile-prefix-map={ROOT}=."]
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq"]
X86 = {  # native/kernels/builds.cpp has the features of a processor that each needs
    "amx": [*AVX512, "-mavx512vnni", "-mavx512bf16", "-mamx-tile", "-mamx-int8", "-mamx-bf16"],
    "avx512": [*AVX512, "-mavx512vnni", "-mavx512bf16"],
    "avx512_vnni": [*AVX512, "-mavx512vnni"],
    "avx512_core": AVX512,
    "avx2_vnni": [*AVX2, "-mavxvnni"],
    "avx2": AVX2,
}
ARM = {"dotprod": ["-march=armv8.2-a+dotprod"]}
MACHINES = {"x86_64": X86, "amd64": X86, "aarch64": ARM, "arm64": ARM}
ELF_MACHINES = {"x86_64": 62, "amd64": 62, "aarch64": 183, "arm64": 183}  # as the header of a library names them
# gcc 12 turns the portable bfloat16 product into a wrong one at -O3 (its loop vectoriser; -O2 is right).
PORTABLE = ["-O2", "-ftree-vectorize"]
KERNELS = SOURCES / "kernels" / "kernels.cpp"


def compiler() -> list[str] | None:
    """CXX, which may have arguments, or the first of the usual names that there is."""
    named = shlex.split(os.environ.get("CXX", ""))
    if named and shutil.which(named[0]):
        return named
    return next(([name] for name in ("c++", "g++", "clang++") if shutil.which(name)), None)


def builds() -> dict[str, list[str]]:
    """Name → flags of every build of the kernels that this kind of processor may run, or the one that is built for."""
    return {**MACHINES.get(target_machine(), {}), "portable": PORTABLE}


def target_machine() -> str:
    """The processor that is built for: this one, if nothing else is said."""
    said = sysconfig.get_platform().split("-")[-1]
    return said if said in MACHINES else platform.machine().lower()


def compile_all(command: list[str], folder: Path, of: dict[str, list[str]], extra: tuple[str, ...] = ()) -> list[str]:
    """Object files of all sources, in `folder`; the kernels for each of the builds `of`."""
    jobs = [(f"kernels_{name}", KERNELS, [f"-DTM_BUILD={name}", *flags]) for name, flags in of.items()]
    known = [f"-DTM_WITH_{name.upper()}" for name in of]
    jobs += [(path.stem, path, known) for path in sorted(SOURCES.rglob("*.cpp")) if path != KERNELS]
    assert len({name for name, _, _ in jobs}) == len(jobs), "no two sources have the same name"

    def compile_one(job: tuple[str, Path, list[str]]) -> str:
        name, source, flags = job
        target = str(folder / f"{name}.o")
        _run([*command, *FLAGS, *flags, *extra, "-c", str(source), "-o", target])
        return target

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compile_one, jobs))


def build(library: Path = LIBRARY, extra: tuple[str, ...] = ()) -> None:
    """Compile and link. FileNotFoundError without a compiler, CalledProcessError with its output when it fails."""
    command = compiler()
    if command is None:
        raise FileNotFoundError("no C++ compiler: neither CXX nor c++, g++ or clang++")
    with tempfile.TemporaryDirectory() as folder:
        known = (*extra, f'-DTM_BUILT_FROM="{sources_digest()} by {compiler_name(command)}"')
        objects = compile_all(command, Path(folder), builds(), known)
        partial = library.with_suffix(f".{os.getpid()}")
        _run([*command, *FLAGS, *extra, "-shared", *objects, "-o", str(partial)])
        partial.replace(library)


def sources_digest() -> str:
    """Of what decides, beside the compiler, what the library computes: the sources, and the flags of every build."""
    flags = [flag.replace(str(ROOT), ".") for flag in FLAGS]
    digest = sha256(repr((flags, MACHINES, PORTABLE)).encode())
    for path in sorted(SOURCES.rglob("*.*")):
        digest.update(f"{path.relative_to(ROOT).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def compiler_name(command: list[str]) -> str:
    """What it says of itself, by one of gcc's many names, and its arguments: "gcc (Debian 12.2.0-14) 12.2.0"."""
    version = _run([*command, "--version"]).splitlines()[0].removeprefix(Path(command[0]).name).strip()
    version = f"gcc {version}" if version.startswith("(") else version
    return " ".join([version, *command[1:]]).replace('"', "").replace("\\", "")


def is_up_to_date(library: Path) -> bool:
    """Whether it was built for this machine from these sources by this compiler, or by any where there is none."""
    if not library.is_file():
        return False
    content = library.read_bytes()
    elf_machine = int.from_bytes(content[18:20], "little") if content[:4] == b"\x7fELF" else None
    if elf_machine not in (None, ELF_MACHINES.get(target_machine(), elf_machine)):
        return False
    found = re.search(rb"tokenmill's library was built from (\w+) by ([^\0]*)\0", content)
    if not found or found[1].decode() != sources_digest():
        return False
    command = compiler()
    return command is None or found[2].decode() == compiler_name(command)


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  (a compiler and our own arguments)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    return done.stdout


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run by hand
    BuildHookInterface = object


class NativeBuildHook(BuildHookInterface):  # type: ignore[misc]
    """Called by hatchling before it packs a wheel, also an editable one."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Find or build the library and mark the wheel as one of its platform; without it the wheel is pure Python."""
        self.folder = tempfile.TemporaryDirectory()  # of a library that cannot or must not lie in the source tree
        try:
            library = self._library(in_place=version == "editable")
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", "") or str(error)
            self.app.display_warning(f"tokenmill's native program was not built: {said.strip()[-2000:]}")
            if version == "editable" and os.access(LIBRARY.parent, os.W_OK):
                LIBRARY.unlink(missing_ok=True)  # it is not that of the sources
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_platform()}"
        if version != "editable":
            build_data["force_include"][str(library)] = LIBRARY.relative_to(ROOT / "src").as_posix()

    def _library(self, in_place: bool) -> Path:
        """The one in the source tree, which is brought up to date where it can be; otherwise one in another folder."""
        ready = Path(os.environ.get("TOKENMILL_NATIVE_LIBRARY") or LIBRARY)
        if not in_place and is_up_to_date(ready):
            return ready
        if is_up_to_date(LIBRARY):
            return LIBRARY
        foreign = "_PYTHON_HOST_PLATFORM" in os.environ
        writable = os.access(LIBRARY.parent, os.W_OK)
        library = LIBRARY if in_place or (writable and not foreign) else Path(self.folder.name) / LIBRARY.name
        build(library)
        return library

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Called when the wheel is written."""
        del version, build_data, artifact_path
        self.folder.cleanup()


def _platform() -> str:
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


if __name__ == "__main__":
    try:
        if not is_up_to_date(LIBRARY):
            build()
    except subprocess.CalledProcessError as failure:
        sys.exit(failure.stderr)
    sys.stdout.write(f"{LIBRARY}\n")
