"""What each kernel of native/ computes from the same numbers, as digests: by native_digests.cpp."""

import subprocess
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import hatch_build

__all__ = ["compiled", "digests", "said"]

HERE = Path(__file__).parent


def compiled(folder: Path, command: list[str], builds: Mapping[str, list[str]]) -> Callable[[str], Path]:
    """What links a program of this folder with the objects of these builds."""
    objects = hatch_build.compile_all(command, folder, dict(builds))
    tested = ",".join(f"&kernels_{name}" for name in builds)
    link = [*command, *hatch_build.FLAGS, "-w", "-static", f"-DTM_TESTED={tested}", *objects]

    def program(name: str) -> Path:
        subprocess.run([*link, str(HERE / f"{name}.cpp"), "-o", str(folder / name)], check=True)
        return folder / name

    return program


def said(command: Sequence[str | Path]) -> str:
    """What a program prints. AssertionError if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def digests(text: str) -> dict[str, dict[str, list[str]]]:
    """Build → kernel → digests, of what native_digests prints."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for build, kernel, digest in map(str.split, text.splitlines()):
        found[build][kernel].append(digest)
    return found
