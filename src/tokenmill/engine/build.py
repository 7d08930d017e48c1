"""From settings to an Engine: find the model, resolve every default, choose kernel and program, allocate, load.

Every refusal happens here, before the first prompt: features compose when the engine is built, or it is not built.
"""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from tokenmill.cache.compatibility import whose
from tokenmill.cache.formats import find_format
from tokenmill.cache.pool import Pool
from tokenmill.cache.prefix_store import PrefixStore
from tokenmill.cache.spec import CacheSpec
from tokenmill.config import DEFAULT_MAX_LENGTH, EngineConfig, from_keywords
from tokenmill.engine.engine import Engine
from tokenmill.engine.runner import Runner
from tokenmill.errors import CapacityError, CheckpointError, ConfigError, PackageMismatch
from tokenmill.hub.names import locate
from tokenmill.kernels.attend import AttentionShape
from tokenmill.kernels.attend import choose as choose_kernel
from tokenmill.model.config import ModelConfig
from tokenmill.model.decoder import Decoder
from tokenmill.model.families import read_config
from tokenmill.model.fusion import fuse
from tokenmill.program import Program, preferred_schemes
from tokenmill.program import choose as choose_program
from tokenmill.program.aot.manifest import check as check_package
from tokenmill.program.aot.manifest import made_for
from tokenmill.quant.schemes import AS_STORED, REFERENCE, Scheme, find_scheme
from tokenmill.quant.schemes import choose as choose_scheme
from tokenmill.registry import lookup
from tokenmill.schedule.blocks import BlockAllocator
from tokenmill.schedule.scheduler import Scheduler
from tokenmill.speculate.proposer import PROPOSERS
from tokenmill.speculate.proposer import choose as choose_proposer
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.weights.checkpoint import Checkpoint, open_checkpoint
from tokenmill.weights.fingerprint import fingerprint
from tokenmill.weights.load import empty_decoder, load_decoder
from tokenmill.weights.packed.model import PackedCheckpoint

__all__ = ["Forms", "build", "cache_spec", "choose_forms", "find_device", "load", "resolve_config"]

log = logging.getLogger(__name__)


def load(
    model: str | Path | None = None, *, progress: Callable[[int, int], None] | None = None, **settings: Any
) -> Engine:
    """An engine for a model directory, a `.gguf` file, a hub name or a short name (default: SmolLM2-135M-Instruct).

    `settings` are the fields of EngineConfig. `progress(done, total)` is called as tensors are loaded.
    """
    if model is not None:
        settings["model"] = str(model)
    config: EngineConfig = from_keywords(EngineConfig, settings)
    return build(open_checkpoint(locate(config.model)), config, progress)


def build(
    checkpoint: Checkpoint,
    config: EngineConfig,
    progress: Callable[[int, int], None] | None = None,
    fill: Callable[..., Decoder] = load_decoder,
) -> Engine:
    """An engine for a checkpoint that is open already. `fill` gives the empty decoder its weights."""
    model_config = read_config(checkpoint.config)
    device = find_device(config.device)
    packed = checkpoint if isinstance(checkpoint, PackedCheckpoint) else None
    if packed is not None:
        config = _as_packed(config, packed)
        packed.start_reading()  # meanwhile the tokenizer is made
    config = replace(resolve_config(config, model_config), device=str(device))
    tokenizer = _tokenizer(checkpoint, model_config.vocab_size)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    spec = cache_spec(config, model_config)
    max_length = config.max_length
    assert max_length is not None, "resolved above"
    kernel_name, kernel = choose_kernel(config.kernel, spec, max_length, attention_shapes(model_config))
    forms = choose_forms(config, model_config, device)
    config = choose_proposer(replace(config, scheme=forms.scheme_name), forms.program.finds_drafts)
    identity = _identify(checkpoint)  # before the weights: later the files may be others
    if config.aot_package is not None:
        config, forms = _with_package(config, forms, identity, model_config, device)
    proposer = lookup(PROPOSERS, config.proposer, "proposer")()
    decoder = empty_decoder(model_config, forms.scheme, kernel, max_length)
    pool = _allocate(spec, device)  # before the weights: what does not fit is refused at once
    if packed is None:
        fill(checkpoint, decoder, getattr(torch, config.dtype), device, progress)
    else:
        decoder.to(getattr(torch, config.dtype))  # of what has no memory
    _fuse(decoder, config)
    try:
        program = forms.program(decoder, pool, packed, config)
    except PackageMismatch as error:
        config, forms = _without_package(error, config, model_config, device)
        program = forms.program(decoder, pool, packed, config)
    allocator = BlockAllocator(spec.num_blocks, spec.block_size)
    engine = Engine(
        config,
        model_config,
        tokenizer,
        Scheduler(allocator, config.max_sequences, config.max_step_tokens, config.prefix_cache, config.cache),
        Runner(program, pool, device),
        proposer,
        program=forms.program_name,
        program_reason=forms.reason,
        kernel=forms.program_name if program.attends else kernel_name,
        memory=_memory(program, pool),
        fingerprint=identity,
    )
    if config.prefix_dir is not None:
        engine.scheduler.prefixes.store = _prefix_store(engine, Path(config.prefix_dir))
    return engine


