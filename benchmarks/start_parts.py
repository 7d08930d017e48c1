"""The imports and work of `tokenmill generate` until its first text is printed, as a table in markdown.

Run: python benchmarks/start_parts.py [MODEL] [--rounds 7] [options of `tokenmill generate`]

Each round starts the real process twice: as it is, and with the probes of start_probes.py. They
time each import and each step of its table, without the imports and steps within it. Times are medians over the
rounds, up to the first byte on stdout; the row "not attributed" is what the others leave of the total. A process that
only imports torch is timed in each round as well. The packed copy is made before the first round.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from start_probes import IMPORTS, REST, START, STEPS

PROMPT, NEW = "The sea", "20"
PROBES = Path(__file__).with_name("start_probes.py")
TOTAL, TORCH = "total", "a process that only imports torch"


def seconds_of(command: list[str]) -> float:
    """The seconds from a command's start to its first byte on stdout, or to its end if it prints nothing."""
    started_s = time.monotonic()
    told = [str(started_s) if word == "NOW" else word for word in command]
    with subprocess.Popen(told, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stderr is not None
        child.stdout.read(1)
        taken_s = time.monotonic() - started_s
        child.stdout.read()
        said = child.stderr.read()
    if child.returncode:
        raise SystemExit(f"{' '.join(command)}: {said.decode()[-500:]}")
    return taken_s


def measure(generate: list[str], rounds: int, folder: Path) -> dict[str, list[float]]:
    """Seconds by row, one for each round; "" is the process without probes, and `import torch` is that alone."""
    found = defaultdict[str, list[float]](list)
    report = folder / "report.json"
    commands = {
        "": [sys.executable, "-m", "tokenmill", *generate],
        TOTAL: [sys.executable, str(PROBES), "NOW", str(report), *generate],
        TORCH: [sys.executable, "-c", "import torch; print('.', flush=True)"],
    }
    for number in range(rounds):
        for name in list(commands)[:: -1 if number % 2 else 1]:
            found[name].append(seconds_of(commands[name]))
        for row, seconds in json.loads(report.read_text(encoding="utf-8")).items():
            found[row].append(seconds)
    return found


def rows_of(found: dict[str, list[float]]) -> list[tuple[str, float]]:
    """The table: imports, the costliest first, then steps; what is left of the total; the total."""
    medians = {name: statistics.median(seconds) for name, seconds in found.items()}
    imports = sorted((name for name in found if name.startswith(IMPORTS)), key=lambda name: -medians[name])
    shown = [START, *(name for name in imports if medians[name] >= 0.002)]
    rows = [(name, medians[name]) for name in shown]
    if small := [medians[name] for name in imports if name not in shown]:
        rows.append((f"{IMPORTS}{len(small)} packages of less than 2 ms", sum(small)))
    rows += [(name, medians[name]) for name in STEPS.values() if name in medians]
    rows.append((REST, medians[TOTAL] - sum(seconds for _, seconds in rows)))
    return [*rows, (TOTAL, medians[TOTAL])]


def show(found: dict[str, list[float]], rounds: int) -> None:
    from importlib.metadata import version

    packages = ("torch", "numpy", "tokenizers", "tokenmill")
    print(f"Python {platform.python_version()}, {', '.join(f'{name} {version(name)}' for name in packages)}; ", end="")
    print(f"{os.cpu_count()} cores, medians of {rounds}\n\n| until the first text | ms | share |\n|---|---|---|")
    rows = rows_of(found)
    for name, seconds in rows:
        print(f"| {name} | {1000 * seconds:.0f} | {100 * seconds / rows[-1][1]:.1f} % |")
    plain_s, torch_s = (statistics.median(found[name]) for name in ("", TORCH))
    print(f"\nWithout probes: {1000 * plain_s:.0f} ms ({_spread(found[''])}), which is ", end="")
    print(f"{plain_s / torch_s:.2f} times what {TORCH} takes: {1000 * torch_s:.0f} ms ({_spread(found[TORCH])})")


def _spread(seconds: list[float]) -> str:
    return f"{1000 * min(seconds):.0f} to {1000 * max(seconds):.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--rounds", type=int, default=7)
    options, more = parser.parse_known_args()
    generate = ["generate", options.model, "-p", PROMPT, "-n", NEW, *more]
    for _ in range(2):  # makes the copy; then verifies it
        seconds_of([sys.executable, "-m", "tokenmill", *generate])
    with tempfile.TemporaryDirectory() as folder:
        show(measure(generate, options.rounds, Path(folder)), options.rounds)


if __name__ == "__main__":
    main()
