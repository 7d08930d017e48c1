"""Builds the files of a release in dist/: the sdist, and wheels for Linux on x86-64 and aarch64, with glibc and musl.

    python deploy/release/wheels.py [NAME ...]     # `make wheels` installs what it needs and runs it

The wheel of this machine is compiled by its own compiler; the others are cross-compiled, that for aarch64 by Debian's
g++-aarch64-linux-gnu, those for musl by zig. auditwheel finds the oldest glibc that a wheel runs with, and names the
wheel after it. Beside glibc it knows nothing of musl: the libraries that such a wheel needs are compared here with what
musllinux allows, its libc alone.
"""

import os
import subprocess
import sys
import zipfile
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from shutil import which

from elftools.elf.elffile import ELFFile

ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "dist"
LIBRARY = "tokenmill/kernels/libtokenmill.so"
ZIG = f"{sys.executable} deploy/release/zig.py -s -target"
"""-s: without symbols, which zig writes unless it is told not to."""

TARGETS = {
    "manylinux-x86_64": ("", ""),
    "manylinux-aarch64": ("linux-aarch64", "aarch64-linux-gnu-g++ -s"),
    "musllinux-x86_64": ("musllinux_1_2-x86_64", f"{ZIG} x86_64-linux-musl"),
    "musllinux-aarch64": ("musllinux_1_2-aarch64", f"{ZIG} aarch64-linux-musl"),
}
"""Name → the platform as Python names it, and the compiler; nothing where they are those of this machine."""


def run(*command: str, **variables: str) -> None:
    """Run a program of this environment; what it says is shown."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    subprocess.run(command, cwd=ROOT, env={**os.environ, "PATH": path, **variables}, check=True)  # noqa: S603


def build(name: str) -> None:
    """The wheel of one target, checked and named after the C library that it runs with."""
    platform, compiler = TARGETS[name]
    raw, variables = DIST / "raw" / name, {}
    if compiler:
        assert which(compiler.split()[0]), f"{name} needs {compiler.split()[0]}"
        variables = {"CXX": compiler, "_PYTHON_HOST_PLATFORM": platform}
    for old in raw.glob("*.whl"):
        old.unlink()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(raw), **variables)
    (wheel,) = raw.glob("*.whl")
    assert not wheel.name.endswith("-any.whl"), f"{name} has no native library"
    if name.startswith("manylinux"):
        return run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(DIST), str(wheel))
    needed = needed_libraries(wheel)
    assert needed == ["libc.so"], f"{name} needs {needed}, where musllinux allows libc.so alone"
    wheel.replace(DIST / wheel.name)
    return None


def needed_libraries(wheel: Path) -> list[str]:
    """The libraries that the one in the wheel is linked with."""
    with zipfile.ZipFile(wheel) as opened:
        elf = ELFFile(BytesIO(opened.read(LIBRARY)))
    return [str(tag.needed) for tag in elf.get_section_by_name(".dynamic").iter_tags("DT_NEEDED")]


def main(names: list[str]) -> None:
    """Build everything, or what is named, and write digests of all that lies there."""
    for old in () if names else DIST.glob("tokenmill-*"):
        old.unlink()
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(DIST))
    for name in names or TARGETS:
        build(name)
    files = sorted(DIST.glob("tokenmill-*"))
    sums = "".join(f"{sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)
    (DIST / "SHA256SUMS").write_text(sums)
    for file in files:
        sys.stdout.write(f"{file.name}  {file.stat().st_size / 1e6:.2f} MB\n")


if __name__ == "__main__":
    main(sys.argv[1:])
