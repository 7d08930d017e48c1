"""The memory of several models: what all may take, and what the cache of each may take of it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tokenmill.cli.models import check_model, read_model_config
from tokenmill.cli.parser.options import ENGINE, MODEL, argument, built_settings, option
from tokenmill.cli.process.display import progress_on_stderr, remark
from tokenmill.cli.serve.folders import with_prefixes
from tokenmill.cli.serve.named import NamedModel
from tokenmill.errors import CapacityError, ConfigError, TokenmillError
from tokenmill.hub.progress import Progress
from tokenmill.memory.interrupts import held_interrupts
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.units import size
from tokenmill.weights.adapters.named import adapter_bytes

if TYPE_CHECKING:  # these import torch
    from tokenmill.loader.resolve import ResolvedModel
    from tokenmill.model.config import ModelConfig

WEIGHTS_SHARE = 0.8
"""The share of the room that weights of models may take that stay loaded together: caches need the rest."""
OWN_BYTES = 400_000_000
"""Memory beside the models: Python, torch, and what requests take on the way. A server had 260 MB resident before its
first request and 286 MB after it, with a model of 10 MB (torch 2.13.0)."""
FREE_SHARE = 0.9
"""The share of the free memory that the models take where --memory does not say it."""
MORE_MODELS = argument(
    None,
    "MORE",
    "Further models; each is loaded when it is asked for. Every one may be written NAME=MODEL or preset:NAME, or be a "
    "folder of models.",
    MODEL,
)
MEMORY = option(
    None,
    "Memory for all models that are loaded at once, as 8GB or 6000MB. Default: nine tenths of what is free.",
    ENGINE,
    metavar="SIZE",
)
UNITS = {"": 1e9, "G": 1e9, "GB": 1e9, "GIB": 2**30, "M": 1e6, "MB": 1e6, "MIB": 2**20}


@dataclass(frozen=True)
class ModelShare:
    """The share of a model. engine: its settings, with a cache that fits. weights, num_bytes: of memory, of its
    weights and of all that it takes.
    """

    named: NamedModel
    engine: EngineConfig
    weights: int
    num_bytes: int


def read_memory(given: str | None) -> int | None:
    """Read a size of memory: 8, 8GB or 6000MB. ConfigError for another text."""
    if given is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", given.strip())
    if found is None or found[2].upper() not in UNITS or not float(found[1]):
        raise ConfigError("memory", given, "a size such as 8, 8GB or 6000MB", "--memory")
    return int(float(found[1]) * UNITS[found[2].upper()])


def shares_of(named: Sequence[NamedModel], room: int | None, quiet: bool) -> tuple[list[ModelShare], int]:
    """Fit the cache of each model into its share; also return the room for all that are loaded at once.

    ConfigError for a model that does not fit alone. room: as --memory says it.
    """
    with held_interrupts():
        from tokenmill.kernels.devices import free_bytes, kind_of
        from tokenmill.loader.resolve import resolve

    found = list[tuple[NamedModel, EngineConfig, "ModelConfig", int]]()
    with progress_on_stderr(quiet) as progress:
        for each in named:
            progress.stage(f"reading {each.model}")
            if (read := _read(each, progress, resolve)) is not None:
                found.append((each, *read))
    if not found:
        raise ConfigError("model", named[0].model, "a model that can be served", "MODEL")
    device = resolve(found[0][1], found[0][2]).config.device
    own = OWN_BYTES if kind_of(device) == "cpu" else 0
    available = int(FREE_SHARE * free_bytes(device)) if room is None else room - own
    if available <= 0:
        raise ConfigError("memory", size(room or 0), f"more than {size(own)}, which Python and torch take", "--memory")
    cache = _cache_share([weights for *_, weights in found], available)
    return [
        ModelShare(each, *_fitted(each, engine, model, weights, cache, available))
        for each, engine, model, weights in found
    ], available


def _read(each: NamedModel, progress: Progress, resolve: Any) -> tuple[EngineConfig, "ModelConfig", int] | None:
    """Read the config of a model; None, which is said, for one of a folder that cannot be served."""
    try:
        engine = replace(built_settings(EngineConfig, each.values), model=each.model)
        engine = replace(engine, generation_config=bool(each.values.get("generation_config", True)))
        if engine.tensor_parallel > 1:
            raise ConfigError("tensor_parallel", engine.tensor_parallel, "1 for a server of several models")
        check_model(each.model, progress)
        model = read_model_config(each.model, progress)
        return engine, model, resolve(engine, model).weight_bytes
    except TokenmillError as error:
        if each.is_certain:
            raise
        remark(f"left out: {each.name}: {error}")
        return None


def _cache_share(weights: Sequence[int], available: int) -> int:
    """Compute the bytes for the cache of each model: what is left beside the weights of those that fit together.

    For each model, the smallest others join it while the weights of all leave a fifth of the room; the models of that
    set share the rest. The share of the tightest set holds for all, so that any such set stays loaded.
    """
    shares = []
    for place, own in enumerate(weights):
        total, number = own, 1
        for other in sorted([*weights[:place], *weights[place + 1 :]]):
            if total + other > WEIGHTS_SHARE * available:
                break
            total, number = total + other, number + 1
        shares.append((available - total) // number)
    return max(min(shares), 0)


def memory_of(resolved: "ResolvedModel") -> int:
    """Count the memory of a model with the adapters of its settings."""
    from tokenmill.measure.cost import cost_of

    return cost_of(resolved).total_bytes + adapter_bytes(resolved.config)


def _within(num_bytes: int, device: str) -> int:
    """Count the bytes that a model may take of a device."""
    return num_bytes


def _fitted(
    each: NamedModel, engine: EngineConfig, model: "ModelConfig", weights: int, cache: int, available: int
) -> tuple[EngineConfig, int, int]:
    """Fit the cache of a model into its share, or into all of the room where one text needs more; with its memory."""
    from tokenmill.loader.fit import fit_for_many
    from tokenmill.loader.resolve import resolve

    number = engine.max_sequences if "max_sequences" in each.origins else None
    adapters = adapter_bytes(engine)
    for room in dict.fromkeys((min(weights + cache, available), available)):
        try:
            fitted = fit_for_many(with_prefixes(engine), model, number, partial(_within, room - adapters), True)
            return fitted, weights, memory_of(resolve(fitted, model))
        except CapacityError as error:
            refusal = error
    raise ConfigError("model", each.model, f"one that fits into {size(available)} (--memory): {refusal}", "MODEL")
