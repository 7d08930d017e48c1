"""The cost card: what a model must move and compute, what this machine can, and the lower bound that follows.

It is printed before anything is measured, so that every figure after it can be judged.
"""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from tokenmill.bench.points import Point
from tokenmill.kernels.native_library import usable_build
from tokenmill.loader.resolve import resolve
from tokenmill.measure.cost import Storage, decode_traffic, head_share, kv_bytes, prefill_traffic
from tokenmill.measure.machine import Limits, instruction_sets
from tokenmill.model.config import ModelConfig
from tokenmill.model.counts import count_parameters
from tokenmill.settings.engine_config import EngineConfig

MAX_FLOORS = 6  # that people are shown


def card_of(
    config: EngineConfig, model: ModelConfig, limits: Limits, points: Iterable[Point], file_bytes: int = 0
) -> dict[str, Any]:
    """Compute parameters, traffic per token, the machine's limits, and each point's floor in tokens per second."""
    resolved = resolve(config, model)
    storage = Storage.planned(resolved, file_bytes)
    dtype, read = resolved.config.dtype, 1e9 * limits.read_gb_s
    peak = limits.flop_s(dtype, storage.integer)
    decode = decode_traffic(model, storage, 1, 0)
    return {
        "model": config.model,
        "dtype": dtype,
        "parameters": sum(count_parameters(model).values()),
        "bytes_read_per_token": decode.read_bytes,
        "head_share": head_share(model),
        "cache_bytes_per_token": kv_bytes(model, dtype, config.cache_format),
        "operations_per_token": decode.operations,
        "machine": {**asdict(limits), "instructions": instruction_sets(), "build": usable_build()},
        "floor_tok_s": {point.title: _floor(model, storage, config.cache, point, read, peak) for point in points},
    }


def card_rows(card: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the card's lines for people."""
    machine = card["machine"]
    cached = f", {machine['cached_read_gb_s']:.0f} within the cache" if machine["device"] == "cpu" else ""
    rates = [f"{machine['float32_gflop_s']:,.0f} float32", f"{machine['bfloat16_gflop_s']:,.0f} bfloat16"]
    rates += [f"{machine['int8_gop_s']:,.0f} int8"] if machine["int8_gop_s"] else []
    build = "" if machine["build"] is None else f", native build {machine['build']}"
    floors = [f"{name} {rate:,.0f}" for name, rate in card["floor_tok_s"].items()]
    more = f" and {len(floors) - MAX_FLOORS} more in --json" if len(floors) > MAX_FLOORS else ""
    return [
        ("parameters", f"{card['parameters'] / 1e6:,.1f} M in {card['dtype']}"),
        (
            "read per token",
            f"{card['bytes_read_per_token'] / 1e6:,.1f} MB of weights, {card['head_share']:.0%} of them for the head",
        ),
        ("cache per token", f"{card['cache_bytes_per_token'] / 1e3:,.1f} kB"),
        ("operations per token", f"{card['operations_per_token'] / 1e6:,.0f} M"),
        ("this machine", f"{machine['processor']}, {machine['threads']} threads, {machine['instructions']}{build}"),
        ("it reads", f"{machine['read_gb_s']:.1f} GB/s{cached}"),
        ("it computes", f"{', '.join(rates)} GFLOP/s"),
        ("floor, tokens per second", ", ".join(floors[:MAX_FLOORS]) + more),
    ]


def _floor(model: ModelConfig, storage: Storage, cache: bool, point: Point, read: float, peak: float) -> float:
    """Compute the tokens per second that nothing here can exceed: of generation, or of prefill if there is none."""
    if point.new:
        depth = point.num_fed + point.new / 2
        return point.batch / decode_traffic(model, storage, point.batch, depth, cache).floor_s(read, peak)
    traffic = prefill_traffic(model, storage, point.batch, point.prompt, point.depth)
    return point.batch * point.prompt / traffic.floor_s(read, peak)
