"""Whether a model is computed as fast as at an earlier commit, and as llama.cpp does: ratios of one run, by turns.

Run: PYTHONPATH=. python benchmarks/gate.py MODEL [--before COMMIT] [--tests pp512,tg64] [--batch 1,16] [--rounds N]
The earlier commit is checked out beside this one and its library is compiled. llama.cpp takes part where
`tokenmill bench install-peer llama.cpp` has made its environment. Exit code 1 where the median of a ratio is under
--least.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

import hatch_build
from benchmarks.kernels import checked_out

from tokenmill.hub.download import cache_folder

Rates = dict[str, float]


def main() -> int:
    """Measure by turns, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--before", default="HEAD~1")
    parser.add_argument("--tests", default="pp512,tg64")
    parser.add_argument("--batch", default="1")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--least", type=float, default=0.97)
    asked = parser.parse_args()
    with checked_out(asked.before) as tree:
        built = subprocess.run(
            [sys.executable, "hatch_build.py"], cwd=tree, capture_output=True, text=True, check=False
        )
        if built.returncode:
            sys.exit(f"error: the library of {asked.before} does not compile:\n{built.stderr}")
        rounds = [[rates(each, asked) for each in (tree, hatch_build.ROOT)] for _ in range(asked.rounds)]
    slower = show(rounds, asked)
    if (cache_folder() / "peers" / "llama.cpp").is_dir():
        peers = ["bench", "peers", asked.model, "--only", "llama.cpp", "--batch", asked.batch, "--prompt", "512"]
        subprocess.run([sys.executable, "-m", "tokenmill", *peers, "--rounds", str(asked.rounds)], check=True)
    return int(slower)


def rates(tree: Path, asked: argparse.Namespace) -> Rates:
    """Tokens a second of each test, by the package of a source tree."""
    how = ["--tests", asked.tests, "--batch", asked.batch, "--speculate", "off", "--json", "--quiet"]
    done = subprocess.run(
        [sys.executable, "-m", "tokenmill", "bench", asked.model, *how],
        env=os.environ | {"PYTHONPATH": str(tree / "src")},
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"error: tokenmill bench of {tree} ended with {done.returncode}:\n{done.stderr}")
    rows = json.loads(done.stdout)["rows"]
    return {row["test"]: row.get("decode_tok_s") or row["prefill_tok_s"] for row in rows}


def show(rounds: list[list[Rates]], asked: argparse.Namespace) -> bool:
    """Print a line for each test; whether one is too slow."""
    print(f"{'tokens/s':20}{asked.before:>14}{'now':>10}   ratio (smallest to largest)")
    slower = False
    for test in rounds[0][0]:
        ratios = [now[test] / before[test] for before, now in rounds]
        slower |= median(ratios) < asked.least
        before, now = (median(one[which][test] for one in rounds) for which in (0, 1))
        print(f"{test:20}{before:14.1f}{now:10.1f}   {median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
    return slower


if __name__ == "__main__":
    sys.exit(main())
