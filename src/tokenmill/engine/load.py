"""Loads an engine for the name of a model, its files or a checkpoint: the loop around the model, its draft model."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from tokenmill.cache.header import shared_fields
from tokenmill.cache.prefix_store import PREFIX_LIMIT, PrefixStore
from tokenmill.engine.adapters import Adapters
from tokenmill.engine.assistant import is_assistant, load_assistant
from tokenmill.engine.core import Core
from tokenmill.engine.draft import DraftCore, beside, check_vocabulary
from tokenmill.engine.engine import Engine
from tokenmill.engine.mtp import OWN_LAYER, MtpCore, load_mtp, max_texts, mtp_file, num_logits, refuse_mtp
from tokenmill.engine.text_rows import TargetRows
from tokenmill.engine.thread import EngineThread
from tokenmill.engine.verify import Receipts
from tokenmill.errors import CapacityError, CheckpointError, ConfigError
from tokenmill.hub.names import locate
from tokenmill.hub.progress import Progress, Silent
from tokenmill.kernels.devices import free_bytes
from tokenmill.loader.copies import start_reading
from tokenmill.loader.load_model import load_model, resolve_checkpoint
from tokenmill.loader.loaded import LoadedModel
from tokenmill.loader.packed_copy import Adjust, load_with_copy, open_files, open_model, resolve_opened
from tokenmill.loader.resolve import num_draft_states, tokens_per_state
from tokenmill.memory.disk_limit import free_disk, limit_of
from tokenmill.model.families import read_config
from tokenmill.program.hidden_rows import RowsRunner
from tokenmill.registry import PROPOSERS, lookup
from tokenmill.schedule.blocks import BlockAllocator
from tokenmill.schedule.keeps import Keeps
from tokenmill.schedule.memory import Memory
from tokenmill.schedule.row_blocks import RowBlocks
from tokenmill.schedule.scheduler import Scheduler
from tokenmill.schedule.snapshots import SnapshotSlots
from tokenmill.schedule.state_slots import StateSlots
from tokenmill.settings.engine_config import EngineConfig, EngineKeywords
from tokenmill.speculate.multi_step import MultiStep
from tokenmill.speculate.proposer import Draft, NoProposer, Proposer, ProposerContext
from tokenmill.speculate.speculation import Speculation
from tokenmill.speculate.suffix_store import SuffixStore
from tokenmill.value_reader import path_of
from tokenmill.weights.checkpoint import Checkpoint
from tokenmill.weights.packed.model import PackedCheckpoint
from tokenmill.weights.packed.reader import PackedReader

log = logging.getLogger(__name__)

DRAFT_SCHEMES = ("q8", "q4")  # names of a draft model: this model with such weights
Told = Callable[[int, int], None]  # how much is done, and how much there is


def load(
    model: str | Path | EngineConfig | None = None, *, progress: Told | None = None, **settings: Unpack[EngineKeywords]
) -> Engine:
    """Load an engine for a model directory, a `.gguf` file, a hub name or a short name (default:
    SmolLM2-135M-Instruct).

    `settings` are fields of EngineConfig; they override the fields of an EngineConfig given as the model.
    `progress(done, total)` is called as tensors load, also from the thread that reads them.
    """
    if progress is not None and not callable(progress):
        raise ConfigError("progress", progress, "a function of how much is done and how much there is")
    given: dict[str, Any] = {**settings}
    if model is not None and not isinstance(model, EngineConfig):
        given["model"] = model
    config = replace(model, **given) if isinstance(model, EngineConfig) else EngineConfig(**given)
    engine, _ = load_files(locate(config.model), config, Silent() if progress is None else _Told(progress))
    return engine


def load_files(
    path: Path,
    config: EngineConfig,
    progress: Progress,
    reader: PackedReader | None = None,
    adjust: Adjust | None = None,
    thread: EngineThread | None = None,
) -> tuple[Engine, Checkpoint]:
    """Load an engine for the files of a model; also return the checkpoint that it came from, which is the packed copy
    if there is one; otherwise a copy is kept for the next start. reader, adjust: see open_model. thread: of other
    engines, whose steps take turns with the steps of this one.
    """
    loaded, checkpoint = load_with_copy(*open_model(path, config, reader, adjust), progress.advance)
    return _with_loop(loaded, checkpoint, progress.advance, thread), checkpoint


def load_checkpoint(checkpoint: Checkpoint, config: EngineConfig, progress: Told | None = None) -> Engine:
    """Load an engine from a checkpoint that is open already."""
    loaded = load_model(checkpoint, resolve_checkpoint(checkpoint, config), progress)
    return _with_loop(loaded, checkpoint, progress)


def _with_loop(
    loaded: LoadedModel, checkpoint: Checkpoint, progress: Told | None, thread: EngineThread | None = None
) -> Engine:
    config, scheduler = loaded.config, _scheduler(loaded)
    if config.prefix_dir is not None:
        folder, header = path_of(config.prefix_dir), shared_fields(loaded.compatibility)
        limit_bytes = limit_of(config.prefix_limit, PREFIX_LIMIT, free_disk(folder))
        store = PrefixStore(folder, loaded.pool, header, limit_bytes, str(checkpoint.path.resolve()))
        scheduler.memory.store = loaded.runner.prefix_store = store
    thread = thread or EngineThread()
    draft = _draft_of(checkpoint, loaded, thread, progress)
    facts = ProposerContext(
        loaded.spec.finds_drafts, draft, None if config.suffix_dir is None else _suffix_store(loaded)
    )
    proposer = lookup(PROPOSERS, config.speculate, "speculate")(facts)
    core = Core(loaded, scheduler, _speculation(proposer, loaded, facts), thread, Receipts(loaded))
    core.adapters = Adapters(loaded, checkpoint.path)
    return Engine(core)


def load_draft_model(checkpoint: Checkpoint, target: LoadedModel, progress: Told | None) -> LoadedModel:
    """Load the draft model with a cache for as many texts, and of the same length, as `target`, which came from that
    checkpoint.

    CapacityError where it does not fit beside the model.
    """
    config, name = target.config, str(target.config.draft_model)
    is_same = name in DRAFT_SCHEMES
    settings = beside(
        target.config,
        model=config.model if is_same else name,
        tokenizer=config.tokenizer if is_same else None,
        scheme=name if is_same else "auto",
        dtype=config.dtype if is_same else "auto",
        # With windows the cache is made for them, and the draft model has other windows.
        cache_tokens=config.cache_tokens if target.resolved.window.size is None else None,
        prefix_cache=config.prefix_cache,
        packed_cache=config.packed_cache,
        packed_limit=config.packed_limit,
    )
    source = _open_same(checkpoint, settings) if is_same else open_files(locate(name), settings)
    max_length = min(config.max_length, read_config(source.config).context)
    block_size = config.block_size if config.block_size < max_length else None
    source, resolved = resolve_opened(source, replace(settings, max_length=max_length, block_size=block_size))
    needed = resolved.cache.num_bytes + resolved.weight_bytes + resolved.scratch_bytes
    available = free_bytes(resolved.config.device)
    if needed > available:
        setting = "draft_model, max_length or max_sequences"
        raise CapacityError(f"memory for the draft model {name}", needed, available, setting, in_bytes=True)
    loaded, _ = load_with_copy(source, resolved, progress)
    return loaded


def _open_same(checkpoint: Checkpoint, config: EngineConfig) -> Checkpoint:
    """Open the same model, to be read with other weights."""
    if (is_packed := isinstance(checkpoint, PackedCheckpoint)) and not checkpoint.is_copy:
        allowed = "the name of a model: a packed model cannot be read with other weights"
        raise ConfigError("draft_model", config.scheme, allowed)
    reader = start_reading(checkpoint.path, config)
    return checkpoint if reader is None and not is_packed else open_files(checkpoint.path, config, reader)


def _draft(target: LoadedModel, loaded: LoadedModel, thread: EngineThread) -> DraftCore:
    """Give the draft model a loop of its own, which the engine's thread moves."""
    sizes = loaded.model_config.vocab_size, target.model_config.vocab_size
    check_vocabulary(str(target.config.draft_model), loaded.tokenizer, target.tokenizer, sizes)
    facts = ProposerContext(loaded.spec.finds_drafts)
    proposer = MultiStep(facts, clock=lambda: 0.0) if facts.finds_drafts else NoProposer(facts)  # all steps in one call
    return DraftCore(Core(loaded, _scheduler(loaded), _speculation(proposer, loaded, facts), thread))


