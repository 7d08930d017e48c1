"""Settings for many users at once, chosen from the memory and processors that there are before anything is loaded."""

from bisect import bisect_right
from dataclasses import replace

from tokenmill.errors import CapacityError
from tokenmill.kernels.devices import free_bytes
from tokenmill.loader.default_length import Free, follow_context
from tokenmill.loader.resolve import ResolvedModel, resolve
from tokenmill.memory.available import available_processors
from tokenmill.model.config import ModelConfig
from tokenmill.settings.engine_config import EngineConfig

SEQUENCES_PER_CORE, MOST_SEQUENCES = 8, 64
SHARE = 0.8  # of what is free after the weights; the rest is for prompts, answers and activations


def fit_for_many(
    config: EngineConfig, model: ModelConfig, num_sequences: int | None, free: Free | None = None, follow: bool = False
) -> EngineConfig:
    """Choose so many sequences (None: by the processors) and a cache that fits; settings of the cache that are given
    hold.

    free: counts the bytes of a device that the engine may take; None: all that are free. follow: a max_length that is
    not given follows the model's context, see loader/default_length.py; otherwise it is the usual one.

    CapacityError if the weights do not fit, or one sequence of max_length, or cache_tokens: it names the largest that
    would.
    """
    default = min(MOST_SEQUENCES, SEQUENCES_PER_CORE * available_processors(), config.max_step_tokens)
    config = replace(config, max_sequences=num_sequences or default)
    followed = follow_context(config, lambda given: resolve(given, model), free).config if follow else config
    wanted = config.cache_tokens or followed.cache_tokens
    config = replace(config, max_length=followed.max_length)
    resolved = resolve(config, model)
    spare, most = _most_tokens(resolved, free)
    max_length, block_size = resolved.config.max_length, resolved.config.block_size
    if config.cache_tokens is not None and config.cache_tokens > most:
        raise CapacityError("cache_tokens that fit in memory", config.cache_tokens, most, "cache_tokens")
    if min(max_length, resolved.window.max_blocks(max_length) * block_size) > most:
        # Blocks become smaller too: where there is one for each sequence, and where not even one block fits.
        longest = spare if most == 0 or block_size == max_length else most
        names = "max_length" if config.block_size is None or longest == most else "max_length and block_size"
        raise CapacityError("max_length that fits in memory", max_length, longest, f"{names} to {longest}")
    cache_tokens = config.cache_tokens or min(wanted or resolved.config.cache_tokens, most)
    return replace(config, max_length=max_length, cache_tokens=cache_tokens)


def _most_tokens(resolved: ResolvedModel, free: Free | None) -> tuple[int, int]:
    """Count the tokens of the largest cache that fits beside the weights, and the tokens of its whole blocks."""
    available = (free or free_bytes)(resolved.config.device)
    spec, weights = resolved.cache, resolved.weight_bytes + resolved.scratch_bytes
    if weights >= available:
        raise CapacityError("memory for the weights", weights, available, "model or scheme", in_bytes=True)
    shared = int(SHARE * (available - weights))
    spare = shared // max(spec.bytes_per_token, 1)
    if spec.states:
        spare = _most_blocks(resolved, shared, spare // spec.block_size) * spec.block_size
    if spare == 0:
        raise CapacityError("memory for the cache", spec.bytes_per_token, 0, "model or scheme", in_bytes=True)
    return spare, spare // spec.block_size * spec.block_size


def _most_blocks(resolved: ResolvedModel, free: int, most: int) -> int:
    """Count the blocks of the largest cache, of at most so many, that fits with its states: larger ones have more."""

    def needed(num_blocks: int) -> int:
        given = replace(resolved.given, cache_tokens=num_blocks * resolved.config.block_size)
        return resolve(given, resolved.model).cache.num_bytes

    return bisect_right(range(1, most + 1), free, key=needed)
