"""The row of a point from its repetitions: medians, rates, and shares of the machine's lower bound."""

from collections.abc import Sequence
from typing import Any

from tokenmill.bench.points import Point
from tokenmill.bench.rows import VERSION, provenance
from tokenmill.bench.run import Measured
from tokenmill.engine.engine import Engine
from tokenmill.kernels.threads import default_threads
from tokenmill.measure.cost import Storage, Traffic, decode_traffic, prefill_traffic
from tokenmill.measure.machine import Limits
from tokenmill.measure.statistics import Spread, percentile

TEXT_TOKENS = 12
UNSTEADY, UNSTEADY_PROBE = 1.15, 1.3  # slowest over fastest repetition, or probe: more is called noisy


def row_of(measured: Measured, engine: Engine, limits: Limits, load_s: float, label: str, kind: str) -> dict[str, Any]:
    """Compute every column of one point that was measured."""
    point = measured.point
    return {
        "version": VERSION,
        "kind": kind,
        "test": point.title,
        "label": label,
        **settings_of(engine),
        **point_columns(point),
        "status": "ok" if measured.repeats else "failed",
        "reason": "" if measured.repeats else "the prompts of the first repetition, run again, gave other tokens",
        "repetitions": len(measured.samples),
        **figures_of(measured),
        **engine.core.speculation.stats.columns,
        **_against_the_machine(measured, engine, limits),
        "noisy": is_noisy(measured),
        "load_s": load_s,
        "compile_s": engine.core.loaded.program.compile_s,
        "warmup_s": measured.warmup_s,
        **_memory(measured, engine),
        "hash": measured.samples[0].hash,
        "text": _text(engine, measured.samples[0].tokens[: min(max(point.new, 1), TEXT_TOKENS)]),
        **provenance(),
        "itl_ms": [round(1e3 * gap, 4) for sample in measured.samples for gap in sample.itl_s],
    }


def _text(engine: Engine, tokens: Sequence[int]) -> str | None:
    return None if engine.tokenizer is None else engine.tokenizer.decode(list(tokens))


def settings_of(engine: Engine) -> dict[str, Any]:
    """Return the settings of the engine, as they were resolved."""
    config = engine.config
    names = "dtype scheme cache cache_format speculate device block_size".split()
    settings = {name: getattr(config, name) for name in names}
    settings["threads"] = config.threads or default_threads()
    return {"model": config.model, "program": engine.program_name, "kernel": engine.kernel_name, **settings}


def point_columns(point: Point) -> dict[str, int]:
    """Return the columns of the point itself."""
    return {"batch": point.batch, "prompt": point.prompt, "new": point.new, "depth": point.depth}


def figures_of(measured: Measured) -> dict[str, Any]:
    """Compute times and rates; the figures of a phase that the point does not have are None."""
    point, samples = measured.point, measured.samples
    total = Spread.of([sample.total_s for sample in samples])
    gaps_ms = [1e3 * gap for sample in samples for gap in sample.itl_s]
    found: dict[str, Any] = {
        "ttft_ms": 1e3 * Spread.of([max(sample.ttft_s) for sample in samples]).median,
        **{f"itl_p{percent}_ms": percentile(gaps_ms, percent) for percent in (50, 90, 99)},
        "total_s": total.median,
        "sequences_s": point.batch / total.median,
        "tok_s": point.batch * max(point.new, 1) / total.median,
    }
    if point.prompt:
        found |= Spread.of([1e3 * sample.prefill_s for sample in samples]).columns("prefill_ms")
        found["prefill_tok_s"] = Spread.of([s.prefill_tokens / s.prefill_s for s in samples]).median
    if samples[0].decode_steps:
        step_ms = [1e3 * sample.decode_s / sample.decode_steps for sample in samples]
        rates = [sample.decode_tokens / sample.decode_s for sample in samples]
        found |= Spread.of(step_ms).columns("decode_ms") | Spread.of(rates).columns("decode_tok_s")
        found["decode_ms_per_token"] = 1e3 / found["decode_tok_s"]
        found["decode_batches_s"] = 1e3 / found["decode_ms"]
        found["accepted_per_step"] = samples[0].decode_tokens / samples[0].decode_steps / point.batch
    return found


def is_noisy(measured: Measured) -> bool:
    """Tell whether repetitions or probes lie so far apart that one should look twice."""
    totals = Spread.of([sample.total_s for sample in measured.samples])
    probes = Spread.of(measured.probes_gb_s)
    return totals.max > UNSTEADY * totals.min or probes.max > UNSTEADY_PROBE * probes.min


def _against_the_machine(measured: Measured, engine: Engine, limits: Limits) -> dict[str, Any]:
    """Compute bytes and operations per second, and the share of the floor.

    The bandwidth is the better of the kept limit and of the probes beside: shared machines change within seconds.
    """
    point, storage, model = measured.point, Storage.of_engine(engine), engine.model_config
    probe = Spread.of(measured.probes_gb_s)
    read_gb_s, peak = max(limits.read_gb_s, probe.max), limits.flop_s(storage.dtype, storage.integer)
    found = {"machine_read_gb_s": read_gb_s, "machine_gflop_s": peak / 1e9, "probe_gb_s": probe.median}
    figures = figures_of(measured)
    if point.prompt:
        traffic = prefill_traffic(model, storage, point.batch, point.prompt, point.depth)
        found |= _shares("prefill", traffic, figures["prefill_ms"], read_gb_s, peak)
    if "decode_ms" in figures:
        depth = point.num_fed + point.new / 2
        traffic = decode_traffic(model, storage, point.batch, depth, engine.config.cache)
        found |= _shares("decode", traffic, figures["decode_ms"], read_gb_s, peak)
    return found


def _shares(phase: str, traffic: Traffic, took_ms: float, read_gb_s: float, peak: float) -> dict[str, float]:
    floor_ms = 1e3 * traffic.floor_s(1e9 * read_gb_s, peak)
    return {
        f"{phase}_gb_s": traffic.read_bytes / took_ms / 1e6,
        f"{phase}_gflop_s": traffic.operations / took_ms / 1e6,
        f"{phase}_floor_ms": floor_ms,
        f"{phase}_floor_share": floor_ms / took_ms,
    }


def _memory(measured: Measured, engine: Engine) -> dict[str, float | None]:
    point, resolved = measured.point, engine.core.loaded.resolved
    rows = min(point.length, resolved.window.max_blocks(point.length) * resolved.cache.block_size)
    used = point.batch * rows * resolved.cache.bytes_per_token
    return {
        "weights_mb": engine.memory["weights_bytes"] / 1e6,
        "cache_mb": engine.memory["cache_bytes"] / 1e6,
        "cache_used_mb": used / 1e6 if engine.config.cache else 0.0,
        "peak_mb": measured.peak_bytes / 1e6 or None,
    }
