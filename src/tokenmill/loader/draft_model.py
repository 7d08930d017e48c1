"""The draft model of an engine, loaded beside the model: another one, or the same one with smaller weights."""

from dataclasses import replace

from tokenmill.errors import CapacityError, ConfigError
from tokenmill.hub.names import locate
from tokenmill.kernels.devices import free_bytes
from tokenmill.loader.copies import start_reading
from tokenmill.loader.loaded import LoadedModel
from tokenmill.loader.packed_copy import load_with_copy, open_files, resolve_opened
from tokenmill.model.families import read_config
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.weights.checkpoint import Checkpoint
from tokenmill.weights.packed.model import PackedCheckpoint
from tokenmill.weights.source import Progress

DRAFT_SCHEMES = ("q8", "q4")  # as a draft model: this model with such weights


def load_draft_model(checkpoint: Checkpoint, target: LoadedModel, progress: Progress | None) -> LoadedModel:
    """Load it with a cache for as many texts, and of the same length, as `target`, which came from that checkpoint.

    CapacityError where it does not fit beside the model.
    """
    config, name = target.config, str(target.config.draft_model)
    is_same = name in DRAFT_SCHEMES
    settings = EngineConfig(
        model=config.model if is_same else name,
        tokenizer=config.tokenizer if is_same else None,
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
    source = _open_same(checkpoint, settings) if is_same else open_files(locate(name), settings)
    max_length = min(config.max_length, read_config(source.config).context)
    block_size = config.block_size if config.block_size < max_length else None
    source, resolved = resolve_opened(source, replace(settings, max_length=max_length, block_size=block_size))
    needed, available = resolved.cache.num_bytes + resolved.weight_bytes, free_bytes(resolved.config.device)
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
