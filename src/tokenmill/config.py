"""The settings: EngineConfig for what is built once, SamplingParams for what each prompt may choose.

Both are frozen and check themselves when made. Their field names are the option names in Python, on the command
line and in the documentation. Nothing here imports torch: `--help` and bad options must answer at once.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from tokenmill.errors import ConfigError

__all__ = [
    "DEFAULT_MAX_LENGTH",
    "DEFAULT_MAX_NEW_TOKENS",
    "DEFAULT_MODEL",
    "DTYPES",
    "FUSIBLE",
    "CacheSettings",
    "CompileSettings",
    "EngineConfig",
    "ResolvedConfig",
    "SamplingParams",
    "ScheduleSettings",
    "as_keywords",
    "from_keywords",
]

DEFAULT_MODEL = "smollm2-135m"
DEFAULT_MAX_LENGTH = 2048
DEFAULT_MAX_NEW_TOKENS = 128
FUSIBLE = ("qkv", "gate_up", "norm", "rotary")
COMPILE = ("auto", "no", "static", "dynamic", "fullgraph")
DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2}  # name → bytes per number


@dataclass(frozen=True)
class CacheSettings:
    """The KV cache, and what of it is shared.

    cache: keep K and V of past tokens; False recomputes everything in each step, the slow baseline.
    cache_format: a name in the registry of cache formats.
    block_size: tokens per cache block; None means max_length, one contiguous block per sequence.
    cache_tokens: slots in the pool over all sequences (default max_sequences · max_length).
    prefix_cache: share full blocks between sequences that begin alike (needs block_size under max_length).
    prefix_dir: a directory where shared blocks outlive the engine; prefix_limit is how many MB they may take there.
    """

    cache: bool = True
    cache_format: str = "dense"
    block_size: int | None = None
    cache_tokens: int | None = None
    prefix_cache: bool = True
    prefix_dir: str | None = None
    prefix_limit: int = 4096

    def _check_cache(self) -> None:
        for name in ("cache", "prefix_cache"):
            _flag(name, getattr(self, name))
        _whole("prefix_limit", self.prefix_limit, 1)
        if self.prefix_dir is not None and not (self.prefix_cache and self.cache):
            raise ConfigError("prefix_dir", self.prefix_dir, "none, because prefix_cache or cache is off")


@dataclass(frozen=True)
class CompileSettings:
    """How program "compiled" compiles, and which AOT package stands in for it.

    compile: asking for one of these is asking for that program. "static" declares a few shapes and compiles each,
    "fullgraph" the same, and a graph break is an error, "dynamic" takes any lengths with one compilation of each kind,
    "no" runs the same shapes as they stand. "auto": dynamic on CPU, static on CUDA.
    compile_phases: "decode", "prefill" or "both"; the rest runs as it stands.
    compile_backend: any registered torch.compile backend.
    compile_in_background: the plain modules serve until the compiled form is ready.
    aot_package: a directory of compiled code from `tokenmill compile`, which is then the program.
    aot_fallback: if that does not fit, warn and go on with the plain modules.
    """

    compile: str = "auto"
    compile_phases: str = "decode"
    compile_backend: str = "inductor"
    compile_in_background: bool = False
    aot_package: str | None = None
    aot_fallback: bool = False

    def _check_compile(self, program: str) -> None:
        _one_of("compile", self.compile, COMPILE)
        _one_of("compile_phases", self.compile_phases, ("decode", "prefill", "both"))
        _flag("compile_in_background", self.compile_in_background)
        _flag("aot_fallback", self.aot_fallback)
        if self.aot_package is not None and program not in ("auto", "aot"):
            raise ConfigError("aot_package", self.aot_package, f"none, because program is {program!r}")
        if self.aot_package is None and program == "aot":
            raise ConfigError("program", "aot", "auto, or aot with an AOT package as aot_package")
        if program not in ("auto", "compiled") and self.compile not in ("auto", "no"):
            raise ConfigError("compile", self.compile, f"auto or no, because program is {program!r}")


@dataclass(frozen=True)
class ScheduleSettings:
    """Which sequences run in a step, and what is guessed ahead.

    max_sequences: sequences that may run in one step.
    max_step_tokens: token budget of one step; longer prompts are prefilled in chunks of at most this.
    max_waiting: sequences that may wait to run; one more is refused. None: any number.
    async_scheduling: "on" begins each step before the tokens of the one before are read: they go from step to step on
    the device. The text is the same. "auto" is on for CUDA; a proposer needs the tokens, so it is off with one.
    proposer: a name in the registry of proposers. "auto" is multi_step with program native, where greedy texts then
    come several tokens at a time, at most 25 ms of them; else none.
    num_drafts: max tokens that a proposer may guess for each sequence and step.
    """

    max_sequences: int = 1
    max_step_tokens: int = 512
    max_waiting: int | None = None
    async_scheduling: str = "auto"
    proposer: str = "auto"
    num_drafts: int = 4

    def _check_schedule(self) -> None:
        for name in ("max_sequences", "max_step_tokens", "num_drafts"):
            _whole(name, getattr(self, name), 1)
        if self.max_waiting is not None:
            _whole("max_waiting", self.max_waiting, 1)
        _one_of("async_scheduling", self.async_scheduling, ("auto", "on", "off"))
        if self.async_scheduling == "on" and self.proposer not in ("auto", "none"):
            allowed = f"auto or off, because proposer {self.proposer!r} reads every token"
            raise ConfigError("async_scheduling", "on", allowed)
        # Every running sequence must be able to move by one token in every step.
        if self.max_step_tokens < self.max_sequences:
            raise ConfigError(
                "max_step_tokens", self.max_step_tokens, f"at least max_sequences, which is {self.max_sequences}"
            )


@dataclass(frozen=True)
class EngineConfig(ScheduleSettings, CacheSettings, CompileSettings):
    """How an engine is built: the model and its program here, the rest in the groups above, under flat names.

    model: directory in Hugging Face layout, `.gguf` file, hub name, or short name.
    program: form of the forward pass, "auto" takes the fastest that does not refuse.
    dtype: of weights and cache, "auto" keeps the checkpoint's own (bfloat16 for quantised files).
    device: a torch device name, "auto" takes cuda where there is one.
    max_length: longest sequence in tokens, prompt included (default: the model's context, at most 2048).
    kernel, scheme: names in the registries of attention kernels and weight schemes.
    fingerprint: how the model's files are told from others where saved rows are used again: "sampled" reads headers and
    some pages, in milliseconds, and may miss a matrix that was edited in place; "full" reads every byte.
    threads: CPU threads of torch (default: torch's own choice).
    generation_config: take the sampling settings that the model's files recommend (generation_config.json, or
    general.sampling of a GGUF file) in the place of SamplingParams' own defaults.
    fuse: which neighbouring operations are one: qkv, gate_up, norm, rotary, with commas between; all, or none. In
    bfloat16 "norm" rounds otherwise than the reference. Program native has its own way and takes only the default.
    """

    model: str = DEFAULT_MODEL
    program: str = "auto"
    dtype: str = "auto"
    device: str = "auto"
    max_length: int | None = None
    kernel: str = "auto"
    scheme: str = "auto"
    threads: int | None = None
    fuse: str = "qkv,gate_up"
    fingerprint: str = "sampled"
    generation_config: bool = False

    def __post_init__(self) -> None:
        _one_of("dtype", self.dtype, ("auto", *DTYPES))
        for name in ("max_length", "block_size", "cache_tokens", "threads"):
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), 1)
        _flag("generation_config", self.generation_config)
        _one_of("fingerprint", self.fingerprint, ("sampled", "full"))
        for name in self.fused:
            _one_of("fuse", name, FUSIBLE)
        self._check_cache()
        self._check_compile(self.program)
        self._check_schedule()
        if not self.cache and self.proposer not in ("auto", "none"):
            raise ConfigError("proposer", self.proposer, "none, because cache is off and guesses need one")
        if None not in (self.block_size, self.max_length) and self.block_size > self.max_length:  # type: ignore[operator]
            raise ConfigError("block_size", self.block_size, f"at most max_length, which is {self.max_length}")

    @property
    def fused(self) -> tuple[str, ...]:
        """The names that `fuse` stands for."""
        return {"all": FUSIBLE, "none": ()}.get(self.fuse, tuple(self.fuse.split(",")))


@dataclass(frozen=True)
class ResolvedConfig(EngineConfig):
    """The same with a value in the place of every default. Made by engine/resolve.py."""

    max_length: int = DEFAULT_MAX_LENGTH
    block_size: int = DEFAULT_MAX_LENGTH
    cache_tokens: int = DEFAULT_MAX_LENGTH
    threads: int = 1


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of one sequence are chosen.

    max_new_tokens: most tokens to generate (None: 128, or what the context leaves).
    min_new_tokens: end-of-sequence and stop tokens are masked until so many were generated.
    temperature: 0 is argmax exactly; otherwise logits are divided by it.
    top_k (0 off), top_p (1 off), min_p (0 off): which tokens may be drawn.
    repetition_penalty (1 off): over prompt and output (Keskar et al. 2019, arXiv 1909.05858).
    presence_penalty, frequency_penalty (0 off): subtracted, over the output only, as OpenAI's API defines them.
    logit_bias: token id → amount added to its logit.
    stop: texts that end the output; include_stop keeps the text that matched.
    stop_token_ids: ids that end the output, beside the model's own; ignore_eos goes on past the model's own.
    seed: with it the token at position p draws one number from (seed, p); None takes a fresh one and reports it.
    logprobs: None for none, 0 for the chosen token's log-probability, k for the k likeliest beside it.
    n: how many continuations of the prompt; the i-th uses seed + i.
    """

    max_new_tokens: int | None = None
    min_new_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None
    n: int = 1

    def __post_init__(self) -> None:
        self._make_plain()
        if self.max_new_tokens is not None:
            _whole("max_new_tokens", self.max_new_tokens, 1)
        self._check_ranges()

    @cached_property
    def takes_largest(self) -> bool:
        """Whether every token is the largest of the model's own logits, and nothing else is asked about it."""
        return self.temperature == 0 and not self.logit_bias and not self.looks_back

    @cached_property
    def looks_back(self) -> bool:
        """Whether a choice, or what is reported of it, needs the values of the tokens before it on the host."""
        penalties = (self.repetition_penalty - 1, self.presence_penalty, self.frequency_penalty)
        return self.logprobs is not None or any(penalties)

    def _make_plain(self) -> None:
        """Tuples for lists, a tuple for one text; containers and flags of the right kind."""
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        for name in ("stop", "stop_token_ids"):
            if not isinstance(getattr(self, name), list | tuple):
                raise ConfigError(name, getattr(self, name), "a list; an empty one for none")
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not isinstance(self.logit_bias, Mapping):
            raise ConfigError("logit_bias", self.logit_bias, "a mapping of token ids to numbers")
        for name in ("include_stop", "ignore_eos"):
            _flag(name, getattr(self, name))

    def _check_ranges(self) -> None:
        _whole("min_new_tokens", self.min_new_tokens, 0)
        if self.max_new_tokens is not None and self.min_new_tokens > self.max_new_tokens:
            raise ConfigError(
                "min_new_tokens", self.min_new_tokens, f"at most max_new_tokens, which is {self.max_new_tokens}"
            )
        _between("temperature", self.temperature, 0.0, 100.0)
        _whole("top_k", self.top_k, 0)
        _between("top_p", self.top_p, 0.0, 1.0, above=True)
        _between("min_p", self.min_p, 0.0, 1.0)
        _between("repetition_penalty", self.repetition_penalty, 0.0, 100.0, above=True)
        _between("presence_penalty", self.presence_penalty, -100.0, 100.0)
        _between("frequency_penalty", self.frequency_penalty, -100.0, 100.0)
        for token, bias in self.logit_bias.items():
            _whole("logit_bias token id", token, 0)
            _between(f"logit_bias[{token}]", bias, -1000.0, 1000.0)
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise ConfigError("stop", text, "texts of at least one character")
        for token in self.stop_token_ids:
            _whole("stop_token_ids", token, 0)
        if self.seed is not None:
            _whole("seed", self.seed, 0, 2**63 - 1)
        if self.logprobs is not None:
            _whole("logprobs", self.logprobs, 0, 1000)
        _whole("n", self.n, 1, 1000)


def as_keywords(settings: Any) -> dict[str, Any]:
    """The fields of a settings object by name: what from_keywords makes it of."""
    return {entry.name: getattr(settings, entry.name) for entry in fields(settings)}


def from_keywords(kind: type[Any], keywords: Mapping[str, Any]) -> Any:
    """Build a settings object; an unknown keyword is an error that lists the valid ones."""
    names = [entry.name for entry in fields(kind)]
    for name, value in keywords.items():
        if name not in names:
            raise ConfigError(name, value, f"no such setting; {kind.__name__} has {', '.join(names)}")
    return kind(**keywords)


def _whole(name: str, value: object, least: int, most: int | None = None) -> None:
    limits = f"a whole number, {least} or more" if most is None else f"a whole number from {least} to {most}"
    if not isinstance(value, int) or isinstance(value, bool) or value < least or (most is not None and value > most):
        raise ConfigError(name, value, limits)


def _between(name: str, value: object, least: float, most: float, above: bool = False) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not (least < value if above else least <= value) or not value <= most:  # type: ignore[operator]
        bound = "above" if above else "from"
        raise ConfigError(
            name, value, f"a number {bound} {least:g} {'and up' if above else ''} to {most:g}".replace("  ", " ")
        )


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ConfigError(name, value, "true or false")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(name, value, f"use one of {', '.join(allowed)}")
