"""The settings: EngineConfig for what is built once, SamplingParams for what each prompt may choose.

Both are frozen and check themselves when made: each field by its type and by the choices or limits beside it. Their
field names are the option names in Python, on the command line and in the documentation. Nothing here imports torch:
`--help` and bad options must answer at once.
"""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import cached_property, wraps
from numbers import Real
from typing import Any, TypeVar

from tokenmill.checks import check_fields, check_number, check_text, check_token_id
from tokenmill.errors import ConfigError

__all__ = [
    "DEFAULT_MAX_LENGTH",
    "DEFAULT_MAX_NEW_TOKENS",
    "DEFAULT_MODEL",
    "DTYPES",
    "FUSIBLE",
    "EngineConfig",
    "ResolvedConfig",
    "SamplingParams",
]

DEFAULT_MODEL = "smollm2-135m"
DEFAULT_MAX_LENGTH = 2048
DEFAULT_MAX_NEW_TOKENS = 128
MAX_BAD_WORDS = 1000
MAX_STOP = 10_000  # characters of all stop texts, since each of them is looked for at every token
FUSIBLE = ("qkv", "gate_up", "norm", "rotary")
DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2}  # name → bytes per number

ALIASES = {"max_tokens": "max_new_tokens"}
"""Other names of settings, which OpenAI's API and vLLM use."""

DTYPE_ALIASES = {"fp32": "float32", "float": "float32", "bf16": "bfloat16", "fp16": "float16", "half": "float16"}
"""Other names of dtypes: those of torch, vLLM and llama.cpp."""

Settings = TypeVar("Settings")


def _by_any_name(kind: type[Settings]) -> type[Settings]:
    """Take ALIASES as keywords too. An unknown one is an error that names the nearest and lists the valid ones."""
    names, make = [entry.name for entry in fields(kind)], kind.__init__  # type: ignore[arg-type]

    @wraps(make)
    def named(self: Settings, /, *given: Any, **keywords: Any) -> None:
        values: dict[str, Any] = {}
        for word, value in keywords.items():
            name = ALIASES.get(word, word)
            if name not in names:
                hint = "".join(f"; did you mean {near!r}?" for near in get_close_matches(word, names, n=1))
                raise ConfigError(word, value, f"no such setting{hint}; {kind.__name__} has {', '.join(names)}")
            if (first := values.setdefault(name, value)) is not value and first != value:
                words = " or ".join(each for each in keywords if ALIASES.get(each, each) == name)
                raise ConfigError(word, value, f"give {words}, not both with different values ({first} and {value})")
        make(self, *given, **values)

    kind.__init__ = named  # type: ignore[assignment, method-assign]
    return kind


