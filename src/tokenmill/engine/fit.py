"""Settings for many users at once, chosen from the memory and processors that there are before anything is loaded."""

from dataclasses import replace

from tokenmill.config import EngineConfig, ResolvedConfig
from tokenmill.engine.resolve import cache_spec, choose_forms, resolve_config
from tokenmill.errors import CapacityError
from tokenmill.kernels.devices import free_bytes
from tokenmill.memory.available import available_processors
from tokenmill.model.config import ModelConfig

__all__ = ["fit_for_many"]

SEQUENCES_PER_CORE, MOST_SEQUENCES = 8, 64
SHARE = 0.8  # of what is free after the weights; the rest is for prompts, answers and activations


def fit_for_many(config: EngineConfig, model: ModelConfig, num_sequences: int | None) -> EngineConfig:
    """With so many sequences (None: by the processors) and a cache that fits; what config says of the cache holds.

    CapacityError if the weights do not fit, or one sequence of max_length, or cache_tokens: it names the largest that
    would.
    """
    default = min(MOST_SEQUENCES, SEQUENCES_PER_CORE * available_processors(), config.max_step_tokens)
    config = replace(config, max_sequences=num_sequences or default)
    resolved = resolve_config(config, model)
    spare, most = _most_tokens(resolved, model)
    if config.cache_tokens is not None and config.cache_tokens > most:
        raise CapacityError("cache_tokens that fit in memory", config.cache_tokens, most, "cache_tokens")
    if resolved.max_length > most:
        # Blocks become smaller too: where there is one for each sequence, and where not even one block fits.
        longest = spare if most == 0 or resolved.block_size == resolved.max_length else most
        names = "max_length" if config.block_size is None or longest == most else "max_length and block_size"
        raise CapacityError("max_length that fits in memory", resolved.max_length, longest, f"{names} to {longest}")
    return replace(config, cache_tokens=config.cache_tokens or min(resolved.cache_tokens, most))


def _most_tokens(config: ResolvedConfig, model: ModelConfig) -> tuple[int, int]:
    """Tokens of the largest cache that fits beside the weights, and those of its whole blocks."""
    spec, forms = cache_spec(config, model), choose_forms(config, model)
    weights = forms.program.weight_bytes(model, config.dtype, forms.scheme)
    available = free_bytes(config.device)
    if weights >= available:
        raise CapacityError("memory for the weights", weights, available, "model or scheme", in_bytes=True)
    spare = int(SHARE * (available - weights)) // spec.bytes_per_token
    if spare == 0:
        raise CapacityError("memory for the cache", spec.bytes_per_token, 0, "model or scheme", in_bytes=True)
    return spare, spare // spec.block_size * spec.block_size
