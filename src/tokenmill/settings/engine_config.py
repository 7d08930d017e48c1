"""EngineConfig: every setting of an engine; ResolvedConfig: the same with a value in the place of every default."""

import os
from dataclasses import dataclass
from os import PathLike
from typing import Any, TypedDict

from tokenmill.errors import ConfigError
from tokenmill.registry import ATTEND, FORMATS, PROGRAMS, PROPOSERS, SCHEMES
from tokenmill.settings.field import by_any_name, check_fields, setting
from tokenmill.value_reader import check_text

DEFAULT_MODEL = "smollm2-135m"
DEFAULT_MAX_LENGTH = 2048
"""Tokens of the longest text where nothing says more, or the model's context if that is less; see
loader/default_length.py."""
FUSIBLE = ("qkv", "gate_up", "norm", "rotary")
DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2}  # name → bytes per number

DTYPE_ALIASES = {"fp32": "float32", "float": "float32", "bf16": "bfloat16", "fp16": "float16", "half": "float16"}
"""Other names of dtypes, from torch, vLLM and llama.cpp."""


@by_any_name
@dataclass(frozen=True)
class EngineConfig:
    """The settings of an engine, in the order in which people look for them.

    model: a directory in Hugging Face layout, a `.gguf` file, a hub name, or a short name. Beyond the help of a field:
    dtype "auto" is bfloat16 for quantised files. block_size None stands for 32 with program native or prefix_dir, else
    one block per sequence. "compile" with one of static, dynamic and fullgraph asks for program compiled; "no" runs the
    same shapes as they stand, and "auto" is dynamic on CPU, static on CUDA. async_scheduling: tokens go from step to
    step on the device; the text is the same, but a proposer needs the tokens, so it is off with one. speculate "auto"
    drafts with program native, at most 25 ms of tokens per call. fingerprint "sampled" may miss a matrix that was
    edited in place. generation_config: generation_config.json, or general.sampling of a GGUF file. fuse "norm" rounds
    otherwise than the reference in bfloat16; program native has its own way and takes only the default. packed_cache:
    of program native.
    """

    # fmt: off
    model: str = setting(DEFAULT_MODEL, "")
    tokenizer: str | None = setting(None,
        "Take the tokenizer and the chat template of another model: a directory, .gguf file or name, as for the model.",
        metavar="MODEL")
    program: str = setting("auto", "What computes the forward pass: {names}. Auto takes the fastest that runs here.",
        names=PROGRAMS)
    dtype: str = setting("auto",
        f"Data type of weights and cache: auto, {', '.join(DTYPES)}. Auto keeps the checkpoint's own.",
        choices=("auto", *DTYPES))
    device: str = setting("auto", "cpu, cuda, cuda:1, … Auto takes cuda where there is one.")
    max_length: int | None = setting(None,
        "Longest sequence in tokens, prompt included. Default: the model's context, as far as memory allows.",
        options=("-c", "--ctx-size", "--max-model-len"))
    max_sequences: int = setting(1, "Maximum number of sequences in one step.",
        options=("--max-num-seqs", "--parallel", "--batch-size"))
    block_size: int | None = setting(None,
        "Tokens per cache block. Default: one sequence; 32 with program native, prefix-dir and in chat.")
    cache_tokens: int | None = setting(None,
        "Slots in the cache over all sequences. Default: max-sequences times max-length, or what windows need.")
    max_step_tokens: int = setting(512,
        "Maximum number of tokens in one step; longer prompts are prefilled in chunks.",
        options=("--max-num-batched-tokens",))
    prefix_cache: bool = setting(True,
        "Share cache blocks between equal prefixes (needs a block-size below max-length).",
        options=("--enable-prefix-caching", "--no-enable-prefix-caching", "--no-prefix-caching"))
    prefix_dir: str | None = setting(None, "Also keep shared blocks in this directory, for use after a restart.",
        metavar="DIR")
    prefix_limit: int | None = setting(None,
        "Size limit of that directory in MB; least recently used blocks are deleted. Default: a twentieth of the free "
        "disk, at most 4096.")
    cache: bool = setting(True,
        "Keep K and V of past tokens. Without it every step computes all of them again (a slow baseline).")
    kernel: str = setting("auto", "How attention reads the cache: {names}. Program native reads it by itself.",
        names=ATTEND)
    cache_format: str = setting("dense", "How the cache stores a row: {names} (half the memory). Auto is dense.",
        names=FORMATS, options=("--kv-cache-dtype",))
    scheme: str = setting("auto", "How matrices are stored: {names} (as the model's files have them).", names=SCHEMES)
    speculate: str = setting("auto", "Who proposes draft tokens: {names}. Auto: adaptive with program native.",
        names=PROPOSERS)
    num_draft_tokens: int | None = setting(None,
        "Maximum number of draft tokens per sequence and step. Default: by proposer.")
    draft_model: str | None = setting(None,
        "A second, smaller model that proposes: its name; q8 or q4 for this model with such weights; mtp for its own "
        "layer that predicts further tokens, which is the default of adaptive where the files have one; or none.",
        options=("--assistant-model", "--model-draft"))
    suffix_dir: str | None = setting(None,
        "Keep finished texts in this directory, as tokens, and draft from them, also after a restart.", metavar="DIR")
    suffix_limit: int = setting(256, "Size limit of that directory in MB; the oldest texts are deleted.")
    adapter: str | None = setting(None,
        "An adapter (LoRA) that computes every text: a directory of PEFT, or a GGUF file of llama.cpp.",
        metavar="PATH", options=("--lora",))
    lora_modules: str | None = setting(None,
        "Adapters beside the model, which requests name as their model: NAME=PATH, several with commas between.",
        metavar="NAME=PATH,…")
    max_loras: int = setting(64, "Adapters that are loaded at the same time; one more is refused.", minimum=1)
    max_lora_rank: int = setting(512, "Largest rank of an adapter; one with a larger rank is refused.", minimum=1)
    threads: int | None = setting(None, "CPU threads. Default: torch's choice.", options=("-t",))
    tensor_parallel: int = setting(1,
        "Processes that divide the model's matrices among them (ranks), each with as many threads as --threads says.",
        minimum=1, options=("-tp", "--tensor-parallel-size"))
    fingerprint: str = setting("sampled",
        "How a saved cache knows its model: sampled (some pages of its files) or full (every byte).",
        choices=("sampled", "full"))
    packed_cache: bool = setting(True,
        "Keep a packed copy of the model in the cache folder: the next start takes a fraction.")
    packed_limit: int | None = setting(None,
        "Size limit of all such copies in MB; least recently used ones are deleted. Default: a fifth of the free disk "
        "and of what they take, at most 20000.")
    compile: str = setting("auto",
        "Program compiled: auto, no, static (few shapes), dynamic (any length), fullgraph (as static).",
        choices=("auto", "no", "static", "dynamic", "fullgraph"))
    compile_phases: str = setting("decode", "Which steps are compiled: decode, prefill, or both.",
        choices=("decode", "prefill", "both"))
    compile_backend: str = setting("inductor", "A backend of torch.compile, by name.")
    compile_in_background: bool = setting(False, "The plain modules serve until the compiled form is ready.")
    max_waiting: int | None = setting(None,
        "Sequences that may wait to run; one more is refused. Default: any number.")
    async_scheduling: str = setting("auto",
        "Begin each step before the last one's tokens are read: on, off, or auto (on a GPU).",
        choices=("auto", "on", "off"))
    exact: bool = setting(False,
        "Program graphs: prompts and drafts by its own kernels, too, so that no bit depends on chunks or neighbours; "
        "slower than by torch's products.")
    fuse: str = setting("qkv,gate_up",
        "Operations that are fused: qkv, gate_up, norm, rotary, separated by commas; all, or none.", metavar="NAMES")
    aot_package: str | None = setting(None,
        "An AOT package of this model: a directory of compiled code from `tokenmill compile`.", metavar="DIR")
    aot_fallback: bool = setting(False, "Where the AOT package does not fit, warn and go on with the plain modules.")
    generation_config: bool = setting(False,
        "Sample as the model's files or its maker recommend, where no option says otherwise.")
    # fmt: on

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
        is_default = self.max_step_tokens == EngineConfig.max_step_tokens
        conflicts = {  # the name of a setting → what would be allowed, or False if there is no conflict
            "prefix_dir": self.prefix_dir is not None and not shares and "none, because prefix_cache or cache is off",
            "aot_package": has_package and self.program not in ("auto", "aot") and f"none, {program}",
            "program": self.program == "aot" and not has_package and "auto, or aot with an AOT package as aot_package",
            "compile": compiles and self.program not in ("auto", "compiled") and f"auto or no, {program}",
            "exact": self.exact and self.program != "graphs" and f"off, {program}; on is for program graphs",
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
        """True if a proposer, or something for one to draft from, was asked for."""
        return self.speculate not in ("auto", "off") or self.has_draft_model or self.suffix_dir is not None

    @property
    def has_draft_model(self) -> bool:
        """True if a draft model was asked for."""
        return self.draft_model not in (None, "none")

    @property
    def _draft_model_wanted(self) -> str:
        """The draft model that would be allowed, in words; empty if the one that is given is allowed."""
        why = f"because speculate is {self.speculate!r}"
        if not self.has_draft_model:
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


class EngineKeywords(TypedDict, total=False):
    """The settings as keywords of `load`, all but model, for type checkers. A dtype or device may be torch's."""

    tokenizer: str | PathLike[str] | None
    program: str
    dtype: Any
    device: Any
    max_length: int | None
    max_sequences: int
    block_size: int | None
    cache_tokens: int | None
    max_step_tokens: int
    prefix_cache: bool
    prefix_dir: str | PathLike[str] | None
    prefix_limit: int | None
    cache: bool
    kernel: str
    cache_format: str
    scheme: str
    speculate: str
    num_draft_tokens: int | None
    draft_model: str | PathLike[str] | None
    suffix_dir: str | PathLike[str] | None
    suffix_limit: int
    adapter: str | PathLike[str] | None
    lora_modules: str | PathLike[str] | None
    max_loras: int
    max_lora_rank: int
    threads: int | None
    tensor_parallel: int
    fingerprint: str
    packed_cache: bool
    packed_limit: int | None
    compile: str
    compile_phases: str
    compile_backend: str
    compile_in_background: bool
    max_waiting: int | None
    async_scheduling: str
    exact: bool
    fuse: str
    aot_package: str | PathLike[str] | None
    aot_fallback: bool
    generation_config: bool