@dataclass(frozen=True)
class CacheSettings:
    """The KV cache, and what of it is shared.

    cache: keep K and V of past tokens; False recomputes everything in each step, the slow baseline.
    cache_format: a name in the registry of cache formats; "auto" is dense.
    block_size: tokens per cache block; None is 32 with program native or prefix_dir, else one block per sequence.
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


@dataclass(frozen=True)
class CompileSettings:
    """How program "compiled" compiles, and which AOT package stands in for it.

    compile: asking for one of these is asking for that program. "static" declares a few shapes and compiles each,
    "fullgraph" the same, "dynamic" takes any lengths with one compilation of each kind,
    "no" runs the same shapes as they stand. "auto": dynamic on CPU, static on CUDA.
    compile_phases: "decode", "prefill" or "both"; the rest runs as it stands.
    compile_backend: any registered torch.compile backend.
    compile_in_background: the plain modules serve until the compiled form is ready.
    aot_package: a directory of compiled code from `tokenmill compile`, which is then the program.
    aot_fallback: if that does not fit, warn and go on with the plain modules.
    """

    compile: str = field(default="auto", metadata={"choices": ("auto", "no", "static", "dynamic", "fullgraph")})
    compile_phases: str = field(default="decode", metadata={"choices": ("decode", "prefill", "both")})
    compile_backend: str = "inductor"
    compile_in_background: bool = False
    aot_package: str | None = None
    aot_fallback: bool = False


@dataclass(frozen=True)
class ScheduleSettings:
    """Which sequences run in a step, and what is guessed ahead.

    max_sequences: sequences that may run in one step.
    max_step_tokens: token budget of one step; longer prompts are prefilled in chunks of at most this.
    max_waiting: sequences that may wait to run; one more is refused. None: any number.
    async_scheduling: "on" begins each step before the tokens of the one before are read: they go from step to step on
    the device. The text is the same. "auto" is on for CUDA; a proposer needs the tokens, so it is off with one.
    speculate: who proposes draft tokens, a name in the registry of proposers. "auto" is adaptive with program native,
    where greedy texts then come several tokens at a time, at most 25 ms of them; else off.
    num_draft_tokens: max tokens that a proposer may guess for each sequence and step (default: by proposer).
    draft_model: a second model that proposes: its name, as for `model`, or q8 or q4 for this model with such weights.
    suffix_dir: a directory that keeps finished texts, as tokens, to draft later ones from; suffix_limit: in MB.
    """

    max_sequences: int = 1
    max_step_tokens: int = 512
    max_waiting: int | None = None
    async_scheduling: str = field(default="auto", metadata={"choices": ("auto", "on", "off")})
    speculate: str = "auto"
    num_draft_tokens: int | None = None
    draft_model: str | None = None
    suffix_dir: str | None = None
    suffix_limit: int = 256


@_by_any_name
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
    packed_cache: keep a packed copy of a model that program native loads in the cache folder (TOKENMILL_CACHE), so that
    the next start only maps it. packed_limit is how many MB all of them may take there.
    """

    model: str = DEFAULT_MODEL
    program: str = "auto"
    dtype: str = field(default="auto", metadata={"choices": ("auto", *DTYPES)})
    device: str = "auto"
    max_length: int | None = None
    kernel: str = "auto"
    scheme: str = "auto"
    threads: int | None = None
    fuse: str = "qkv,gate_up"
    fingerprint: str = field(default="sampled", metadata={"choices": ("sampled", "full")})
    generation_config: bool = False
    packed_cache: bool = True
    packed_limit: int = 20_000

    def __post_init__(self) -> None:
        for name in ("dtype", "device"):  # torch.float32, torch.device("cpu")
            object.__setattr__(self, name, str(getattr(self, name)).removeprefix("torch."))
        object.__setattr__(self, "dtype", DTYPE_ALIASES.get(self.dtype, self.dtype))
        if str(self.cache_format) == "auto":
            object.__setattr__(self, "cache_format", "dense")
        check_fields(self)
        for name in self.fused:
            check_text("fuse", name, FUSIBLE)
        has_package, compiles = self.aot_package is not None, self.compile not in ("auto", "no")
        program, proposer = f"because program is {self.program!r}", f"because speculate is {self.speculate!r}"
        has_suffix = self.speculate in ("auto", "suffix", "adaptive")
        reads = f"auto or off, because speculation by {self.speculate!r} reads every token"
        shares = self.prefix_cache and self.cache
        max_threads = max(16, 4 * (cores := os.cpu_count() or 1))
        # Every running sequence must be able to move by one token in every step. The setting that was given is blamed.
        is_crowded = self.max_step_tokens < self.max_sequences
        is_default = self.max_step_tokens == ScheduleSettings.max_step_tokens
        conflicts = {  # the name of a setting → what would be allowed, or False if there is no conflict
            "prefix_dir": self.prefix_dir is not None and not shares and "none, because prefix_cache or cache is off",
            "aot_package": has_package and self.program not in ("auto", "aot") and f"none, {program}",
            "program": self.program == "aot" and not has_package and "auto, or aot with an AOT package as aot_package",
            "compile": compiles and self.program not in ("auto", "compiled") and f"auto or no, {program}",
            "async_scheduling": self.async_scheduling == "on" and self.speculates and reads,
            "draft_model": self._draft_model_wanted,
            "suffix_dir": self.suffix_dir is not None and not has_suffix and f"none, {proposer}",
            "speculate": self.speculates and not self.cache and "off, because cache is off and guesses need one",
            "max_sequences": is_crowded and is_default and f"at most max_step_tokens, which is {self.max_step_tokens}",
            "max_step_tokens": is_crowded and f"at least max_sequences, which is {self.max_sequences}",
            "threads": (self.threads or 1) > max_threads and f"at most {max_threads} on this machine of {cores} cores",
        }
        for name, allowed in conflicts.items():
            if allowed:
                raise ConfigError(name, getattr(self, name), allowed)

    @property
    def speculates(self) -> bool:
        """Whether a proposer, or something for one to draft from, was asked for."""
        return self.speculate not in ("auto", "off") or self.draft_model is not None or self.suffix_dir is not None

    @property
    def _draft_model_wanted(self) -> str:
        """What would be allowed as the draft model; nothing if the one that is given is."""
        why = f"because speculate is {self.speculate!r}"
        if self.draft_model is None:
            return f"a model, {why}" * (self.speculate == "draft_model")
        if self.speculate not in ("auto", "draft_model", "adaptive"):
            return f"none, {why}"
        return "none, because cache is off and guesses need one" * (not self.cache)

    @property
    def fused(self) -> tuple[str, ...]:
        """The names that `fuse` stands for."""
        return {"all": FUSIBLE, "none": ()}.get(self.fuse, tuple(self.fuse.split(",")))


@dataclass(frozen=True)
class ResolvedConfig(EngineConfig):
    """An EngineConfig with a value in the place of every default. Made by loader/resolve.py."""

    max_length: int = DEFAULT_MAX_LENGTH
    block_size: int = DEFAULT_MAX_LENGTH
    cache_tokens: int = DEFAULT_MAX_LENGTH
    threads: int = 1
    num_draft_tokens: int = 4


