"""From settings to an engine: find the model, choose kernel and program, allocate, load, build the loop around it.

Settings that cannot be combined are refused here, before the first prompt.
"""

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from tokenmill.cache.pool import Pool
from tokenmill.cache.prefix_store import PrefixStore
from tokenmill.cache.snapshot import shared_fields
from tokenmill.cache.spec import CacheSpec
from tokenmill.config import EngineConfig, ResolvedConfig
from tokenmill.engine.core import Core
from tokenmill.engine.draft import DraftCore, check_vocabulary
from tokenmill.engine.engine import Engine
from tokenmill.engine.loaded import LoadedModel
from tokenmill.engine.resolve import cache_spec, choose_forms, find_device, resolve_config
from tokenmill.engine.runner import Runner
from tokenmill.errors import CapacityError, CheckpointError, ConfigError, PackageMismatch
from tokenmill.hub.names import locate
from tokenmill.kernels.attend import choose as choose_kernel
from tokenmill.memory.arena import Allocate, unreserved
from tokenmill.memory.available import available_bytes
from tokenmill.model.config import ModelConfig
from tokenmill.model.description import describe
from tokenmill.model.families import read_config
from tokenmill.program import ModelParts
from tokenmill.program.aot.manifest import made_for, open_package
from tokenmill.quant.schemes import REFERENCE, find_scheme
from tokenmill.registry import lookup
from tokenmill.schedule.blocks import BlockAllocator
from tokenmill.schedule.scheduler import Scheduler
from tokenmill.speculate.multi_step import MultiStep
from tokenmill.speculate.proposer import PROPOSERS, Facts, NoProposer, Proposer
from tokenmill.speculate.proposer import choose as choose_proposer
from tokenmill.speculate.speculation import Speculation
from tokenmill.speculate.suffix_store import SuffixStore
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.value_reader import path_of
from tokenmill.weights.checkpoint import Checkpoint, open_checkpoint
from tokenmill.weights.fingerprint import fingerprint, is_full
from tokenmill.weights.generation import recommended
from tokenmill.weights.load import Fill, empty_decoder, filled, load_decoder, match_tensors, return_memory
from tokenmill.weights.packed.model import PackedCheckpoint

__all__ = ["build", "load_model"]

log = logging.getLogger(__name__)
DRAFT_SCHEMES = ("q8", "q4")  # as a draft model: this model with such weights
Told = Callable[[int, int], None]  # how much is done, and how much there is


def build(
    checkpoint: Checkpoint,
    config: EngineConfig,
    progress: Told | None = None,
    fill: Callable[..., Fill] = load_decoder,
    allocate: Allocate = unreserved,
) -> Engine:
    """An engine for a checkpoint that is open already: one loaded model, with the loop around it."""
    loaded = load_model(checkpoint, config, progress, fill, allocate)
    config, scheduler = loaded.config, _scheduler(loaded)
    if config.prefix_dir is not None:
        limit_bytes = config.prefix_limit * 1_000_000
        store = PrefixStore(path_of(config.prefix_dir), loaded.pool, shared_fields(loaded.compatibility), limit_bytes)
        scheduler.prefixes.find_stored, loaded.runner.prefix_store = store.find, store
    draft = None if config.draft_model is None else _load_draft(checkpoint, loaded, progress, fill)
    facts = Facts(loaded.program.finds_drafts, draft, None if config.suffix_dir is None else _suffix_store(loaded))
    proposer = lookup(PROPOSERS, config.speculate, "speculate")(facts)
    return Engine(Core(loaded, scheduler, _speculation(proposer, loaded, facts)))


def _scheduler(loaded: LoadedModel) -> Scheduler:
    config, spec = loaded.config, loaded.pool.spec
    allocator = BlockAllocator(spec.num_blocks, spec.block_size)
    return Scheduler(allocator, config.max_sequences, config.max_step_tokens, config.prefix_cache, config.cache)


def _speculation(proposer: Proposer, loaded: LoadedModel, facts: Facts) -> Speculation:
    config, vocab_size = loaded.config, loaded.model_config.vocab_size
    return Speculation(proposer, config.num_draft_tokens, config.max_step_tokens, vocab_size, facts)


