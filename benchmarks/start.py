"""The time from the start of a process to its first token: a model, its packed file, and importing torch alone.

Run: python benchmarks/start.py [MODEL] [ROUNDS]. All three in turn; medians, with the smallest and largest.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def first_byte(command: list[str]) -> float:
    """Seconds until `command` prints something."""
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        if not process.stdout.read(1):
            raise RuntimeError(f"{command} printed nothing")
        taken = time.perf_counter() - start
        process.stdout.read()
    return taken


def main(model: str, rounds: int) -> None:
    """Print the table."""
    script = str(Path(sys.executable).with_name("tokenmill"))
    generate = [script, "generate", "-p", "The sea", "-n", "8", "--quiet"]
    with tempfile.TemporaryDirectory() as folder:
        packed = f"{folder}/model.packed"
        subprocess.run([script, "pack", model, "-o", packed, "--quiet"], check=True, stdout=subprocess.DEVNULL)
        commands = {
            "import torch": [sys.executable, "-c", "import torch; print('.', flush=True)"],
            "packed": [*generate, packed],
            "model": [*generate, model],
        }
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(rounds):
            for name, command in commands.items():
                times[name].append(first_byte(command))
    torch = statistics.median(times["import torch"])
    for name, taken in times.items():
        median = statistics.median(taken)
        print(f"{name:14s}{median:6.2f} s  {min(taken):.2f} to {max(taken):.2f}  {median / torch:.2f} x import torch")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m", int(sys.argv[2]) if len(sys.argv) > 2 else 7)