def _tokenizer(checkpoint: Checkpoint, vocab_size: int) -> Tokenizer | None:
    tokenizer = checkpoint.tokenizer()
    if tokenizer is not None and tokenizer.num_tokens > vocab_size:
        raise CheckpointError(
            f"{checkpoint.path}: the tokenizer has {tokenizer.num_tokens} tokens, the model's vocabulary "
            f"{vocab_size}: they do not belong together"
        )
    return tokenizer


def _memory(program: Program, pool: Pool) -> dict[str, int]:
    return {
        "weights_bytes": program.num_weight_bytes,
        "matrix_bytes": program.num_matrix_bytes,
        "cache_bytes": pool.num_bytes,
    }


def _fuse(decoder: Decoder, config: EngineConfig) -> None:
    if config.fuse == EngineConfig.fuse:
        return
    if not {"qkv", "gate_up"} <= set(config.fused) and not find_scheme(config.scheme).is_plain:
        raise ConfigError(
            "fuse", config.fuse, f"with qkv and gate_up, because scheme is {config.scheme!r}, not {REFERENCE}"
        )
    fuse(decoder, config.fused)


def _prefix_store(engine: Engine, folder: Path) -> PrefixStore:
    alike = {name: value for name, value in whose(engine).items() if name not in ("model", "versions")}
    return PrefixStore(folder, engine.runner.pool, alike, engine.config.prefix_limit * 1_000_000)


def _with_package(
    config: EngineConfig, forms: "Forms", identity: dict[str, str], model: ModelConfig, device: torch.device
) -> tuple[EngineConfig, "Forms"]:
    """The same where the AOT package fits; where it does not, the plain modules if aot_fallback allows them."""
    assert config.aot_package is not None, "asked before"
    try:
        check_package(Path(config.aot_package), made_for(config, identity, device))
    except PackageMismatch as error:
        return _without_package(error, config, model, device)
    return config, forms


def _without_package(
    error: PackageMismatch, config: EngineConfig, model: ModelConfig, device: torch.device
) -> tuple[EngineConfig, "Forms"]:
    """The plain modules in its place, where that is allowed."""
    if not config.aot_fallback:
        raise error
    log.warning("%s; the plain modules serve", error)
    config = replace(config, aot_package=None, program="eager")
    return config, choose_forms(config, model, device)


@dataclass(frozen=True)
class Forms:
    """The program and the weight scheme that an engine will have, and what its weights will take."""

    program_name: str
    reason: str
    program: type[Program]
    scheme_name: str
    scheme: Scheme
    weight_bytes: int


def choose_forms(config: EngineConfig, model: ModelConfig, device: torch.device) -> Forms:
    """For a resolved config. ConfigError where nothing fits, with every reason."""
    dtype = getattr(torch, config.dtype)
    program_name, reason, program = choose_program(config, model, cache_spec(config, model), device)
    scheme_name, scheme = choose_scheme(config.scheme, device, dtype, preferred_schemes(program))
    num_bytes = program.weight_bytes(model, dtype, scheme)
    return Forms(program_name, reason, program, scheme_name, scheme, num_bytes)