@_by_any_name
@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of one sequence are chosen.

    max_new_tokens: max tokens to generate (None: 128, or what the context leaves; -1: all that the context leaves).
    min_new_tokens: until this many were generated, end-of-sequence and stop tokens are masked and no stop text ends it.
    temperature: 0 is argmax exactly; otherwise logits are divided by it.
    top_k (0 and -1 off), top_p (1 off), min_p (0 off): which tokens may be drawn.
    repetition_penalty (1 off, 0.01 at least): over prompt and output (Keskar et al. 2019, arXiv 1909.05858).
    presence_penalty, frequency_penalty (0 off): subtracted, over the output only, as OpenAI's API defines them.
    logit_bias: token id → amount added to its logit; -inf forbids it.
    stop: texts that end the output; include_stop keeps the text that matched.
    stop_token_ids: ids that end the output, beside the model's own; ignore_eos goes on past the model's own.
    seed: with it the token at position p draws one number from (seed, p); None takes a fresh one and reports it.
    allowed_token_ids: the only ids that may be chosen; None for any.
    bad_words: words that the output never holds: the token that would complete one is forbidden (vLLM's rule).
    skip_special_tokens: leave special tokens out of the text.
    logprobs: None for none, 0 for the chosen token's log-probability, k for the k likeliest beside it.
    n: how many continuations of the prompt; the i-th uses seed + i.
    """

    max_new_tokens: int | None = field(default=None, metadata={"minimum": -1})
    min_new_tokens: int = field(default=0, metadata={"minimum": 0})
    temperature: float = field(default=0.0, metadata={"minimum": 0, "maximum": 100})
    top_k: int = field(default=0, metadata={"minimum": -1})
    top_p: float = field(default=1.0, metadata={"minimum": 0, "maximum": 1, "exclusive": True})
    min_p: float = field(default=0.0, metadata={"minimum": 0, "maximum": 1})
    repetition_penalty: float = field(default=1.0, metadata={"minimum": 0.01, "maximum": 100})
    presence_penalty: float = field(default=0.0, metadata={"minimum": -100, "maximum": 100})
    frequency_penalty: float = field(default=0.0, metadata={"minimum": -100, "maximum": 100})
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    seed: int | None = field(default=None, metadata={"minimum": 0, "maximum": 2**63 - 1})
    logprobs: int | None = field(default=None, metadata={"minimum": 0, "maximum": 1000})
    n: int = field(default=1, metadata={"maximum": 1000})

    def __post_init__(self) -> None:
        # Tuples for lists, empty containers for None, Python's numbers for numpy's, and ids for the texts of JSON.
        for name, check in LISTS.items():
            value = getattr(self, name)
            value = (value,) if isinstance(value, str) and check is check_text else value
            if not isinstance(value, list | tuple | None):
                raise ConfigError(name, value, "a list; an empty one for none")
            checked = getattr(SamplingParams, name) if value is None else tuple(check(name, each) for each in value)
            object.__setattr__(self, name, checked)
        if self.allowed_token_ids == ():
            raise ConfigError("allowed_token_ids", [], "at least one id; without the setting every id is allowed")
        if len(self.bad_words) > MAX_BAD_WORDS:
            raise ConfigError("bad_words", f"{len(self.bad_words)} words", f"at most {MAX_BAD_WORDS} words")
        if (length := sum(map(len, self.stop))) > MAX_STOP:
            raise ConfigError("stop", f"texts of {length:,} characters", f"at most {MAX_STOP:,} in all")
        given, bias = {} if self.logit_bias is None else self.logit_bias, {}
        if not isinstance(given, Mapping):
            raise ConfigError("logit_bias", given, "a mapping of token ids to numbers")
        for key, value in given.items():
            is_text = isinstance(key, str) and key.isdecimal() and len(key) < 20
            token = check_token_id("logit_bias token id", int(key) if is_text else key)
            least = -math.inf if isinstance(value, Real) and value == -math.inf else -1000
            bias[token] = check_number(f"logit_bias[{token}]", value, False, least, 1000)
        object.__setattr__(self, "logit_bias", bias)
        check_fields(self)
        longest = math.inf if self.max_new_tokens in (None, -1) else self.max_new_tokens
        if longest == 0:
            raise ConfigError("max_new_tokens", 0, "1 or more; or -1 for all that the context leaves")
        if self.min_new_tokens > longest:
            raise ConfigError("min_new_tokens", self.min_new_tokens, f"at most max_new_tokens, which is {longest}")

    @cached_property
    def looks_back(self) -> bool:
        """Whether a choice, or what is reported of it, needs the values of the tokens before it on the host."""
        penalties = (self.repetition_penalty - 1, self.presence_penalty, self.frequency_penalty)
        return self.logprobs is not None or bool(self.bad_words) or any(penalties)

    @cached_property
    def changes_logits(self) -> bool:
        """Whether a setting that does not look back may make another token than the model's likeliest the largest."""
        return bool(self.logit_bias) or self.allowed_token_ids is not None


LISTS: Mapping[str, Callable[[str, Any], Any]] = {
    "stop": check_text,
    "bad_words": check_text,
    "stop_token_ids": check_token_id,
    "allowed_token_ids": check_token_id,
}
"""The settings that are lists, and the check of an entry."""
