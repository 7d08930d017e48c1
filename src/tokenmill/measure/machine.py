"""The limits of this machine: read bandwidth and arithmetic, measured with torch's own large kernels.

Looked-up figures say nothing about the machine at hand, and shared machines change within seconds; so the limits are
measured and kept for a day, and a quick bandwidth probe beside every measurement shows how busy the machine was then.
On 2 Zen 4 cores these probes reach what hand-written ones do: a sum reads 33 to 63 GB/s, matrix products reach
0.2 TFLOP/s in float32, 0.45 in bfloat16 and 0.9 Top/s in int8.
"""

import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import cache
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor

from tokenmill.hub.download import cache_folder
from tokenmill.kernels.threads import torch_threads

FRESH_S = 24 * 3600
CACHED_BYTES, FAR_BYTES = 8 * 2**20, 256 * 2**20  # inside and beyond a last-level cache
PROBE_BYTES = 128 * 2**20


@dataclass(frozen=True)
class Limits:
    """Best of several runs on one device with `threads` CPU threads. A figure that the device has not is None."""

    device: str
    processor: str
    cores: int
    threads: int
    read_gb_s: float
    read_1_thread_gb_s: float | None
    cached_read_gb_s: float
    cached_read_1_thread_gb_s: float | None
    float32_gflop_s: float
    bfloat16_gflop_s: float
    int8_gop_s: float | None
    copy_to_device_gb_s: float | None = None
    copy_from_device_gb_s: float | None = None
    measured_at: float = 0.0

    def flop_s(self, dtype: str, integer: bool = False) -> float:
        """Peak of matrix products in that dtype, or of bytes, per second. float16 counts as bfloat16 on a GPU; a CPU
        multiplies it as float32.

        At least the rate of float32, which holds the products of both: on a processor without instructions for them
        torch's own products of bfloat16 and of bytes are a hundred times slower than widening the numbers first.
        """
        rates = [self.float32_gflop_s]
        plain = ("float32", "float16") if self.device == "cpu" else ("float32",)
        rates += [self.bfloat16_gflop_s] if dtype not in plain and not integer else []
        rates += [self.int8_gop_s] if integer and self.int8_gop_s is not None else []
        return 1e9 * max(rates)


def limits(device: torch.device, threads: int, again: bool = False) -> Limits:
    """This machine's limits: from the cache folder when they are of today, else measured and kept there."""
    file = _file(device, threads)
    if not again and (known := _read(file)) is not None:
        return known
    found = measure(device, threads)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(asdict(found)), encoding="utf-8")
        partial.replace(file)
    except OSError:
        pass  # a cache that cannot be written costs the next start a few seconds, nothing else
    return found


def measure(device: torch.device, threads: int) -> Limits:
    """Measure now; about 3 seconds on a CPU, 600 MB of memory while it lasts."""
    on_cpu = device.type == "cpu"
    with torch_threads(1):
        single = (_read_rate(device, CACHED_BYTES), _read_rate(device, FAR_BYTES)) if on_cpu else (None, None)
    with torch_threads(threads):
        return Limits(
            device=str(device),
            processor=processor() if on_cpu else torch.cuda.get_device_name(device),
            cores=os.cpu_count() or 1,
            threads=threads,
            read_gb_s=_read_rate(device, FAR_BYTES if on_cpu else 8 * FAR_BYTES),
            read_1_thread_gb_s=single[1],
            cached_read_gb_s=_read_rate(device, CACHED_BYTES),
            cached_read_1_thread_gb_s=single[0],
            float32_gflop_s=_product_rate(device, torch.float32),
            bfloat16_gflop_s=_product_rate(device, torch.bfloat16),
            int8_gop_s=_int8_rate() if on_cpu else None,
            copy_to_device_gb_s=None if on_cpu else _copy_rate(torch.device("cpu"), device),
            copy_from_device_gb_s=None if on_cpu else _copy_rate(device, torch.device("cpu")),
            measured_at=time.time(),
        )


def quick_probe() -> float:
    """Read bandwidth of this moment in GB/s, with torch's threads, beyond the caches: about 20 ms.

    The buffer goes away again, so that it is not counted as the model's memory.
    """
    return _read_rate(torch.device("cpu"), PROBE_BYTES, repeats=3)


@cache
def processor() -> str:
    """Return the processor's name as the system gives it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@cache
def instruction_sets() -> str:
    """Return the instruction sets that torch may use, in torch's own word: AVX512, AVX2, NEON, DEFAULT, …"""
    return str(torch.backends.cpu.get_cpu_capability())


def _file(device: torch.device, threads: int) -> Path:
    which = f"{processor()} {os.cpu_count()} {threads} {device} {torch.__version__} {platform.node()}"
    return cache_folder() / "machine" / f"{sha256(which.encode()).hexdigest()[:16]}.json"


def _read(file: Path) -> Limits | None:
    """Read the kept limits, unless they are old, damaged, or of another version of this class."""
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        if set(values) != {field.name for field in fields(Limits)}:
            return None
        found = Limits(**values)
        return found if 0 <= time.time() - found.measured_at < FRESH_S else None
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def _best_s(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Time the fastest of several runs, after one that does not count."""
    best = float("inf")
    for number in range(repeats + 1):
        started_s = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if number:
            best = min(best, time.perf_counter() - started_s)
    return best


def _read_rate(device: torch.device, num_bytes: int, repeats: int = 8) -> float:
    buffer = torch.ones(num_bytes // 4, device=device)
    return num_bytes / _best_s(buffer.sum, device, repeats if num_bytes > CACHED_BYTES else 4 * repeats) / 1e9


def _product_rate(device: torch.device, dtype: torch.dtype) -> float:
    size = 1536 if device.type == "cpu" else 8192
    left = torch.randn(size, size, device=device).to(dtype)
    right = torch.randn(size, size, device=device).to(dtype)
    return 2 * size**3 / _best_s(lambda: left @ right, device, 4) / 1e9


def _int8_rate() -> float | None:
    size = 2048
    left, right = (torch.randint(-99, 99, (size, size), dtype=torch.int8) for _ in range(2))
    try:
        return 2 * size**3 / _best_s(lambda: torch._int_mm(left, right), torch.device("cpu"), 4) / 1e9
    except (RuntimeError, NotImplementedError):  # no int8 product on this processor
        return None


def _copy_rate(source: torch.device, target: torch.device) -> float:
    buffer: Tensor = torch.ones(FAR_BYTES // 4, device=source)
    buffer = buffer.pin_memory() if source.type == "cpu" else buffer
    place = torch.empty(buffer.shape, device=target, pin_memory=target.type == "cpu")
    device = source if source.type == "cuda" else target
    return FAR_BYTES / _best_s(lambda: place.copy_(buffer, non_blocking=True), device, 5) / 1e9
