"""The longest text of an engine where max_length is not given: the model's context, as far as memory allows.

A text may always have DEFAULT_MAX_LENGTH tokens, or the model's context where that is shorter. It may have more, up to
the context, while the cache of one text of that length, with the rotary tables, takes at most SHARE of the memory that
is free beside the weights. Several sequences do not get a larger cache by this: all of them together have the cache
for DEFAULT_MAX_LENGTH each, or for one text at its longest. Settings that are given are never changed.

The text of a model does not depend on its length, with one exception: LongRoPE (Phi-3) rotates all positions otherwise
where texts may pass the length that the model was trained on. So the default never passes that length by itself: free
memory would otherwise decide the text.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from tokenmill.kernels.devices import free_bytes
from tokenmill.loader.resolve import ResolvedModel
from tokenmill.model.description import describe
from tokenmill.settings.engine_config import DTYPES, EngineConfig
from tokenmill.units import size

SHARE = 0.25
"""A share of the memory that is free beside the weights; the rest is for activations, other engines and programs."""
STEP = 1024  # tokens: a length that memory decides is a multiple of it

Resolve = Callable[[EngineConfig], ResolvedModel]
Free = Callable[[str], int]


class Followed(NamedTuple):
    """Settings whose max_length follows the model. why: one line where that is less than the context; else empty."""

    config: EngineConfig
    why: str = ""


def part_of_free(number: int) -> Free:
    """Return the function that counts the bytes of one of so many equal engines."""
    return lambda device: free_bytes(device) // number


def follow_context(config: EngineConfig, resolve: Resolve, free: Free | None = None) -> Followed:
    """Choose max_length, and with several sequences cache_tokens, where they are not given.

    free: counts the bytes of a device that the engine may take; None: all that are free.
    ConfigError where the settings cannot be combined.
    """
    if config.max_length is not None:
        return Followed(config)
    resolved = resolve(config)
    model, usual = resolved.model, resolved.config.max_length
    if usual == model.context:
        return Followed(config)
    if why := _why_usual(config, resolved):
        return _said(config, resolved, usual, why)
    longest, why = model.context, ""
    for rope in describe(model).ropes:
        if rope.most_short is not None and usual <= rope.most_short < longest:
            longest, why = rope.most_short, "beyond that its LongRoPE rotates all positions otherwise"
    if config.cache_tokens is not None:
        within = max(usual, min(longest, config.cache_tokens))
        return _said(config, resolved, within, "as many as cache_tokens" if within < longest else why)
    available = int(SHARE * max((free or free_bytes)(resolved.config.device) - resolved.weight_bytes, 0))

    def needed(length: int) -> int:
        return _bytes_of_one(resolve(replace(config, max_length=length, max_sequences=1)))

    if (wanted := needed(longest)) > available:
        steps = range(usual // STEP, longest // STEP + 1)
        fitting = bisect_right(steps, available, key=lambda step: needed(max(step * STEP, 1)))
        longest = max(steps[fitting - 1] * STEP if fitting else 0, usual)
        why = f"a quarter of the free memory is {size(available)}, and its cache would take {size(wanted)}"
    return _said(_with_cache(config, resolve, usual, longest), resolved, longest, why)


def _why_usual(config: EngineConfig, resolved: ResolvedModel) -> str:
    """Say why texts get no longer than usual, in words; empty where they may."""
    name = resolved.program_name
    if not resolved.program.attends and name != "eager":
        return f"program {name} is compiled for lengths"
    if not resolved.program.attends and config.max_sequences > 1 and config.block_size is None:
        return f"each of the {config.max_sequences} sequences of program {name} has a block for its longest text"
    if config.has_draft_model:
        return "the draft model has a cache of the same length"
    return "" if config.cache else "without the cache each step computes all of a text"


def _bytes_of_one(resolved: ResolvedModel) -> int:
    """Count the bytes of the cache of one sequence at its longest, and of the rotary tables."""
    config = resolved.config
    rotary = sum(2 * config.max_length * rope.dim * DTYPES[config.dtype] for rope in describe(resolved.model).ropes)
    return resolved.cache.num_bytes + rotary


def _with_cache(config: EngineConfig, resolve: Resolve, usual: int, longest: int) -> EngineConfig:
    """Set that length. Several sequences share the cache of all at the usual length, or of one at its longest."""
    longer = replace(config, max_length=longest)
    if config.max_sequences == 1 or longest == usual:
        return longer
    all_usual = resolve(replace(config, max_length=usual)).config.cache_tokens
    one_longest = resolve(replace(longer, max_sequences=1)).config.cache_tokens
    return replace(longer, cache_tokens=max(all_usual, one_longest))


def _said(config: EngineConfig, resolved: ResolvedModel, length: int, why: str) -> Followed:
    """Set that length, and write the line that says why it is less than the model's context."""
    context = resolved.model.context
    said = f"texts may have {length} tokens, of the model's context of {context}: {why}; max_length sets another length"
    return Followed(replace(config, max_length=length), said if length < context else "")
