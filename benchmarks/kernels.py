"""How many products a second the kernels of native/ compute in one thread, for each build that runs here, and whether
they compute the same bits.

Run: PYTHONPATH=. python benchmarks/kernels.py [--only BUILD,…] [--before COMMIT] [--rounds N]
--before: compile the kernels of that commit, too, let both take turns, and print how many times as fast ours are.
Figures are the medians of the rounds in GMAC/s, 1e9 products and sums.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import hatch_build

from tokenmill.kernels.native_library import builds

HERE = Path(__file__).parent
COMPILE = """
import json, subprocess, sys
from pathlib import Path
import hatch_build
names, source, target = json.loads(sys.argv[1]), *sys.argv[2:]
command, objects = [*hatch_build.compiler(), *hatch_build.FLAGS], []
for name in names:
    objects.append(f"{target}_{name}.o")
    how = [f"-DTM_BUILD={name}", *hatch_build.builds()[name]]
    subprocess.run([*command, *how, "-c", hatch_build.KERNELS, "-o", objects[-1]], check=True)
tested = ",".join(f"&kernels_{name}" for name in names)
subprocess.run([*command, f"-DTM_TESTED={tested}", *objects, source, "-o", target], check=True)
"""
Figures = Mapping[tuple[str, str], tuple[float, str]]


def main() -> None:
    """Compile, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="builds, as a,b,c", type=lambda text: text.split(","))
    parser.add_argument("--before", help="a commit to compare with")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    names = [name for name in builds() if name != "portable" and name in (asked.only or builds())]
    if not names:
        sys.exit(f"error: none of the builds {', '.join(asked.only)} runs here: {', '.join(builds())} do")
    with tempfile.TemporaryDirectory() as folder:
        programs = {"now": compiled(hatch_build.ROOT, names, Path(folder, "now"))}
        if asked.before:
            with checked_out(asked.before) as tree:
                programs["before"] = compiled(tree, names, Path(folder, "before"))
        rounds = [{which: figures(path) for which, path in programs.items()} for _ in range(asked.rounds)]
    show(names, rounds)


def compiled(tree: Path, names: list[str], folder: Path) -> Path:
    """The program with the kernels of a source tree, compiled as that tree compiles them."""
    folder.mkdir()
    command = [sys.executable, "-c", COMPILE, json.dumps(names), str(HERE / "kernels.cpp"), str(folder / "kernels")]
    subprocess.run(command, cwd=tree, check=True)
    return folder / "kernels"


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """The source tree of a commit, beside this one, for as long as the context lasts."""
    git = ["git", "-C", str(hatch_build.ROOT), "worktree"]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        subprocess.run([*git, "add", "--detach", str(tree), commit], check=True, capture_output=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True, capture_output=True)


def figures(program: Path) -> Figures:
    """Case and build → GMAC/s and digest, of one run."""
    lines = subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()
    return {(what, build): (float(rate), digest) for what, build, rate, digest in (line.split(",") for line in lines)}


def show(names: list[str], rounds: list[dict[str, Figures]]) -> None:
    """Print a line for each case, and say where builds or commits compute other bits."""
    width = 20 if "before" in rounds[0] else 12
    print(f"{'GMAC/s in one thread':34}" + "".join(f"{name:>{width}}" for name in names))
    digests: dict[str, set[str]] = defaultdict(set)
    for what in dict.fromkeys(what for what, _ in rounds[0]["now"]):
        cells = []
        for name in names:
            now = median(one["now"][what, name][0] for one in rounds)
            for one in rounds:
                digests[what].update(figures[what, name][1] for figures in one.values())
            cell = f"{now:.1f}"
            if "before" in rounds[0]:
                cell += f" ({median(one['now'][what, name][0] / one['before'][what, name][0] for one in rounds):.2f})"
            cells.append(f"{cell:>{width}}")
        print(f"{what:34}" + "".join(cells))
    different = [what for what, seen in digests.items() if len(seen) > 1]
    print("the same bits everywhere" if not different else f"NOT the same bits: {', '.join(different)}")


if __name__ == "__main__":
    main()
