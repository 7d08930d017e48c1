"""A model resolved: everything that settings and its config decide, decided once, before anything is built."""

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import inf

from tokenmill.cache.formats import find_format
from tokenmill.cache.spec import CacheSpec
from tokenmill.errors import ConfigError
from tokenmill.kernels.devices import find_device, kind_of
from tokenmill.model.config import ModelConfig
from tokenmill.model.description import describe
from tokenmill.model.features import states_of
from tokenmill.model.per_layer import held_in_memory
from tokenmill.program.spec import Choice, ProgramSpec, preferred_schemes
from tokenmill.program.spec import choose as choose_program
from tokenmill.quant.schemes import AS_STORED, Scheme
from tokenmill.quant.schemes import choose as choose_scheme
from tokenmill.schedule.row_blocks import Window
from tokenmill.settings.engine_config import DEFAULT_MAX_LENGTH, EngineConfig, ResolvedConfig
from tokenmill.speculate.proposer import default_drafts
from tokenmill.value_reader import path_of

FLOAT16_ON_CPU = "float32"
"""The dtype of a float16 checkpoint on a CPU, with programs that are slow in float16. float32 holds all of its numbers;
bfloat16 would round them."""

SHARED_BLOCK = 32
"""The default block size, in tokens, where blocks are meant to be shared: as fast as whole sequences for a program that
reads the cache by itself; kernels of kernels/attend copy the rows of such blocks together at each step."""
MAX_DRAFT_STATES = 7
"""Drafts of a step where layers keep states: each takes a slot, of 50 MB for Qwen 3.5 4B, in which the state after it
stands until it is known how many are accepted."""
MAX_SNAPSHOTS = 1024  # the choice of the one that goes reads all of them, which takes 0.4 ms


@dataclass(frozen=True)
class ResolvedModel:
    """All that an engine will have and take, decided once: loading it decides nothing again.

    given: the settings as they were given. config: with a value for every default; its scheme is no longer "auto".
    program_reason: why that program. program_refusals: the faster programs, and why each cannot run the model.
    """

    given: EngineConfig
    config: ResolvedConfig
    model: ModelConfig
    cache: CacheSpec
    program_name: str
    program_reason: str
    program: type[ProgramSpec]
    program_refusals: Mapping[str, str]
    scheme: Scheme

    @cached_property
    def window(self) -> Window:
        """Find the rows that a sequence keeps. Without the cache each step reads all rows."""
        return _window(self.config, self.cache)

    @cached_property
    def longest_text(self) -> int:
        """Compute the length of the longest text, prompt included, for which the settings and the cache have room."""
        config = self.config
        if self.window.size is not None and self.window.max_blocks(config.max_length) <= self.cache.num_blocks:
            return config.max_length
        return min(config.max_length, config.cache_tokens)

    @cached_property
    def cache_limit(self) -> float:
        """Return cache_tokens where it was set to less than all sequences need; infinity where it grows with
        max_length, or is enough for a window, and so for a text of any length.
        """
        grows = self.config.cache_tokens >= default_blocks(self.config, self.cache) * self.config.block_size
        is_enough = self.window.max_blocks(sys.maxsize) <= self.cache.num_blocks
        return inf if grows or is_enough else self.config.cache_tokens

    @property
    def weight_bytes(self) -> int:
        """Count the bytes of the weights in the form that the program multiplies with."""
        return self.program.weight_bytes(self.model, self.config.dtype, self.scheme)

    @property
    def scratch_bytes(self) -> int:
        """Count the bytes that the program keeps for its steps beside weights and cache."""
        return self.program.scratch_bytes(self.config, self.model)

    @property
    def copy_bytes(self) -> int:
        """Count the bytes of the weights in a packed copy, for a program that packs them."""
        return self.program.copy_bytes(self.model, self.config.dtype, self.scheme)


def resolve(given: EngineConfig, model: ModelConfig, threads: int = 1) -> ResolvedModel:
    """Resolve settings and a model's config. ConfigError for what cannot be combined, with every reason.

    threads: the number of CPU threads where given.threads is None. No other setting depends on it, so that callers
    which only describe a model may leave it out.
    """
    config = _lengths(given, model, threads)
    config, chosen = _with_dtype(config, model) if given.dtype == "auto" else _with_program(config, model)
    config = _with_blocks(config, given, model, chosen.program)
    return _resolved(given, config, model, chosen)


def resolve_with(resolved: ResolvedModel, config: ResolvedConfig) -> ResolvedModel:
    """Replace the config, which a load has changed; the program is chosen anew if it was changed."""
    if config.program == resolved.config.program:
        return replace(resolved, config=config)
    return _resolved(resolved.given, config, resolved.model, _choose(config, resolved.model))


def _resolved(given: EngineConfig, config: ResolvedConfig, model: ModelConfig, chosen: Choice) -> ResolvedModel:
    model = model if kind_of(config.device) == "cpu" else held_in_memory(model)
    name, scheme = choose_scheme(config.scheme, config.device, config.dtype, preferred_schemes(chosen.program))
    return ResolvedModel(given, replace(config, scheme=name), model, _cache_spec(config, model), *chosen, scheme)


