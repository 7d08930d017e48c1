"""Whole processes that load a model and generate: the first time, from the packed copy, and without one.

Run: python benchmarks/loads.py FILE... [--rounds 7] [--new 1] [--peer PYTHON] [--cold]

In each round, one after the other, for each file: a first load into an empty cache folder, a second start from the
copy, and one with --no-packed-cache; beside them `import torch` alone and, with --peer, llama.cpp (the Python of an
environment with the xllamacpp wheel). Medians over the rounds of seconds, of processor time, which other programs
change less, and of the largest resident memory. --cold takes the files out of the system's page cache before each
process. At last the memory of one process and of two, that
of shared pages divided among those that share them, and tokens per second of both ways.
"""

import argparse
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path

import tokenmill

PROMPT, NEW = "The sea", 48
Figures = tuple[float, float, int]  # of a process: seconds, seconds of processor time, bytes of memory at its peak
TORCH = [sys.executable, "-c", "import torch"]
PEER = """
import sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel, params.warmup = sys.argv[1], 256, 1, False
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(sys.argv[3])
server = xllamacpp.Server(params)
request = {"prompt": sys.argv[2], "n_predict": int(sys.argv[4]), "temperature": 0.0, "ignore_eos": True}
server.handle_completions(request, lambda piece: None)
"""
WAITING = """
import sys, tokenmill
engine = tokenmill.load(sys.argv[1], max_length=256)
engine.generate("The sea", max_new_tokens=8, ignore_eos=True)
print("ready", flush=True)
sys.stdin.read()
"""


def run(command: list[str], cache: Path, uncached: list[Path]) -> Figures:
    """The figures of a process; uncached: files that it finds on disk alone."""
    for file in uncached:
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    begun_s = time.perf_counter()
    child = subprocess.Popen(
        command,
        env={**os.environ, "TOKENMILL_CACHE": str(cache)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    said = child.stderr.read() if child.stderr else b""
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)}: {said.decode()[-500:]}")
    return time.perf_counter() - begun_s, usage.ru_utime + usage.ru_stime, 1024 * usage.ru_maxrss


def generate(file: Path, options: argparse.Namespace, *more: str) -> list[str]:
    command = [sys.executable, "-m", "tokenmill", "generate", str(file), "-p", PROMPT, "-n", str(options.new), "-q"]
    return [*command, "--ignore-eos", "--max-length", "256", "--threads", str(options.threads), *more]


def one_round(options: argparse.Namespace, cache: Path, number: int) -> Iterator[tuple[str, Figures]]:
    """The name of each process, and its figures. The order is turned round in every other round."""
    jobs = [("import torch", TORCH, cache)]
    for file in options.files:
        new = cache.with_name(f"new-{file.name}")
        shutil.rmtree(new, ignore_errors=True)
        jobs.append((f"{file.name}: first load", generate(file, options), new))
        jobs.append((f"{file.name}: from the copy", generate(file, options), cache))
        jobs.append((f"{file.name}: without a copy", generate(file, options, "--no-packed-cache"), cache))
        if options.peer:
            given = [str(file), PROMPT, str(options.threads), str(options.new)]
            jobs.append((f"{file.name}: llama.cpp", [options.peer, "-c", PEER, *given], cache))
    for name, command, folder in jobs[:: -1 if number % 2 else 1]:
        cold = [*options.files, *folder.glob("packed/*.packed")] if options.cold else []
        yield name, run(command, folder, cold)


def show(found: dict[str, list[Figures]]) -> None:
    torch_s = statistics.median(seconds for seconds, *_ in found["import torch"])
    width = max(map(len, found))
    print(f"{'':{width}} {'s':>6} {'least':>6} {'most':>6} {'of import torch':>15} {'processor s':>11} {'peak MB':>8}")
    for name, figures in found.items():
        seconds = [each for each, *_ in figures]
        middle, busy, peak = map(statistics.median, zip(*figures, strict=True))
        spread = f"{min(seconds):>6.2f} {max(seconds):>6.2f}"
        print(f"{name:{width}} {middle:>6.2f} {spread} {middle / torch_s:>15.2f} {busy:>11.2f} {peak / 1e6:>8.0f}")


# ---- memory of two processes, and speed


def proportional_bytes(child: "subprocess.Popen[str]") -> int:
    """Resident memory, in which a page that several processes share counts by its share."""
    for line in Path(f"/proc/{child.pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
        if line.startswith("Pss:"):
            return 1024 * int(line.split()[1])
    raise SystemExit("this system does not tell how much of its memory a process shares")


@contextmanager
def waiting(file: Path, cache: Path) -> "Iterator[subprocess.Popen[str]]":
    """A process that has generated and holds its model."""
    command, environment = [sys.executable, "-c", WAITING, str(file)], {**os.environ, "TOKENMILL_CACHE": str(cache)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdout and child.stdin
        child.stdout.readline()
        yield child
        child.stdin.close()


def show_sharing(file: Path, cache: Path) -> None:
    with ExitStack() as processes:
        children = [processes.enter_context(waiting(file, cache))]
        alone = proportional_bytes(children[0])
        children.append(processes.enter_context(waiting(file, cache)))
        both = sum(map(proportional_bytes, children))
    print(f"{file.name}: one process {alone / 1e6:.0f} MB, two {both / 1e6:.0f} MB: {both / alone:.2f} times")


def show_speed(file: Path, cache: Path, rounds: int, threads: int) -> None:
    """Tokens per second from the copy over those from memory of this process."""
    os.environ["TOKENMILL_CACHE"] = str(cache)
    settings = {"max_length": 256, "threads": threads, "speculate": "multi_step", "prefix_cache": False}
    engines = [tokenmill.load(file, packed_cache=packed, **settings) for packed in (False, True)]
    ratios, texts = [], set()
    for number in range(8 * rounds):  # short ones, because the speed of a shared machine changes within seconds
        rates = [0.0, 0.0]
        for which in ((0, 1), (1, 0))[number % 2]:
            begun_s = time.perf_counter()
            done = engines[which].generate(PROMPT, max_new_tokens=NEW, ignore_eos=True)
            rates[which] = NEW / (time.perf_counter() - begun_s)
            texts.add(done.hash)
        ratios.append(rates[1] / rates[0])
    said = "equal texts" if len(texts) == 1 else "TEXTS DIFFER"
    print(
        f"{file.name}: tokens/s from the copy over those from its own memory: {statistics.median(ratios):.3f}, {said}"
    )
    if len(texts) > 1:
        raise SystemExit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--new", type=int, default=1, help="tokens that each process generates")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--peer", help="a Python that has xllamacpp")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--no-extras", action="store_true", help="only the processes")
    options = parser.parse_args()
    print(f"torch {version('torch')}, Python {platform.python_version()}, {options.threads} threads, ", end="")
    print(f"{options.rounds} rounds, {options.new} new tokens{', page cache cold' if options.cold else ''}", flush=True)
    found: dict[str, list[Figures]] = defaultdict(list)
    with tempfile.TemporaryDirectory(dir=Path.home() / ".cache") as folder:
        cache = Path(folder) / "cache"
        for file in options.files:
            run(generate(file, options), cache, [])  # makes the copy
            run(generate(file, options), cache, [])
        time.sleep(1.1)  # until a copy that was verified is remembered
        for file in options.files:
            run(generate(file, options), cache, [])
        for number in range(options.rounds):
            for name, figures in one_round(options, cache, number):
                found[name].append(figures)
        show(found)
        for file in () if options.no_extras else options.files:
            show_sharing(file, cache)
            show_speed(file, cache, options.rounds, options.threads)


if __name__ == "__main__":
    main()
