"""Defaults resolved: from the settings that were given to the ones that an engine is built with, before it is built."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from tokenmill.cache.formats import find_format
from tokenmill.cache.spec import CacheSpec
from tokenmill.errors import ConfigError
from tokenmill.kernels.devices import find_device, kind_of
from tokenmill.model.config import ModelConfig
from tokenmill.model.families import read_config
from tokenmill.program import choose as choose_program
from tokenmill.program import preferred_schemes
from tokenmill.program.spec import ProgramSpec
from tokenmill.quant.schemes import AS_STORED, Scheme
from tokenmill.quant.schemes import choose as choose_scheme
from tokenmill.settings.engine_config import DEFAULT_MAX_LENGTH, EngineConfig, ResolvedConfig
from tokenmill.speculate.proposer import default_drafts
from tokenmill.value_reader import path_of

__all__ = ["FLOAT16_ON_CPU", "Forms", "cache_spec", "choose_forms", "foresee", "resolve_config"]

FLOAT16_ON_CPU = "float32"
"""What a CPU computes a float16 checkpoint in. float32 holds all of its numbers; bfloat16 would round them."""

SHARED_BLOCK = 32
"""Tokens of a block where blocks are meant to be shared and nothing says how many. As fast as whole sequences for a
program that reads the cache by itself; kernels of kernels/attend copy the rows of such blocks together at each step."""


def resolve_config(config: EngineConfig, model: ModelConfig, threads: int = 1) -> ResolvedConfig:
    """Put a value in the place of every default that depends on the model or the machine.

    threads: the number of CPU threads where config.threads is None. No other setting depends on it, so that callers
    which only describe a model may leave it out.
    """
    max_length = config.max_length or min(DEFAULT_MAX_LENGTH, model.context)
    if max_length > model.context:
        raise ConfigError("max_length", max_length, f"at most this model's context, {model.context}")
    if (config.block_size or 0) > max_length:
        raise ConfigError("block_size", config.block_size, f"at most max_length, which is {max_length}")
    for name in ("prefix_dir", "suffix_dir"):
        if (given := getattr(config, name)) is not None and path_of(given).is_file():
            raise ConfigError(name, given, "a directory, which may be new")
    device, has_proposer = find_device(config.device), config.speculates
    scheduling = config.async_scheduling
    if scheduling == "auto":
        scheduling = "on" if kind_of(device) == "cuda" and not has_proposer else "off"
    resolved = ResolvedConfig(
        **asdict(config)
        | {
            "device": device,
            "dtype": _dtype(config, model, device),
            "max_length": max_length,
            "block_size": config.block_size or max_length,
            "cache_tokens": config.cache_tokens or max_length,
            "num_draft_tokens": config.num_draft_tokens or default_drafts(config.speculate),
            "threads": config.threads or threads,
            "async_scheduling": scheduling,
        }
    )
    if config.scheme == "auto" and model.codes:
        # A quantised file stays as it is, in any dtype, unless no program here can run its codes.
        kept = replace(resolved, scheme=AS_STORED)
        program = _program(kept, model)
        resolved = kept if program is not None and AS_STORED in preferred_schemes(program) else resolved
    return _with_blocks(resolved, config, model)


def _dtype(config: EngineConfig, model: ModelConfig, device: str) -> str:
    """The checkpoint's own, unless a setting says otherwise, or no fast program of the device computes in it."""
    if config.dtype != "auto":
        return config.dtype
    return FLOAT16_ON_CPU if (model.dtype, kind_of(device)) == ("float16", "cpu") else model.dtype


def _with_blocks(resolved: ResolvedConfig, config: EngineConfig, model: ModelConfig) -> ResolvedConfig:
    """With the size of blocks, and as many whole ones as all sequences need at their longest."""
    size = resolved.block_size
    if config.block_size is None:
        program = _program(resolved, model)
        if config.prefix_dir is not None or (program is not None and program.attends):
            size = min(SHARED_BLOCK, size)
    tokens = config.max_sequences * -(-resolved.max_length // size) * size
    return replace(resolved, block_size=size, cache_tokens=config.cache_tokens or tokens)


def _program(config: ResolvedConfig, model: ModelConfig) -> type[ProgramSpec] | None:
    """What will run it; None where nothing can, which `choose_forms` refuses with every reason."""
    try:
        return choose_program(config, model, cache_spec(config, model), config.device).program
    except ConfigError:
        return None


@dataclass(frozen=True)
class Forms:
    """The program and the weight scheme that an engine will have. The first four are those of a program's Choice."""

    program_name: str
    reason: str
    program: type[ProgramSpec]
    refusals: Mapping[str, str]
    scheme_name: str
    scheme: Scheme


def choose_forms(config: ResolvedConfig, model: ModelConfig) -> Forms:
    """The program and the scheme for a resolved config. ConfigError where nothing fits, with every reason."""
    chosen = choose_program(config, model, cache_spec(config, model), config.device)
    usable = preferred_schemes(chosen.program)
    return Forms(*chosen, *choose_scheme(config.scheme, config.device, config.dtype, usable))


def foresee(
    config: EngineConfig, source: Mapping[str, Any], threads: int = 1
) -> tuple[ModelConfig, ResolvedConfig, Forms]:
    """What an engine would have that is built with these settings from a model with that config.json.

    threads: see resolve_config.
    """
    model = read_config(source)
    resolved = resolve_config(config, model, threads)
    return model, resolved, choose_forms(resolved, model)


def cache_spec(config: ResolvedConfig, model: ModelConfig) -> CacheSpec:
    """The cache of a resolved config: whole blocks, as many as `cache_tokens` needs."""
    find_format(config.cache_format)
    return CacheSpec(
        num_layers=model.num_layers,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        dtype=config.dtype,
        format=config.cache_format,
        block_size=config.block_size,
        num_blocks=-(-config.cache_tokens // config.block_size),
    )
