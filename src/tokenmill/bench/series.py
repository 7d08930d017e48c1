"""A series of points: engines made for them, refusals and failures marked, a row for each, one after the other.

One engine serves all points of a batch size; where it does not fit, each point gets its own engine, so that a point
that is too large costs only itself.
"""

import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as List
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch

from tokenmill.bench.figures import point_columns, row_of
from tokenmill.bench.golden import check_text, reference_for
from tokenmill.bench.points import Point
from tokenmill.bench.rows import VERSION, provenance
from tokenmill.bench.run import Measured, chunk_for, measure_point
from tokenmill.bench.shapes import Shape
from tokenmill.engine.engine import Engine
from tokenmill.engine.load import load_checkpoint
from tokenmill.errors import CapacityError, ConfigError, TokenmillError
from tokenmill.hub.progress import Progress
from tokenmill.kernels.devices import find_device, free_bytes
from tokenmill.kernels.threads import default_threads
from tokenmill.loader.resolve import resolve
from tokenmill.measure.cost import cost_of
from tokenmill.measure.machine import Limits, limits, quick_probe
from tokenmill.measure.memory import peak_bytes, reset_peak
from tokenmill.model.families import read_config
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.units import counted
from tokenmill.weights.checkpoint import Checkpoint

SHORTEST = 64  # enough for the texts that are checked


@dataclass
class Series:
    """Points of one model. `repetitions` of each; `check` compares the text of every engine with the reference."""

    checkpoint: Checkpoint
    progress: Progress
    repetitions: int = 3
    check: bool = True
    kind: str = "bench"
    probe: Callable[[], float] | None = None
    _limits: Limits | None = None
    _done: int = 0
    _total: int = 0

    def rows(self, points: List[Point], config: EngineConfig, label: str = "") -> Iterator[dict[str, Any]]:
        """Yield one row for each point, small batches first. WrongText when an engine does not say what it must."""
        self._done, self._total = 0, len(points) * (self.repetitions + 2)
        ordered = sorted(points, key=lambda point: point.batch)
        for _, group in groupby(ordered, key=lambda point: (point.batch, chunk_for(point, config.max_step_tokens))):
            members = list(group)
            for together in [members] if self._fits(members, config) else [[point] for point in members]:
                yield from self._run(together, config, label)

    def limits(self, config: EngineConfig) -> Limits:
        """Measure the limits of the device and the threads that the engines use."""
        device, threads = torch.device(find_device(config.device)), config.threads or default_threads()
        threads *= config.tensor_parallel if config.threads else 1
        if self._limits is None or (self._limits.device, self._limits.threads) != (str(device), threads):
            self.progress.stage(f"measuring what this machine can do ({device}, {counted(threads, 'thread')})")
            self._limits = limits(device, threads)
        return self._limits

    def _fits(self, points: List[Point], config: EngineConfig) -> bool:
        try:
            self._check_memory(self._config_for(points, config))
        except TokenmillError:
            return False
        return True

    def _run(self, points: List[Point], config: EngineConfig, label: str) -> Iterator[dict[str, Any]]:
        """Yield the rows of points that share an engine."""
        self.progress.stage(f"loading{f' for {label}' if label else ''}")
        try:
            started_s = time.perf_counter()
            engine = self._engine(self._config_for(points, config))
            load_s = time.perf_counter() - started_s
            checked = self._check(engine)
            machine = self.limits(engine.config)
        except (TokenmillError, MemoryError, RuntimeError) as error:
            for point in points:
                yield self._marked(point, config, label, error)
            return
        for point in points:
            self.progress.stage(f"{label or 'measuring'} {point.title}")
            self.progress.advance(self._done, self._total)
            try:
                measured = self._measure(engine, point, machine)
                row = row_of(measured, engine, machine, load_s, label, self.kind)
                yield {**row, "text_check": checked}
            except (TokenmillError, MemoryError, RuntimeError) as error:
                yield self._marked(point, engine.config, label, error)

    def _measure(self, engine: Engine, point: Point, machine: Limits) -> Measured:
        on_cpu = engine.config.device == "cpu"
        return measure_point(
            engine,
            point,
            self.repetitions,
            probe=self.probe or (quick_probe if on_cpu else lambda: machine.read_gb_s),
            before_each=reset_peak if on_cpu else torch.cuda.reset_peak_memory_stats,
            peak=peak_bytes if on_cpu else torch.cuda.max_memory_allocated,
            advance=self._advance,
        )

    def _advance(self) -> None:
        self._done += 1
        self.progress.advance(self._done, self._total)

    def _config_for(self, points: List[Point], config: EngineConfig) -> EngineConfig:
        for point in points:
            if point.prompt and point.depth and point.batch > 1:
                allowed = "0 for prefill in batches: the depth of one sequence would mix with the prompt of another"
                raise ConfigError("--depth", point.depth, allowed)
        length, batch = max(SHORTEST, *(point.length for point in points)), points[0].batch
        chunk = max(chunk_for(points[0], config.max_step_tokens), batch)
        if not config.cache:
            chunk = max(chunk, batch * length)  # a step computes everything of everyone
        length = config.max_length or length
        return replace(config, max_length=length, max_sequences=batch, max_step_tokens=chunk, prefix_cache=False)

    def _check_memory(self, config: EngineConfig) -> None:
        """Raise CapacityError when the planner says that it cannot fit, before the system kills us for trying."""
        resolved = resolve(config, read_config(self.checkpoint.config))
        needed, available = cost_of(resolved).total_bytes, free_bytes(resolved.config.device)
        if needed > available:
            raise CapacityError("memory", needed, available, "batch, prompt or new tokens", in_bytes=True)

    def _engine(self, config: EngineConfig) -> Engine:
        self._check_memory(config)
        return load_checkpoint(self.checkpoint, config, self.progress.advance)

    def _check(self, engine: Engine) -> str:
        if isinstance(self.checkpoint, Shape):
            return "none: random weights"
        reference = reference_for(self.checkpoint.path)
        if reference is None:
            return "none: no reference for this model"
        if not self.check:
            return "off"
        self.progress.stage("comparing the text with transformers'")
        return check_text(engine, reference)

    def _marked(self, point: Point, config: EngineConfig, label: str, error: Exception) -> dict[str, Any]:
        """Return a row that says why there are no figures."""
        memory = isinstance(error, MemoryError | CapacityError | torch.OutOfMemoryError) or "allocat" in str(error)
        status = "out of memory" if memory else "refused" if isinstance(error, TokenmillError) else "failed"
        names = "model program kernel scheme dtype cache cache_format speculate device threads block_size".split()
        return {
            "version": VERSION,
            "kind": self.kind,
            "test": point.title,
            "label": label,
            **{name: getattr(config, name) for name in names},
            **point_columns(point),
            "status": status,
            "reason": " ".join(str(error).split())[:300] or type(error).__name__,
            **provenance(),
        }
