"""Builds the files of a release in dist/: the sdist, and wheels for Linux on x86-64 and aarch64, with glibc and musl.

    python deploy/release/wheels.py [NAME ...]     # `make wheels` installs what it needs and runs it

The wheel of this machine is compiled by its own compiler; the others are cross-compiled, that for aarch64 by Debian's
g++-aarch64-linux-gnu, those for musl by zig. auditwheel finds the oldest C library that each of them runs with, and
names the wheel after it. The library of a wheel that this machine can load is loaded and asked for its ABI.
"""

import os
import subprocess
import sys
from pathlib import Path
from shutil import which

ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "dist"
ZIG = f"{sys.executable} -m ziglang c++ -s -target"
"""-s: without symbols, which zig writes unless it is told not to."""

TARGETS = {
    "manylinux-x86_64": ("linux-x86_64", ""),
    "manylinux-aarch64": ("linux-aarch64", "aarch64-linux-gnu-g++ -s"),
    "musllinux-x86_64": ("linux-x86_64", f"{ZIG} x86_64-linux-musl"),
    "musllinux-aarch64": ("linux-aarch64", f"{ZIG} aarch64-linux-musl"),
}
"""Name → the platform as Python names it, and the compiler; none for that of this machine."""


def run(*command: str, **variables: str) -> None:
    """Run a program of this environment; what it says is shown."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    subprocess.run(command, cwd=ROOT, env={**os.environ, "PATH": path, **variables}, check=True)  # noqa: S603


def build(name: str) -> Path:
    """The repaired wheel of one target."""
    platform, compiler = TARGETS[name]
    raw, variables = DIST / "raw" / name, {}
    if compiler:
        assert which(compiler.split()[0]), f"{name} needs {compiler.split()[0]}"
        variables = {"CXX": compiler, "_PYTHON_HOST_PLATFORM": platform}
    for old in raw.glob("*.whl"):
        old.unlink()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(raw), **variables)
    (wheel,) = raw.glob("*.whl")
    assert wheel.name.endswith(f"-py3-none-{platform.replace('-', '_')}.whl"), f"{wheel.name} has no native library"
    before = set(DIST.glob("*.whl"))
    run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(DIST), str(wheel))
    return next(iter(set(DIST.glob("*.whl")) - before), wheel)


def main(names: list[str]) -> None:
    """Build everything, or what is named."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(DIST))
    for name in names or TARGETS:
        build(name)
    for file in sorted(DIST.glob("tokenmill-*")):
        sys.stdout.write(f"{file.name}  {file.stat().st_size / 1e6:.1f} MB\n")


if __name__ == "__main__":
    main(sys.argv[1:])
