"""A checkpoint as a LoadedModel: the kernel and the program chosen, cache and weights in memory.

Settings that cannot be combined are refused here, before a weight is read.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from tokenmill.cache.pool import Pool
from tokenmill.cache.spec import CacheSpec
from tokenmill.errors import CapacityError, ConfigError, PackageMismatch, naming
from tokenmill.kernels.attend.kernel import choose as choose_kernel
from tokenmill.kernels.threads import default_threads, torch_threads, usable_threads
from tokenmill.loader.loaded import LoadedModel
from tokenmill.loader.resolve import FLOAT16_ON_CPU, Forms, cache_spec, choose_forms, resolve_config
from tokenmill.memory.arena import Allocate, unreserved
from tokenmill.memory.available import available_bytes
from tokenmill.model.config import ModelConfig
from tokenmill.model.description import describe
from tokenmill.model.families import read_config
from tokenmill.program.aot.package import made_for, open_package
from tokenmill.program.forward import ModelParts, find_program
from tokenmill.program.runner import Runner
from tokenmill.quant.schemes import REFERENCE, find_scheme
from tokenmill.registry import PROPOSERS, lookup
from tokenmill.settings.engine_config import EngineConfig, ResolvedConfig
from tokenmill.speculate.proposer import choose as choose_proposer
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.weights.checkpoint import Checkpoint
from tokenmill.weights.fingerprint import fingerprint, is_full
from tokenmill.weights.generation import recommended
from tokenmill.weights.load import Fill, Progress, empty_decoder, filled, load_decoder, match_tensors, return_memory
from tokenmill.weights.packed.model import PackedCheckpoint

__all__ = ["load_model"]

log = logging.getLogger(__name__)


def load_model(
    checkpoint: Checkpoint,
    config: EngineConfig,
    progress: Progress | None = None,
    fill: Callable[..., Fill] = load_decoder,
    allocate: Allocate = unreserved,
) -> LoadedModel:
    """A model with its program and its own cache.

    `fill` gives the empty decoder its weights, `allocate` the memory for weights that the program packs.
    """
    if isinstance(checkpoint, PackedCheckpoint):
        config = config if checkpoint.is_copy else _as_packed(config, checkpoint)
        checkpoint.start_reading()  # meanwhile the tokenizer is made
    model_config = read_config(checkpoint.config)
    resolved = resolve_config(config, model_config, default_threads())
    with torch_threads(resolved.threads), naming(checkpoint.path):
        return _load(checkpoint, model_config, resolved, config.threads, progress, fill, allocate)


def _load(
    checkpoint: Checkpoint,
    model_config: ModelConfig,
    resolved: ResolvedConfig,
    given_threads: int | None,
    progress: Progress | None,
    fill: Callable[..., Fill],
    allocate: Allocate,
) -> LoadedModel:
    packed = checkpoint if isinstance(checkpoint, PackedCheckpoint) else None
    device = torch.device(resolved.device)
    tokenizer = _tokenizer(checkpoint, model_config.vocab_size)
    spec = cache_spec(resolved, model_config)
    kernel_name, kernel = choose_kernel(
        resolved.kernel, spec, device, resolved.max_length, describe(model_config).attention_shapes
    )
    forms = choose_forms(resolved, model_config)
    threads = _threads(resolved.threads, given_threads, forms)
    resolved = replace(resolved, scheme=forms.scheme_name, threads=threads)
    resolved = choose_proposer(resolved, forms.program.finds_drafts)
    lookup(PROPOSERS, resolved.speculate, "speculate")
    digests = _fingerprint(checkpoint, resolved)  # before the weights, because the files may be replaced later
    package = None
    if resolved.aot_package is not None:
        try:
            package = open_package(Path(resolved.aot_package), made_for(resolved, digests, device), device)
        except PackageMismatch as error:
            if not resolved.aot_fallback:
                raise
            log.warning("%s; the plain modules serve", error)
            resolved = replace(resolved, aot_package=None, program="eager")
            forms = choose_forms(resolved, model_config)
    _tell(resolved, model_config, forms)
    decoder = empty_decoder(model_config, forms.scheme, resolved.max_length, _fused(resolved))
    if checkpoint.shapes:  # a shape without files, for benchmarks, has none
        match_tensors(checkpoint, decoder)
    pool = _allocate(spec, device)  # before the weights, so that what does not fit is refused at once
    dtype = getattr(torch, resolved.dtype)
    fill_matrix: Fill = filled
    if packed is None:
        told = progress or (lambda done, total: None)
        fill_matrix = fill(checkpoint, decoder, dtype, device, told, forms.program.packs)
    else:
        decoder.to(dtype)  # its parameters have no memory
    parts = ModelParts(decoder, pool, kernel, packed, package, resolved, fill_matrix, allocate)
    program = find_program(forms.program_name)(parts)
    names = forms.program_name, forms.reason, forms.program_name if forms.program.attends else kernel_name
    runner, defaults = Runner(program, pool, device), recommended(checkpoint, resolved.generation_config)
    return_memory()  # of headers and tokenizers that were parsed
    return LoadedModel(
        resolved, model_config, tokenizer, program, pool, runner, *names, digests, defaults, forms.refusals
    )


def _tell(config: ResolvedConfig, model: ModelConfig, forms: Forms) -> None:
    """What was chosen where something faster or closer to the checkpoint was to be expected."""
    for name, reason in forms.refusals.items():
        log.info("program %s runs, which is slower than %s; that one %s", forms.program_name, name, reason)
    if (model.dtype, config.dtype) == ("float16", FLOAT16_ON_CPU) and config.device == "cpu":
        log.info("the float16 checkpoint is computed in %s: programs of a CPU have no float16", config.dtype)


def _threads(count: int, given: int | None, forms: Forms) -> int:
    """The threads of a program. In a forked process one that computes with torch has one; see kernels/threads.py."""
    usable = count if forms.program.has_threads else usable_threads(count)
    if given is not None and given > usable:
        message = (
            "threads = %d is ignored: program %s computes with torch, whose threads a forked process does not have"
        )
        log.warning(message, given, forms.program_name)
    return usable


def _tokenizer(checkpoint: Checkpoint, vocab_size: int) -> Tokenizer | None:
    tokenizer = checkpoint.tokenizer()
    is_checked = isinstance(checkpoint, PackedCheckpoint)  # when it was packed
    if tokenizer is not None and not is_checked and tokenizer.num_tokens > vocab_size:
        message = "%s: the tokenizer has %d tokens and the model %d: a text with one of the others is refused"
        log.warning(message, checkpoint.path, tokenizer.num_tokens, vocab_size)
    return tokenizer


def _fused(config: ResolvedConfig) -> tuple[str, ...]:
    """The fused operations; only plain matrices can be left unfused."""
    if not {"qkv", "gate_up"} <= set(config.fused) and not find_scheme(config.scheme).is_plain:
        allowed = f"with qkv and gate_up, because scheme is {config.scheme!r}, not {REFERENCE}"
        raise ConfigError("fuse", config.fuse, allowed)
    return config.fused


def _fingerprint(checkpoint: Checkpoint, config: ResolvedConfig) -> dict[str, str]:
    """The fingerprint; of a packed model, that of the model it was made of."""
    if not isinstance(checkpoint, PackedCheckpoint):
        return fingerprint(checkpoint.path, config.fingerprint)
    digests = dict(checkpoint.facts["fingerprint"])
    if config.fingerprint == "full" and not is_full(digests):
        raise ConfigError("fingerprint", "full", f"sampled, because {checkpoint.path} was made with that")
    return digests


def _as_packed(config: EngineConfig, packed: PackedCheckpoint) -> EngineConfig:
    """With the settings that a packed model was made for; ConfigError if another value is given."""
    fixed = {name: packed.facts[name] for name in ("program", "dtype", "scheme")}
    for name, value in fixed.items():
        if (given := getattr(config, name)) not in ("auto", value):
            allowed = f"{value}: {packed.path} is packed for that; give the model, or another file"
            raise ConfigError(name, given, allowed)
    return replace(config, **fixed)


def _allocate(spec: CacheSpec, device: torch.device) -> Pool:
    try:
        return Pool(spec, device)
    except (RuntimeError, MemoryError, OSError) as error:  # torch's allocators raise RuntimeError, mmap OSError
        available = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_bytes()
        setting = "max_length, max_sequences or cache_tokens"
        reason = getattr(error, "strerror", None) or (str(error).splitlines() or ["no reason"])[0]
        what = f"memory for a cache of {spec.num_slots} tokens, which the system refuses ({reason})"
        raise CapacityError(what, spec.num_bytes, available, setting, in_bytes=True) from error
