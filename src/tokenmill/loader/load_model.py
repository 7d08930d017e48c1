"""Loads a model from a checkpoint and settings: chooses program and attention backend, fills cache and weights.

Settings that cannot be combined are refused here, before a weight is read.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tokenmill.cache.pool import Pool
from tokenmill.cache.spec import CacheSpec
from tokenmill.errors import CapacityError, ConfigError, PackageMismatch, naming
from tokenmill.kernels.attend.kernel import choose as choose_kernel
from tokenmill.kernels.devices import free_bytes
from tokenmill.kernels.threads import torch_threads
from tokenmill.loader.loaded import LoadedModel
from tokenmill.loader.model_facts import ModelFacts, read_facts
from tokenmill.loader.ranks import Alone, find_ranks, threads_of_machine
from tokenmill.loader.resolve import FLOAT16_ON_CPU, ResolvedModel, resolve, resolve_with
from tokenmill.memory.arena import Allocate, unreserved
from tokenmill.model.description import describe
from tokenmill.model.families import read_config
from tokenmill.model.families.mtp import MTP
from tokenmill.program.aot.package import Package
from tokenmill.program.forward import ModelParts, Program, find_program
from tokenmill.program.parts import Lent, Opened
from tokenmill.program.runner import Runner
from tokenmill.quant.schemes import REFERENCE, find_scheme
from tokenmill.settings.engine_config import EngineConfig, ResolvedConfig
from tokenmill.speculate.proposer import choose as choose_proposer
from tokenmill.weights.checkpoint import Checkpoint, open_checkpoint
from tokenmill.weights.packed.model import PackedCheckpoint
from tokenmill.weights.packed.reader import settings_of
from tokenmill.weights.source import Progress, WeightSource, return_memory

log = logging.getLogger(__name__)


def resolve_checkpoint(checkpoint: Checkpoint, config: EngineConfig) -> ResolvedModel:
    """Resolve these settings for this checkpoint; ConfigError for what a packed model was not made for."""
    if isinstance(checkpoint, PackedCheckpoint) and not checkpoint.is_copy:
        config = _as_packed(config, checkpoint)
    return resolve(config, read_config(checkpoint.config), threads_of_machine(config.tensor_parallel))


def load_model(
    checkpoint: Checkpoint,
    resolved: ResolvedModel,
    progress: Progress | None = None,
    allocate: Allocate = unreserved,
    ranks: Alone | None = None,
    lent: Lent | None = None,
    facts: ModelFacts | None = None,
) -> LoadedModel:
    """Load a model with its program and its own cache. `allocate` gives the memory for weights that the program packs.
    ranks: the side of a rank that has met rank 0 already. lent: what it has of another model.
    facts: of the files, where they are not to be read.
    """
    if isinstance(checkpoint, PackedCheckpoint):
        checkpoint.start_reading()  # meanwhile the tokenizer is made
    joined = ranks or find_ranks(checkpoint, resolved)
    with joined, torch_threads(resolved.config.threads), naming(checkpoint.path):
        return _load(checkpoint, resolved, progress, allocate, joined, lent, facts)


def _load(
    checkpoint: Checkpoint,
    resolved: ResolvedModel,
    progress: Progress | None,
    allocate: Allocate,
    ranks: Alone,
    lent: Lent | None,
    facts: ModelFacts | None,
) -> LoadedModel:
    model, device = resolved.model, ranks.device(torch.device(resolved.config.device))
    facts = facts or read_facts(checkpoint, resolved.config, model.vocab_size)
    resolved, package = _open_own(resolved, facts.fingerprint, device)
    config, packed = resolved.config, checkpoint if isinstance(checkpoint, PackedCheckpoint) else None
    shapes = describe(model).attention_shapes
    kernel_name, kernel = choose_kernel(config.kernel, resolved.cache, device, config.max_length, shapes)
    own = Opened(packed, allocate, ranks.shared, package, ranks.join(resolved, facts.fingerprint, device), lent)
    pool = _allocate(
        ranks.pool, resolved.cache, device
    )  # before the weights: a cache that does not fit is refused at once
    told = None if packed else progress  # weights that are packed already are not read
    source = WeightSource(checkpoint, model, resolved.scheme, getattr(torch, config.dtype), device, told)
    parts = ModelParts(source, pool, kernel, config, own)
    made = _make(parts, resolved)
    program = ranks.ready(made, parts, partial(_load_beside, checkpoint.path, facts, made))
    kernel_name = resolved.program_name if resolved.program.attends else kernel_name
    return_memory()  # of headers and tokenizers that were parsed
    return LoadedModel(resolved, *facts, program, pool, Runner(program, pool, device), kernel_name)


def _load_beside(
    path: Path, facts: ModelFacts, lender: Program, side: Alone, told: Mapping[str, Any]
) -> tuple[Program, Pool]:
    loaded = load_told(path, facts, lender, side, told)
    return loaded.program, loaded.pool


def load_told(path: Path, facts: ModelFacts, lender: Program, side: Alone, told: Mapping[str, Any]) -> LoadedModel:
    """Load, on a rank other than rank 0, the layer beside a model that rank 0 tells of. path: of the model, whose files
    have the layer unless rank 0 names another file.
    """
    source = open_checkpoint(Path(told["apart"] or path), part=MTP)
    resolved = resolve_checkpoint(source, EngineConfig(**told["settings"]))
    cache = replace(resolved.cache, num_blocks=told["num_blocks"], num_states=told["num_states"])
    lent = None if told["num_logits"] is None else Lent(lender, told["num_logits"])
    return load_model(source, replace(resolved, cache=cache), ranks=side, lent=lent, facts=facts)


def _make(parts: ModelParts, resolved: ResolvedModel) -> Program:
    """Make the program, which reads the weights; CapacityError where a GPU has no memory for them."""
    needed, device = resolved.weight_bytes + resolved.scratch_bytes, str(parts.weights.device)
    available = free_bytes(device)  # before what is read takes some of it
    try:
        return find_program(resolved.program_name)(parts)
    except torch.OutOfMemoryError as error:
        what = f"memory of {device} for the weights, beside the cache and other engines there"
        setting = "model, scheme, max_length or max_sequences"
        raise CapacityError(what, needed, available, setting, in_bytes=True) from error


def _open_own(
    resolved: ResolvedModel, digests: Mapping[str, str], device: torch.device
) -> tuple[ResolvedModel, Package | None]:
    """Have the program open its own files; also settle what a load decides: the proposer, and program eager in the
    place of a package that does not fit, where `aot_fallback` is set.
    """
    config, package = choose_proposer(resolved.config, resolved.program.finds_drafts), None
    try:
        package = find_program(resolved.program_name).open(config, digests, device)
    except PackageMismatch as error:
        if not config.aot_fallback:
            raise
        log.warning("%s; the plain modules serve", error)
        config = replace(config, aot_package=None, program="eager")
    resolved = resolve_with(resolved, config)
    _tell(resolved)
    _check_fused(config)
    return resolved, package


def _tell(resolved: ResolvedModel) -> None:
    """Log the choices that differ from the faster program or the checkpoint's own dtype, which one would expect."""
    config, model = resolved.config, resolved.model
    for name, reason in resolved.program_refusals.items():
        log.info("program %s runs, which is slower than %s; that one %s", resolved.program_name, name, reason)
    as_float32 = (resolved.given.dtype, model.dtype, config.dtype) == ("auto", "float16", FLOAT16_ON_CPU)
    if as_float32 and config.device == "cpu":
        message = "the float16 checkpoint is computed in %s: on a CPU program %s would be slow in float16"
        log.info(message, config.dtype, resolved.program_name)


