"""An engine built around a loaded model, with its draft model if it has one."""

from collections.abc import Callable
from dataclasses import replace

from tokenmill.cache.header import shared_fields
from tokenmill.cache.prefix_store import PrefixStore
from tokenmill.engine.core import Core
from tokenmill.engine.draft import DraftCore, check_vocabulary
from tokenmill.engine.engine import Engine
from tokenmill.errors import CapacityError, ConfigError
from tokenmill.hub.names import locate
from tokenmill.kernels.devices import free_bytes
from tokenmill.loader.load_model import load_model, resolve_checkpoint
from tokenmill.loader.loaded import LoadedModel
from tokenmill.loader.packed_copy import load_with_copy, open_model
from tokenmill.loader.resolve import ResolvedModel
from tokenmill.registry import PROPOSERS, lookup
from tokenmill.schedule.blocks import BlockAllocator
from tokenmill.schedule.scheduler import Scheduler
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.speculate.multi_step import MultiStep
from tokenmill.speculate.proposer import Facts, NoProposer, Proposer
from tokenmill.speculate.speculation import Speculation
from tokenmill.speculate.suffix_store import SuffixStore
from tokenmill.value_reader import path_of
from tokenmill.weights.checkpoint import Checkpoint
from tokenmill.weights.load import Fill, Progress, load_decoder
from tokenmill.weights.packed.copies import start_reading
from tokenmill.weights.packed.model import PackedCheckpoint

__all__ = ["build", "with_loop"]

DRAFT_SCHEMES = ("q8", "q4")  # as a draft model: this model with such weights


def build(
    checkpoint: Checkpoint,
    config: EngineConfig,
    progress: Progress | None = None,
    fill: Callable[..., Fill] = load_decoder,
) -> Engine:
    """An engine for a checkpoint that is open already, from which its weights are read. `fill`: see load_model."""
    loaded = load_model(checkpoint, resolve_checkpoint(checkpoint, config), progress, fill)
    return with_loop(loaded, checkpoint, progress, fill)


def with_loop(
    loaded: LoadedModel,
    checkpoint: Checkpoint,
    progress: Progress | None = None,
    fill: Callable[..., Fill] = load_decoder,
) -> Engine:
    """An engine for a model that was loaded from that checkpoint: the loop around it, and its draft model."""
    config, scheduler = loaded.config, _scheduler(loaded)
    if config.prefix_dir is not None:
        limit_bytes = config.prefix_limit * 1_000_000
        store = PrefixStore(path_of(config.prefix_dir), loaded.pool, shared_fields(loaded.compatibility), limit_bytes)
        scheduler.prefixes.find_stored, loaded.runner.prefix_store = store.find, store
    draft = None if config.draft_model is None else _load_draft(checkpoint, loaded, progress, fill)
    facts = Facts(loaded.spec.finds_drafts, draft, None if config.suffix_dir is None else _suffix_store(loaded))
    proposer = lookup(PROPOSERS, config.speculate, "speculate")(facts)
    return Engine(Core(loaded, scheduler, _speculation(proposer, loaded, facts)))


def _scheduler(loaded: LoadedModel) -> Scheduler:
    config, spec = loaded.config, loaded.pool.spec
    allocator = BlockAllocator(spec.num_blocks, spec.block_size)
    limits = config.max_sequences, config.max_step_tokens
    return Scheduler(allocator, *limits, config.prefix_cache, config.cache, loaded.resolved.window)


def _speculation(proposer: Proposer, loaded: LoadedModel, facts: Facts) -> Speculation:
    config, vocab_size = loaded.config, loaded.model_config.vocab_size
    return Speculation(proposer, config.num_draft_tokens, config.max_step_tokens, vocab_size, facts)


def _suffix_store(loaded: LoadedModel) -> SuffixStore:
    """Texts of all models with the same vocabulary."""
    config, vocab_size = loaded.config, loaded.model_config.vocab_size
    identity = f"{vocab_size} {loaded.fingerprint.get('tokenizer')}"
    return SuffixStore(path_of(str(config.suffix_dir)), identity, vocab_size, config.suffix_limit * 1_000_000)


def _load_draft(
    checkpoint: Checkpoint, target: LoadedModel, progress: Progress | None, fill: Callable[..., Fill]
) -> DraftCore:
    """The draft model of an engine, with a loop of its own and a cache for as many texts of the same length."""
    config, name = target.config, str(target.config.draft_model)
    is_same = name in DRAFT_SCHEMES
    settings = EngineConfig(
        model=config.model if is_same else name,
        scheme=name if is_same else "auto",
        dtype=config.dtype if is_same else "auto",
        device=config.device,
        threads=config.threads,
        max_sequences=config.max_sequences,
        max_step_tokens=config.max_step_tokens,
        # With windows the cache is made for them, and those of the draft model are others.
        cache_tokens=config.cache_tokens if target.resolved.window.size is None else None,
        prefix_cache=config.prefix_cache,
        fingerprint=config.fingerprint,
        packed_cache=config.packed_cache,
        packed_limit=config.packed_limit,
    )
    source, found = _same_model(checkpoint, settings) if is_same else open_model(locate(name), settings)
    max_length = min(config.max_length, found.model.context)
    block_size = config.block_size if config.block_size < max_length else None
    settings = replace(settings, max_length=max_length, block_size=block_size)
    resolved = resolve_checkpoint(source, settings)
    _check_memory(name, resolved)
    if source.shapes:
        loaded, _ = load_with_copy(source, resolved, progress)
    else:  # a shape without files, for benchmarks
        loaded = load_model(source, resolved, progress, fill)
    sizes = loaded.model_config.vocab_size, target.model_config.vocab_size
    check_vocabulary(name, loaded.tokenizer, target.tokenizer, sizes)
    facts = Facts(loaded.spec.finds_drafts)
    proposer = MultiStep(facts, clock=lambda: 0.0) if facts.finds_drafts else NoProposer(facts)  # all steps in one call
    return DraftCore(Core(loaded, _scheduler(loaded), _speculation(proposer, loaded, facts)))


def _same_model(checkpoint: Checkpoint, config: EngineConfig) -> tuple[Checkpoint, ResolvedModel]:
    """The same model, to be read with other weights."""
    if isinstance(checkpoint, PackedCheckpoint):
        if not checkpoint.is_copy:
            allowed = "the name of a model: a packed model cannot be read with other weights"
            raise ConfigError("draft_model", config.scheme, allowed)
        return open_model(checkpoint.path, config)
    reader = start_reading(checkpoint.path, config) if checkpoint.shapes else None
    if reader is None:
        return checkpoint, resolve_checkpoint(checkpoint, config)
    return open_model(checkpoint.path, config, reader)


def _check_memory(name: str, resolved: ResolvedModel) -> None:
    """CapacityError where a draft model does not fit beside the model, which is loaded."""
    needed, available = resolved.cache.num_bytes + resolved.weight_bytes, free_bytes(resolved.config.device)
    if needed > available:
        setting = "draft_model, max_length or max_sequences"
        raise CapacityError(f"memory for the draft model {name}", needed, available, setting, in_bytes=True)
