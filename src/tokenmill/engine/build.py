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
from tokenmill.cache.formats import FORMATS
from tokenmill.cache.pool import Pool
from tokenmill.cache.prefix_store import PrefixStore
from tokenmill.cache.spec import CacheSpec
from tokenmill.config import DEFAULT_MAX_LENGTH, EngineConfig, from_keywords
from tokenmill.engine.engine import Engine
from tokenmill.engine.runner import Runner
from tokenmill.errors import CapacityError, CheckpointError, ConfigError, ImageMismatch
from tokenmill.hub.names import locate
from tokenmill.kernels.attend import choose as choose_kernel
from tokenmill.model.config import ModelConfig
from tokenmill.model.decoder import Decoder
from tokenmill.model.description import describe
from tokenmill.model.families import read_config
from tokenmill.program import Program
from tokenmill.program import choose as choose_program
from tokenmill.program.aot.manifest import check as check_code
from tokenmill.program.aot.manifest import made_for
from tokenmill.quant.schemes import Scheme
from tokenmill.quant.schemes import choose as choose_scheme
from tokenmill.registry import lookup, resolve
from tokenmill.schedule.blocks import BlockAllocator
from tokenmill.schedule.scheduler import Scheduler
from tokenmill.speculate.proposer import PROPOSERS
from tokenmill.speculate.proposer import choose as choose_proposer
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.weights.checkpoint import Checkpoint, open_checkpoint
from tokenmill.weights.fingerprint import fingerprint
from tokenmill.weights.load import empty_decoder, load_decoder
from tokenmill.weights.packed.header import is_image
from tokenmill.weights.packed.model import ImageCheckpoint, write_image

__all__ = ["Forms", "build", "cache_spec", "choose_forms", "load", "resolve_config", "save_code", "save_image"]

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
    image = checkpoint if isinstance(checkpoint, ImageCheckpoint) else None
    if image is not None:
        config = _as_imaged(config, image)
        image.start_reading()  # meanwhile the tokenizer is made
    config = replace(resolve_config(config, model_config), device=str(device))
    tokenizer = _tokenizer(checkpoint, model_config.vocab_size)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    spec = cache_spec(config, model_config)
    max_length = config.max_length
    assert max_length is not None, "resolved above"
    kernel_name, kernel = choose_kernel(
        config.kernel, spec, device, max_length, describe(model_config).attention_shapes
    )
    forms = choose_forms(config, model_config, device)
    config = choose_proposer(replace(config, scheme=forms.scheme_name), forms.program.finds_drafts)
    identity = _identify(checkpoint)  # before the weights: later the files may be others
    if config.image is not None:
        config, forms = _with_code(config, forms, identity, model_config, device)
    proposer = lookup(PROPOSERS, config.proposer, "proposer")()
    decoder = empty_decoder(model_config, forms.scheme, max_length, _fused(config))
    pool = _allocate(spec, device)  # before the weights: what does not fit is refused at once
    if image is None:
        fill(checkpoint, decoder, getattr(torch, config.dtype), device, progress)
    else:
        decoder.to(getattr(torch, config.dtype))  # of what has no memory
    try:
        program = forms.program(decoder, pool, kernel, image, config)
    except ImageMismatch as error:
        config, forms = _without_code(error, config, model_config, device)
        program = forms.program(decoder, pool, kernel, image, config)
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


def _fused(config: EngineConfig) -> tuple[str, ...]:
    """The operations that are one; only plain matrices can be taken apart."""
    if not {"qkv", "gate_up"} <= set(config.fused) and config.scheme != "dense":
        raise ConfigError("fuse", config.fuse, f"with qkv and gate_up, because scheme is {config.scheme!r}, not dense")
    return config.fused


def _prefix_store(engine: Engine, folder: Path) -> PrefixStore:
    alike = {name: value for name, value in whose(engine).items() if name not in ("model", "versions")}
    return PrefixStore(folder, engine.runner.pool, alike, engine.config.prefix_limit * 1_000_000)


def _with_code(
    config: EngineConfig, forms: "Forms", identity: dict[str, str], model: ModelConfig, device: torch.device
) -> tuple[EngineConfig, "Forms"]:
    """The same, where the compiled code fits; with image_fallback the plain modules where it does not."""
    assert config.image is not None, "asked before"
    try:
        check_code(Path(config.image), made_for(config, identity, device))
    except ImageMismatch as error:
        return _without_code(error, config, model, device)
    return config, forms