def _check_fused(config: ResolvedConfig) -> None:
    """Raise ConfigError where matrices are to be left unfused that are not plain."""
    if not {"qkv", "gate_up"} <= set(config.fused) and not find_scheme(config.scheme).is_plain:
        allowed = f"with qkv and gate_up, because scheme is {config.scheme!r}, not {REFERENCE}"
        raise ConfigError("fuse", config.fuse, allowed)


def _as_packed(config: EngineConfig, packed: PackedCheckpoint) -> EngineConfig:
    """Set the settings that a packed model was made for; ConfigError if another value is given."""
    fixed = settings_of(packed.facts)
    for name, value in fixed.items():
        if (given := getattr(config, name)) not in ("auto", value):
            allowed = f"{value}: {packed.path} is packed for that; give the model, or another file"
            raise ConfigError(name, given, allowed)
    return replace(config, **fixed)


def _allocate(make: Callable[[CacheSpec, torch.device], Pool], spec: CacheSpec, device: torch.device) -> Pool:
    try:
        return make(spec, device)
    except (RuntimeError, MemoryError, OSError) as error:  # torch's allocators raise RuntimeError, mmap OSError
        available = free_bytes(str(device))
        setting = "max_length, max_sequences or cache_tokens"
        reason = getattr(error, "strerror", None) or (str(error).splitlines() or ["no reason"])[0]
        what = f"memory for a cache of {spec.num_slots} tokens, which the system refuses ({reason})"
        raise CapacityError(what, spec.num_bytes, available, setting, in_bytes=True) from error