def _draft_of(checkpoint: Checkpoint, target: LoadedModel, thread: EngineThread, progress: Told | None) -> Draft | None:
    """Load the draft model that was asked for, or the layer of the model's own that predicts further tokens, where the
    proposer may use it; a layer that cannot be read is left out with a warning.
    """
    config = target.config
    apart = mtp_file(config.draft_model)
    if config.draft_model == OWN_LAYER or apart is not None:
        return load_mtp_core(checkpoint, target, thread, apart)
    if config.has_draft_model and is_assistant(str(config.draft_model)):
        rows = TargetRows(max_texts(target.config))
        assistant = load_assistant(checkpoint, target, rows)
        target.runner = RowsRunner(target.runner, rows)
        return assistant
    if config.has_draft_model:
        return _draft(target, load_draft_model(checkpoint, target, progress), thread)
    if config.speculate != "adaptive" or config.draft_model is not None or refuse_mtp(checkpoint, target):
        return None
    try:
        return load_mtp_core(checkpoint, target, thread)
    except (CheckpointError, ConfigError, CapacityError) as error:
        log.warning("the layer that predicts further tokens does not draft: %s", error)
        return None


def load_mtp_core(
    checkpoint: Checkpoint, target: LoadedModel, thread: EngineThread, apart: Path | None = None
) -> MtpCore:
    """Give the layer that predicts further tokens a loop of its own; see load_mtp."""
    loaded, rows = load_mtp(checkpoint, target, apart), TargetRows(max_texts(target.config))
    target.runner = RowsRunner(target.runner, rows)
    facts = ProposerContext(finds_drafts=False)
    return MtpCore(
        Core(loaded, _scheduler(loaded), _speculation(NoProposer(facts), loaded, facts), thread),
        rows,
        num_logits(target) > 0,
    )