def _without_code(
    error: ImageMismatch, config: EngineConfig, model: ModelConfig, device: torch.device
) -> tuple[EngineConfig, "Forms"]:
    """The plain modules in its place, where that is allowed."""
    if not config.image_fallback:
        raise error
    log.warning("%s; the plain modules serve", error)
    config = replace(config, image=None, program="eager")
    return config, choose_forms(config, model, device)


def save_code(checkpoint: Checkpoint, config: EngineConfig, folder: Path, progress: Any) -> int:
    """Write compiled code of a model; its size in bytes. ImageMismatch where `folder` cannot be written."""
    config = replace(config, program="compiled", compile="no", max_sequences=1)
    engine = build(checkpoint, config, progress.advance)
    facts = {
        **made_for(engine.config, engine.fingerprint, find_device(engine.config.device)),
        "source": str(checkpoint.path.resolve()),
        "tokenmill": resolve("tokenmill:__version__"),
    }
    program: Any = engine.runner.program
    write: Callable[..., int] = resolve(
        "tokenmill.program.aot.exporting:write_code"
    )  # a compiler is only loaded for this
    return write(folder, program.decoder, engine.runner.pool, program.padded, config.compile_phases, facts, progress)


def save_image(checkpoint: Checkpoint, config: EngineConfig, path: Path, progress: Callable[[int, int], None]) -> int:
    """Write an image of what `config`'s program makes of a checkpoint; its size in bytes.

    CheckpointError where `path` cannot be written, or is a file of another kind.
    """
    if path.exists() and not is_image(path):
        raise CheckpointError(f"{path} is there and no image: it is not overwritten")
    engine = build(checkpoint, replace(config, max_length=1, block_size=None, max_sequences=1))
    weights, pieces = engine.runner.program.describe_image()
    facts = {
        "program": engine.program_name,
        "dtype": engine.config.dtype,
        "scheme": engine.config.scheme,
        "source": str(checkpoint.path.resolve()),
        "fingerprint": engine.fingerprint,
        "config": checkpoint.config,
        "shapes": dict(checkpoint.shapes),
        "rounded": checkpoint.rounded if engine.config.scheme == "file" else "",
        "weights": weights,
        "versions": {"tokenmill": resolve("tokenmill:__version__"), "torch": torch.__version__},
    }
    return write_image(path, facts, engine.tokenizer, pieces, progress)


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
    program_name, reason, program = choose_program(config, device, model)
    scheme_name, scheme = choose_scheme(config.scheme, device, dtype, program.schemes)
    num_bytes = program.weight_bytes(model, dtype, scheme_name)
    return Forms(program_name, reason, program, scheme_name, scheme, num_bytes)


def _identify(checkpoint: Checkpoint) -> dict[str, str]:
    """Of an image, its model's."""
    if isinstance(checkpoint, ImageCheckpoint):
        return dict(checkpoint.facts["fingerprint"])
    return fingerprint(checkpoint.path)


def _as_imaged(config: EngineConfig, image: ImageCheckpoint) -> EngineConfig:
    """What an image was made for is settled; ConfigError where something else was asked for."""
    settled = {name: getattr(image, name) for name in ("program", "dtype", "scheme")}
    for name, value in settled.items():
        if getattr(config, name) not in ("auto", value):
            raise ConfigError(
                name, getattr(config, name), f"{value}: {image.path} is an image for that; give the model, or another"
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
    kept = replace(resolved, scheme="file")
    return kept if config.dtype == "auto" and _keeps_codes(kept, config.scheme, model) else resolved


def _keeps_codes(kept: EngineConfig, asked: str, model: ModelConfig) -> bool:
    """A quantised file stays as it is unless something else was asked for, or no program here can run it so."""
    if asked != "auto" or not model.codes:
        return False
    try:
        _, _, program = choose_program(kept, find_device(kept.device), model)
    except ConfigError:
        return False
    return kept.scheme in program.schemes


def cache_spec(config: EngineConfig, model: ModelConfig) -> CacheSpec:
    """The cache of a resolved config: whole blocks, as many as `cache_tokens` needs."""
    lookup(FORMATS, config.cache_format, "cache_format")
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