def _lengths(given: EngineConfig, model: ModelConfig, threads: int) -> ResolvedConfig:
    """Fill in every value that does not depend on the program."""
    max_length = given.max_length or min(DEFAULT_MAX_LENGTH, model.context)
    if max_length > model.context:
        raise ConfigError("max_length", max_length, f"at most this model's context, {model.context}")
    if (given.block_size or 0) > max_length:
        raise ConfigError("block_size", given.block_size, f"at most max_length, which is {max_length}")
    for name in ("prefix_dir", "suffix_dir"):
        if (folder := getattr(given, name)) is not None and path_of(folder).is_file():
            raise ConfigError(name, folder, "a directory, which may be new")
    device, has_proposer = find_device(given.device), given.speculates
    scheduling = given.async_scheduling
    if scheduling == "auto":
        scheduling = "on" if kind_of(device) == "cuda" and not has_proposer else "off"
    find_format(given.cache_format)
    return ResolvedConfig(
        **asdict(given)
        | {
            "device": device,
            "dtype": model.dtype if given.dtype == "auto" else given.dtype,
            "max_length": max_length,
            "block_size": given.block_size or max_length,
            "cache_tokens": given.cache_tokens or max_length,
            "num_draft_tokens": given.num_draft_tokens or default_drafts(given.speculate),
            "threads": given.threads or max(1, threads // given.tensor_parallel),
            "async_scheduling": scheduling,
        }
    )


def _with_dtype(config: ResolvedConfig, model: ModelConfig) -> tuple[ResolvedConfig, Choice]:
    """Keep the checkpoint's own dtype, unless the program is slow in it."""
    kept, chosen = _with_program(config, model)
    if (config.dtype, kind_of(config.device)) != ("float16", "cpu") or chosen.program.multiplies_float16:
        return kept, chosen
    return _with_program(replace(config, dtype=FLOAT16_ON_CPU), model)


def _with_program(config: ResolvedConfig, model: ModelConfig) -> tuple[ResolvedConfig, Choice]:
    """Choose the program. A quantised file stays as it is, in any dtype, unless no program here can run its codes."""
    if config.scheme == "auto" and model.codes:
        kept = replace(config, scheme=AS_STORED)
        try:
            chosen = _choose(kept, model)
        except ConfigError:
            pass
        else:
            if AS_STORED in preferred_schemes(chosen.program):
                return kept, chosen
    return config, _choose(config, model)


def _choose(config: ResolvedConfig, model: ModelConfig) -> Choice:
    return choose_program(config, model, _cache_spec(config, model), config.device)


def _with_blocks(
    config: ResolvedConfig, given: EngineConfig, model: ModelConfig, program: type[ProgramSpec]
) -> ResolvedConfig:
    """Fill in the size of blocks, and as many whole ones as all sequences need at their longest."""
    size = config.block_size
    is_cut = given.prefix_dir is not None or program.attends or bool(states_of(describe(model)))
    if given.block_size is None and is_cut:
        size = min(SHARED_BLOCK, size)
    config = replace(config, block_size=size)
    return replace(config, cache_tokens=given.cache_tokens or default_blocks(config, _cache_spec(config, model)) * size)


def default_blocks(config: ResolvedConfig, cache: CacheSpec) -> int:
    """Count the blocks with which no sequence ever waits for one, where all have max_length tokens."""
    num_steps = 2 if config.async_scheduling == "on" else 1  # a step in flight gives nothing back
    num_fed = num_steps * config.max_step_tokens
    return _window(config, cache).max_blocks(config.max_length, num_fed, config.max_sequences)


def _window(config: ResolvedConfig, cache: CacheSpec) -> Window:
    return Window(cache.window if config.cache else None, config.block_size)


def _cache_spec(config: ResolvedConfig, model: ModelConfig) -> CacheSpec:
    """Describe the cache of a resolved config: whole blocks, as many as `cache_tokens` needs."""
    spec = CacheSpec(
        layers=describe(model).keeps,
        dtype=config.dtype,
        format=config.cache_format,
        block_size=config.block_size,
        num_blocks=-(-config.cache_tokens // config.block_size),
    )
    return replace(spec, num_states=_num_states(config, spec)) if spec.states else spec


def _num_states(config: ResolvedConfig, spec: CacheSpec) -> int:
    """Count the slots of states: two of each text that runs, since a step that may go back keeps the one with which it
    begins; as many after drafts; and snapshots, two for each text, where its prompt and its answer end, or as many as
    take the memory of the rows, if that is more: then a text that fills the cache can go back to one of them within
    `tokens_per_state` tokens.
    """
    running, shares = 2 * config.max_sequences, config.prefix_cache and config.cache
    most = min(spec.num_slots // tokens_per_state(spec), spec.num_blocks, MAX_SNAPSHOTS)
    return running + num_draft_states(config) + (max(running, most) if shares else 0)


def tokens_per_state(spec: CacheSpec) -> int:
    """Count the tokens whose rows are as large as a slot of states; no number reaches it where no layer keeps rows."""
    return -(-spec.bytes_per_state // spec.bytes_per_token) if spec.bytes_per_token else sys.maxsize


def num_draft_states(config: ResolvedConfig) -> int:
    """Count the slots for the states after each draft of a step, which all texts share."""
    drafts = config.speculate not in ("off", "multi_step")  # what the program finds itself is not taken away one by one
    return min(config.num_draft_tokens, MAX_DRAFT_STATES) if drafts else 0