def _identify(checkpoint: Checkpoint) -> dict[str, str]:
    """The fingerprint; of a packed model, that of the model it was made of."""
    if isinstance(checkpoint, PackedCheckpoint):
        return dict(checkpoint.facts["fingerprint"])
    return fingerprint(checkpoint.path)


def _as_packed(config: EngineConfig, packed: PackedCheckpoint) -> EngineConfig:
    """With the settings that a packed model was made for; ConfigError where something else was asked for."""
    settled = {name: getattr(packed, name) for name in ("program", "dtype", "scheme")}
    for name, value in settled.items():
        if getattr(config, name) not in ("auto", value):
            raise ConfigError(
                name,
                getattr(config, name),
                f"{value}: {packed.path} is packed for that; give the model, or another file",
            )
    return replace(config, **settled)


def _allocate(spec: CacheSpec, device: torch.device) -> Pool:
    try:
        return Pool(spec, device)
    except (RuntimeError, MemoryError, OSError) as error:  # torch's allocators raise RuntimeError, mmap OSError
        if device.type == "cuda":
            available = torch.cuda.mem_get_info(device)[0]
        else:
            available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        what = f"bytes for a cache of {spec.num_slots} tokens"
        raise CapacityError(what, spec.num_bytes, available, "max_length, max_sequences or cache_tokens") from error


def resolve_config(config: EngineConfig, model: ModelConfig) -> EngineConfig:
    """Put a number in the place of every default that depends on the model."""
    max_length = config.max_length or min(DEFAULT_MAX_LENGTH, model.context)
    if max_length > model.context:
        raise ConfigError("max_length", max_length, f"at most this model's context, {model.context}")
    block_size = config.block_size or max_length
    if block_size > max_length:
        raise ConfigError("block_size", block_size, f"at most max_length, which is {max_length}")
    ahead = config.run_ahead
    if ahead == "auto":
        ahead = "on" if find_device(config.device).type == "cuda" and config.proposer in ("auto", "none") else "off"
    # As many whole blocks as all sequences need at their longest.
    default_tokens = config.max_sequences * -(-max_length // block_size) * block_size
    resolved = replace(
        config,
        max_length=max_length,
        dtype=model.dtype if config.dtype == "auto" else config.dtype,
        block_size=block_size,
        cache_tokens=config.cache_tokens or default_tokens,
        run_ahead=ahead,
    )
    kept = replace(resolved, scheme=AS_STORED)
    return kept if config.dtype == "auto" and _keeps_codes(kept, config.scheme, model) else resolved


def _keeps_codes(kept: EngineConfig, asked: str, model: ModelConfig) -> bool:
    """A quantised file stays as it is unless something else was asked for, or no program here can run it so."""
    if asked != "auto" or not model.codes:
        return False
    try:
        _, _, program = choose_program(kept, model, cache_spec(kept, model), find_device(kept.device))
    except ConfigError:
        return False
    return program.prefers(find_scheme(kept.scheme))


def cache_spec(config: EngineConfig, model: ModelConfig) -> CacheSpec:
    """The cache of a resolved config: whole blocks, as many as `cache_tokens` needs."""
    find_format(config.cache_format)
    assert config.block_size is not None and config.cache_tokens is not None, "resolve_config comes first"
    return CacheSpec(
        num_layers=model.num_layers,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        dtype=config.dtype,
        format=config.cache_format,
        block_size=config.block_size,
        num_blocks=-(-config.cache_tokens // config.block_size),
    )


def attention_shapes(model: ModelConfig) -> frozenset[AttentionShape]:
    """Every shape that some layer needs."""
    return frozenset(AttentionShape(model.scale, window, model.attention_softcap) for window in model.windows)


def find_device(name: str) -> torch.device:
    """A torch device that can hold a tensor; ConfigError with the ones that can on this machine."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    usable = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    usable += ["mps"] if torch.backends.mps.is_available() else []
    try:
        device = torch.device(name)
        if device.type == "meta":
            raise ConfigError("device", name, f"it holds no numbers; here there are auto, {', '.join(usable)}")
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # torch raises all three, by backend
        raise ConfigError("device", name, f"here there are auto, {', '.join(usable)}") from error
    return device