def _suffix_store(loaded: LoadedModel) -> SuffixStore:
    """Texts of all models with the same vocabulary."""
    config, vocab_size = loaded.config, loaded.model_config.vocab_size
    identity = f"{vocab_size} {loaded.fingerprint.get('tokenizer')}"
    return SuffixStore(path_of(str(config.suffix_dir)), identity, vocab_size, config.suffix_limit * 1_000_000)


def _load_draft(
    checkpoint: Checkpoint, target: LoadedModel, progress: Told | None, fill: Callable[..., Fill]
) -> DraftCore:
    """The draft model of an engine, with a loop of its own and a cache for as many texts of the same length."""
    config, name = target.config, str(target.config.draft_model)
    is_same = name in DRAFT_SCHEMES
    source = _unpacked(checkpoint, name) if is_same else open_checkpoint(locate(name))
    model = read_config(source.config)
    max_length = min(config.max_length, model.context)
    settings = EngineConfig(
        model=config.model if is_same else name,
        scheme=name if is_same else "auto",
        dtype=config.dtype if is_same else "auto",
        device=config.device,
        threads=config.threads,
        max_length=max_length,
        block_size=config.block_size if config.block_size < max_length else None,
        max_sequences=config.max_sequences,
        max_step_tokens=config.max_step_tokens,
        cache_tokens=config.cache_tokens,
        prefix_cache=config.prefix_cache,
        fingerprint=config.fingerprint,
    )
    _check_memory(name, settings, model)
    loaded = load_model(source, settings, progress, fill if is_same else load_decoder)
    sizes = loaded.model_config.vocab_size, target.model_config.vocab_size
    check_vocabulary(name, loaded.tokenizer, target.tokenizer, sizes)
    facts = Facts(loaded.program.finds_drafts)
    proposer = MultiStep(facts, clock=lambda: 0.0) if facts.finds_drafts else NoProposer(facts)  # all steps in one call
    return DraftCore(Core(loaded, _scheduler(loaded), _speculation(proposer, loaded, facts)))


def _unpacked(checkpoint: Checkpoint, draft_model: str) -> Checkpoint:
    """The same model, to be read with other weights."""
    if not isinstance(checkpoint, PackedCheckpoint):
        return checkpoint
    if not checkpoint.is_copy:
        allowed = "the name of a model: a packed model cannot be read with other weights"
        raise ConfigError("draft_model", draft_model, allowed)
    return open_checkpoint(checkpoint.path)


def _check_memory(name: str, config: EngineConfig, model: ModelConfig) -> None:
    """CapacityError where a draft model does not fit beside the model, which is loaded."""
    resolved = resolve_config(config, model)
    device, spec = find_device(resolved.device), cache_spec(resolved, model)
    forms = choose_forms(resolved, model, device)
    needed = spec.num_bytes + forms.program.weight_bytes(model, getattr(torch, resolved.dtype), forms.scheme)
    available = available_bytes() if device.type == "cpu" else torch.cuda.mem_get_info(device)[0]
    if needed > available:
        setting = "draft_model, max_length or max_sequences"
        raise CapacityError(f"memory for the draft model {name}", needed, available, setting, in_bytes=True)