def _scheduler(loaded: LoadedModel) -> Scheduler:
    config, spec = loaded.config, loaded.pool.spec
    is_shared = config.prefix_cache and config.cache
    rows = BlockAllocator(spec.num_blocks, spec.block_size)
    kinds: list[Keeps] = [RowBlocks(rows, loaded.resolved.window)]
    if spec.num_states:
        has_rows = rows.is_findable if config.prefix_dir is None else None
        slots = SnapshotSlots(
            spec.num_states, spec.block_size, tokens_per_state(spec), has_rows, num_draft_states(config)
        )
        kinds.append(StateSlots(slots, stops_at_blocks=is_shared))
    limits = config.max_sequences, config.max_step_tokens
    return Scheduler(Memory(kinds, is_shared), *limits, config.cache, whole=loaded.model_config.both_ways)


def _speculation(proposer: Proposer, loaded: LoadedModel, facts: ProposerContext) -> Speculation:
    config, vocab_size = loaded.config, loaded.model_config.vocab_size
    return Speculation(proposer, config.num_draft_tokens, config.max_step_tokens, vocab_size, facts)


def _suffix_store(loaded: LoadedModel) -> SuffixStore:
    """Open the store of texts, which all models with the same vocabulary share."""
    config, vocab_size = loaded.config, loaded.model_config.vocab_size
    identity = f"{vocab_size} {loaded.fingerprint.get('tokenizer')}"
    return SuffixStore(path_of(str(config.suffix_dir)), identity, vocab_size, config.suffix_limit * 1_000_000)


class _Told(Progress):
    def __init__(self, told: Told) -> None:
        self._told = told

    def advance(self, done: int, total: int) -> None:
        self._told(done, total)
