"""`tokenmill plan`: will it fit, before anything is loaded."""

import sys
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tokenmill.cli.models import load_engine, read_model_config
from tokenmill.cli.parser.command import Context
from tokenmill.cli.parser.options import JSON, MODEL_NAME, OUTPUT, QUIET, option
from tokenmill.cli.process.display import echo, print_json, print_table, progress_on_stderr, remark
from tokenmill.cli.serve.named import serves_several, wanted_models
from tokenmill.cli.serve.shares import MEMORY, MORE_MODELS, read_memory, shares_of
from tokenmill.errors import ConfigError
from tokenmill.memory.interrupts import held_interrupts
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.units import size

if TYPE_CHECKING:
    from tokenmill.loader.resolve import ResolvedModel
    from tokenmill.model.config import ModelConfig

TOLD_SHARE = 0.05  # of the head, which is more for large vocabularies and few chosen experts

EXAMPLES = (
    "tokenmill plan",
    "tokenmill plan smollm2-135m --max-length 8192 --max-sequences 16 --dtype float32",
    "tokenmill plan --check",
    "tokenmill plan Qwen/Qwen3-4B Qwen/Qwen3-0.6B --memory 8GB",
)


def command(
    context: Context,
    engine: EngineConfig,
    model: str = MODEL_NAME,
    models: list[str] | None = MORE_MODELS,
    memory: str | None = MEMORY,
    check: bool = option(False, "Load it, and compare with what was allocated.", OUTPUT),
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Say whether a model fits into memory, and how long or how many sequences would.

    Weights and cache are computed exactly from the config; nothing is loaded unless --check asks for it. Exit code 0
    when it fits and 2 when it does not. Of several models it says what `serve` of them would load together.
    """
    if serves_several(context.values):
        if check:
            raise ConfigError("check", check, "one model, without --memory", "--check")
        _plan_several(context, json, quiet)
        return
    wanted = replace(engine, model=model)
    with progress_on_stderr(quiet) as progress:
        model_config = read_model_config(model, progress)
        facts = _plan(wanted, model_config)
        if check:
            facts["allocated"] = load_engine(wanted, progress, writes_text=False).memory
    if json:
        print_json(facts)
    else:
        _show(model, facts)
    if not facts["fits"]:
        sys.exit(2)


def _plan_several(context: Context, json: bool, quiet: bool) -> None:
    """Show what each of several models takes of the memory for all, and whether they stay loaded together."""
    shares, room = shares_of(wanted_models(context), read_memory(context.values["memory"]), quiet)
    total = sum(each.num_bytes for each in shares)
    facts: list[dict[str, Any]] = [
        {
            "name": each.named.name,
            "weights_bytes": each.weights,
            "max_sequences": each.engine.max_sequences,
            "max_length": each.engine.max_length,
            "cache_tokens": each.engine.cache_tokens,
            "total_bytes": each.num_bytes,
        }
        for each in shares
    ]
    if json:
        print_json({"models": facts, "room_bytes": room, "total_bytes": total, "together": total <= room})
        return
    header = ("model", "weights", "sequences", "of tokens", "cache, tokens", "in all")
    rows = [
        (
            *(each["name"], size(each["weights_bytes"]), f"{each['max_sequences']}", f"{each['max_length']:,}"),
            *(f"{each['cache_tokens']:,}", size(each["total_bytes"])),
        )
        for each in facts
    ]
    print_table(f"{len(facts)} models in {size(room)}", rows, header)
    stay = "all stay loaded together" if total <= room else "they are loaded in turns, as requests name them"
    echo(f"{size(total)} in all: {stay}")


def _plan(wanted: EngineConfig, model: "ModelConfig") -> dict[str, Any]:
    with held_interrupts():
        from tokenmill.kernels.devices import free_bytes
        from tokenmill.loader.default_length import follow_context
        from tokenmill.loader.resolve import resolve
        from tokenmill.measure.cost import cost_of, costs_of_ranks, head_share
        from tokenmill.model.per_layer import bytes_in_file
        from tokenmill.weights.adapters.named import adapter_bytes

    adapters = adapter_bytes(wanted)
    wanted, why = follow_context(wanted, lambda given: resolve(given, model))
    resolved = resolve(wanted, model)
    config, cost = resolved.config, cost_of(resolved)
    available = free_bytes(config.device) - adapters
    program = {"name": resolved.program_name, "reason": resolved.program_reason}

    def fits(**changed: Any) -> bool:
        return cost_of(resolve(replace(wanted, **changed), model)).total_bytes <= available

    shortest, most_sequences = wanted.block_size or 1, wanted.max_step_tokens
    return {
        "device": config.device,
        "dtype": config.dtype,
        "scheme": config.scheme,
        "program": {**program, "refusals": dict(resolved.program_refusals)},
        "max_length": config.max_length,
        "why_no_longer": why or None,
        "max_sequences": config.max_sequences,
        "cache_tokens": config.cache_tokens,
        "predicted": {
            "weights_bytes": cost.weights_bytes,
            "cache_bytes": cost.cache_bytes,
            "workspace_bytes": cost.workspace_bytes,
            **({"adapters_bytes": adapters} if adapters else {}),
        },
        "bytes_per_token": cost.bytes_per_token,
        "head_share": head_share(resolved.model),
        "mtp_bytes": _mtp_bytes(wanted.model, resolved),
        "states": {"number": resolved.cache.num_states, "bytes": cost.state_bytes},
        "in_file": dict(zip(("bytes", "bytes_per_token"), bytes_in_file(resolved.model, config.dtype), strict=True)),
        "total_bytes": cost.total_bytes + adapters,
        "ranks": [
            {"weights_bytes": rank.weights_bytes, "cache_bytes": rank.cache_bytes} for rank in costs_of_ranks(resolved)
        ],
        "available_bytes": available + adapters,
        "fits": cost.total_bytes <= available,
        "longest_that_fits": _largest(shortest, model.context, lambda number: fits(max_length=number)),
        "largest_cache_that_fits": cost.tokens_within(available) // config.block_size * config.block_size,
        "most_sequences_that_fit": _largest(1, most_sequences, lambda number: fits(max_sequences=number)),
    }


def _mtp_bytes(model: str, resolved: "ResolvedModel") -> int:
    """Count the bytes of the layer of the model's files that predicts further tokens; 0 where none drafts."""
    from tokenmill.model.families import find_family

    if find_family({"model_type": resolved.model.family}).mtp is None:
        return 0
    with held_interrupts():  # what follows imports torch
        from tokenmill.engine.mtp import planned_mtp
        from tokenmill.hub.names import locate

    return planned_mtp(locate(model), resolved)


def _largest(first: int, last: int, fits: Callable[[int], bool]) -> int:
    """Find the largest number from first to last that fits, as all smaller ones do then; 0 if no number does."""
    found = bisect_left(range(first, last + 1), True, key=lambda number: not fits(number))
    return first + found - 1 if found else 0


def _show(model: str, facts: dict[str, Any]) -> None:
    predicted, allocated = facts["predicted"], facts.get("allocated")
    rows = []
    for name, num_bytes in predicted.items():
        row = [name.removesuffix("_bytes"), size(num_bytes), f"{num_bytes:,}"]
        if allocated is not None:
            is_told = name in allocated and len(facts["ranks"]) == 1
            row.append(f"{allocated[name]:,}" if is_told else "" if name in allocated else "an estimate")
        rows.append(tuple(row))
    rows += _rank_rows(facts["ranks"], allocated)
    filler = ("",) * (allocated is not None)
    if number := (states := facts["states"])["number"]:
        rows.append((f"of the cache, {number} states", size(states["bytes"]), f"{states['bytes']:,}", *filler))
    rows.append(("total", size(facts["total_bytes"]), f"{facts['total_bytes']:,}", *filler))
    rows.append(("available", size(facts["available_bytes"]), f"{facts['available_bytes']:,}", *filler))
    form = f"{facts['dtype']}, scheme {facts['scheme']}, program {facts['program']['name']}"
    title = f"{model} in {form} on {facts['device']}, {facts['max_sequences']} x {facts['max_length']} tokens"
    print_table(title, rows, ("", "size", "bytes", *(["allocated"] if filler else [])), ("size",))
    if facts["head_share"] >= TOLD_SHARE:
        echo(f"{facts['head_share']:.0%} of the weights that a token reads are the head's")
    echo(_verdict(facts))
    if num_bytes := facts["mtp_bytes"]:
        echo(f"{size(num_bytes)} more for the layer that predicts further tokens; without room for it nothing drafts")
    if num_bytes := facts["in_file"]["bytes"]:
        each = size(facts["in_file"]["bytes_per_token"])
        echo(
            f"{size(num_bytes)} of inputs of layers stay in the file, where a token reads a row of {each}: not counted"
        )
    if facts["why_no_longer"]:
        remark(facts["why_no_longer"])


def _rank_rows(ranks: list[dict[str, int]], allocated: dict[str, int] | None) -> list[tuple[str, ...]]:
    """Return weights and cache of each rank, where there are several. allocated: the figures of rank 0."""
    rows = list[tuple[str, ...]]()
    for number, rank in enumerate(ranks if len(ranks) > 1 else []):
        for name, num_bytes in rank.items():
            row = f"rank {number}, {name.removesuffix('_bytes')}", size(num_bytes), f"{num_bytes:,}"
            told = "" if number or allocated is None else f"{allocated[name]:,}"
            rows.append(row if allocated is None else (*row, told))
    return rows


def _verdict(facts: dict[str, Any]) -> str:
    length, sequences = facts["longest_that_fits"], facts["most_sequences_that_fit"]
    if facts["fits"]:
        return (
            f"fits: up to {length} tokens for each of {facts['max_sequences']} (--max-length), or {sequences} "
            f"sequences of {facts['max_length']} (--max-sequences)"
        )
    if (cache := facts["largest_cache_that_fits"]) and not length and not sequences:
        return f"does not fit: lower --cache-tokens to {cache}"
    helps = [f"--max-length to {length}"] * (length > 0) + [f"--max-sequences to {sequences}"] * (sequences > 0)
    if not helps:
        return "does not fit: use a smaller --dtype or --scheme, another --device or model"
    return f"does not fit: lower {' or '.join(helps)}"