def load_model(
    checkpoint: Checkpoint,
    config: EngineConfig,
    progress: Told | None = None,
    fill: Callable[..., Fill] = load_decoder,
    allocate: Allocate = unreserved,
) -> LoadedModel:
    """A model with its program and its own cache.

    `fill` gives the empty decoder its weights, `allocate` the memory for weights that the program packs.
    """
    model_config = read_config(checkpoint.config)
    packed = checkpoint if isinstance(checkpoint, PackedCheckpoint) else None
    if packed is not None:
        config = config if packed.is_copy else _as_packed(config, packed)
        packed.start_reading()  # meanwhile the tokenizer is made
    resolved = resolve_config(config, model_config)
    device = find_device(resolved.device)
    tokenizer = _tokenizer(checkpoint, model_config.vocab_size)
    torch.set_num_threads(resolved.threads)
    spec = cache_spec(resolved, model_config)
    kernel_name, kernel = choose_kernel(
        resolved.kernel, spec, device, resolved.max_length, describe(model_config).attention_shapes
    )
    forms = choose_forms(resolved, model_config, device)
    resolved = choose_proposer(replace(resolved, scheme=forms.scheme_name), forms.program.finds_drafts)
    lookup(PROPOSERS, resolved.speculate, "speculate")
    digests = _fingerprint(checkpoint, resolved)  # before the weights, because the files may be replaced later
    package = None
    if resolved.aot_package is not None:
        try:
            package = open_package(Path(resolved.aot_package), made_for(resolved, digests, device), device)
        except PackageMismatch as error:
            if not resolved.aot_fallback:
                raise
            log.warning("%s; the plain modules serve", error)
            resolved = replace(resolved, aot_package=None, program="eager")
            forms = choose_forms(resolved, model_config, device)
    decoder = empty_decoder(model_config, forms.scheme, resolved.max_length, _fused(resolved))
    if checkpoint.shapes:  # a shape without files, for benchmarks, has none
        match_tensors(checkpoint, decoder)
    pool = _allocate(spec, device)  # before the weights, so that what does not fit is refused at once
    dtype = getattr(torch, resolved.dtype)
    fill_matrix: Fill = filled
    if packed is None:
        told = progress or (lambda done, total: None)
        fill_matrix = fill(checkpoint, decoder, dtype, device, told, forms.program.packs)
    else:
        decoder.to(dtype)  # its parameters have no memory
    program = forms.program(ModelParts(decoder, pool, kernel, packed, package, resolved, fill_matrix, allocate))
    names = forms.program_name, forms.reason, forms.program_name if program.attends else kernel_name
    runner, defaults = Runner(program, pool, device), recommended(checkpoint, resolved.generation_config)
    return_memory()  # of headers and tokenizers that were parsed
    return LoadedModel(resolved, model_config, tokenizer, program, pool, runner, *names, digests, defaults)


def _tokenizer(checkpoint: Checkpoint, vocab_size: int) -> Tokenizer | None:
    tokenizer = checkpoint.tokenizer()
    is_checked = isinstance(checkpoint, PackedCheckpoint)  # when it was packed
    if tokenizer is not None and not is_checked and tokenizer.num_tokens > vocab_size:
        raise CheckpointError(
            f"{checkpoint.path}: the tokenizer has {tokenizer.num_tokens} tokens, the model's vocabulary "
            f"{vocab_size}: they do not belong together"
        )
    return tokenizer


def _fused(config: ResolvedConfig) -> tuple[str, ...]:
    """The fused operations; only plain matrices can be left unfused."""
    if not {"qkv", "gate_up"} <= set(config.fused) and not find_scheme(config.scheme).is_plain:
        allowed = f"with qkv and gate_up, because scheme is {config.scheme!r}, not {REFERENCE}"
        raise ConfigError("fuse", config.fuse, allowed)
    return config.fused


def _fingerprint(checkpoint: Checkpoint, config: ResolvedConfig) -> dict[str, str]:
    """The fingerprint; of a packed model, that of the model it was made of."""
    if not isinstance(checkpoint, PackedCheckpoint):
        return fingerprint(checkpoint.path, config.fingerprint)
    digests = dict(checkpoint.facts["fingerprint"])
    if config.fingerprint == "full" and not is_full(digests):
        raise ConfigError("fingerprint", "full", f"sampled, because {checkpoint.path} was made with that")
    return digests


def _as_packed(config: EngineConfig, packed: PackedCheckpoint) -> EngineConfig:
    """With the settings that a packed model was made for; ConfigError if another value is given."""
    fixed = {name: packed.facts[name] for name in ("program", "dtype", "scheme")}
    for name, value in fixed.items():
        if (given := getattr(config, name)) not in ("auto", value):
            allowed = f"{value}: {packed.path} is packed for that; give the model, or another file"
            raise ConfigError(name, given, allowed)
    return replace(config, **fixed)


def _allocate(spec: CacheSpec, device: torch.device) -> Pool:
    try:
        return Pool(spec, device)
    except (RuntimeError, MemoryError, OSError) as error:  # torch's allocators raise RuntimeError, mmap OSError
        if device.type == "cuda":
            available = torch.cuda.mem_get_info(device)[0]
        else:
            available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        setting = "max_length, max_sequences or cache_tokens"
        what = f"memory for a cache of {spec.num_slots} tokens"
        raise CapacityError(what, spec.num_bytes, available, setting, in_bytes=True) from error
