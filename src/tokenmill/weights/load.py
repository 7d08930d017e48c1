"""Fill a decoder from a checkpoint, tensor by tensor, and prove that nothing is missing, left over or misshapen.

The decoder is built without memory. Then each module in turn is given memory, filled straight from the file (cast,
transformed and moved to the device on the way) and brought into its final form. At no time is there a second copy of
the weights, only of one matrix.
"""

import ctypes
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from math import prod

import torch
from torch import nn

from tokenmill.errors import CheckpointError
from tokenmill.model.config import ModelConfig
from tokenmill.model.decoder import Decoder
from tokenmill.model.families import Family, find_family
from tokenmill.model.fusion import DEFAULT_FUSED
from tokenmill.quant.schemes import Matrix, Scheme
from tokenmill.weights.checkpoint import Checkpoint
from tokenmill.weights.names import TRANSFORMS, Target, expand, is_ignored, part_of

__all__ = ["allocate", "empty_decoder", "load_decoder", "match_tensors", "return_memory"]

Progress = Callable[[int, int], None]


def empty_decoder(
    config: ModelConfig, scheme: Scheme, num_positions: int, fused: Collection[str] = DEFAULT_FUSED
) -> Decoder:
    """A decoder of the right shape whose parameters have no memory yet."""
    with torch.device("meta"):
        return Decoder(config, scheme, num_positions, fused).eval().requires_grad_(False)


def load_decoder(
    checkpoint: Checkpoint,
    decoder: Decoder,
    dtype: torch.dtype,
    device: torch.device,
    progress: Progress | None = None,
) -> Decoder:
    """Give the decoder memory and the checkpoint's weights. CheckpointError lists all that does not fit."""
    targets = match_tensors(checkpoint, decoder)
    _fill(checkpoint, targets, decoder, dtype, device, progress)
    _keep_tied_head(checkpoint, targets, decoder)
    decoder.finish()
    return_memory()
    return decoder


def _keep_tied_head(checkpoint: Checkpoint, targets: Mapping[str, Target], decoder: Decoder) -> None:
    """A head that is tied to the embedding takes the codes that the file has of it."""
    if decoder.config.tie_embeddings and isinstance(decoder.head, Matrix) and decoder.head.keeps_codes:
        name = next(name for name, target in targets.items() if target.parameter == "embedding.weight")
        stored = checkpoint.read_codes(name)
        if stored is not None and decoder.head.takes(stored):
            decoder.head.keep(0, stored)


def return_memory() -> None:
    """Return freed memory to the system, which the C library would keep: 45 to 80 MB for SmolLM2."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc; other libraries return memory by themselves
    if trim is not None:
        trim(0)


def match_tensors(checkpoint: Checkpoint, decoder: Decoder) -> dict[str, Target]:
    """The checkpoint's own name of each tensor → its target.

    CheckpointError lists every tensor that is missing, unexpected or misshapen. Only names and shapes are read: nothing
    needs to be allocated before the two sides are known to match.
    """
    config, family = decoder.config, find_family(checkpoint.config)
    parameters = dict(decoder.named_parameters())
    wanted = expand(family, config, parameters)
    if config.tie_embeddings:
        wanted = {name: target for name, target in wanted.items() if target.parameter != "head.weight"}
    targets, unexpected, misshapen = {}, [], []
    for name, shape in checkpoint.shapes.items():
        short = name.removeprefix(family.prefix)
        if short in wanted:
            target = targets[name] = wanted.pop(short)
            expected = tuple(part_of(parameters[target.parameter], target.part, config).shape)
            expected = expected[::-1] if target.transform == "transpose" else expected
            if shape != expected:
                misshapen.append(f"{name} {list(shape)} where {list(expected)} goes")
        elif not is_ignored(family, short) and not (config.tie_embeddings and _is_head(family, short)):
            unexpected.append(name)
    if wanted or unexpected or misshapen:
        what = f"{checkpoint.path} does not fit its config"
        raise CheckpointError(what, missing=wanted, unexpected=unexpected, misshapen=misshapen)
    return targets


def _is_head(family: Family, name: str) -> bool:
    return family.names.get(name) == "head.weight"  # a second copy of tied embeddings is harmless


def _fill(
    checkpoint: Checkpoint,
    targets: Mapping[str, Target],
    decoder: Decoder,
    dtype: torch.dtype,
    device: torch.device,
    progress: Progress | None,
) -> None:
    """Module by module: memory, tensors, final form. The largest is first, while most memory is free."""
    modules: dict[str, list[str]] = defaultdict(list)
    for name, target in targets.items():
        modules[target.parameter.rpartition(".")[0]].append(name)
    sizes = {path: sum(prod(checkpoint.shapes[name]) for name in names) for path, names in modules.items()}
    done = 0
    for number, path in enumerate(sorted(modules, key=lambda path: -sizes[path])):
        module = decoder.get_submodule(path)
        allocate(module, dtype, device)
        for name in modules[path]:
            if progress is not None:
                progress(done, len(targets))
            _place(checkpoint, name, targets[name], module, decoder.config)
            done += 1
        if isinstance(module, Matrix):
            module.finish()
        if number % 16 == 0:
            return_memory()
    if progress is not None:
        progress(len(targets), len(targets))


def allocate(module: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
    """Uninitialised memory for the module's own parameters, in place of the meta ones."""
    dtype = getattr(module, "fills_in", None) or dtype
    for name, parameter in module.named_parameters(recurse=False):
        empty = torch.empty(parameter.shape, dtype=dtype, device=device)
        setattr(module, name, nn.Parameter(empty, requires_grad=False))


def _place(checkpoint: Checkpoint, name: str, target: Target, module: nn.Module, config: ModelConfig) -> None:
    """Copy one tensor, whose shape is known to be right, to its place."""
    if isinstance(module, Matrix) and module.keeps_codes and _keep(checkpoint, name, target, module, config):
        return
    tensor = checkpoint.read(name)
    if not tensor.is_floating_point():
        raise CheckpointError(f"{name} holds {tensor.dtype}: quantised exports of this kind are not supported yet")
    if tensor.shape != checkpoint.shapes[name]:
        raise CheckpointError(f"{checkpoint.path} was changed while it was in use: {name} has another shape now")
    place = part_of(module.get_parameter(target.parameter.rpartition(".")[2]), target.part, config)
    place.copy_(TRANSFORMS[target.transform](tensor, config))


def _keep(checkpoint: Checkpoint, name: str, target: Target, module: Matrix, config: ModelConfig) -> bool:
    """Store the file's own codes, if it has any for this tensor and they fit the tensor's place; whether it did."""
    if not target.parameter.endswith(".weight"):
        return False
    stored = checkpoint.read_codes(name)
    assert module.weight is not None
    place = part_of(module.weight, target.part, config)
    transposed = target.transform == "transpose"  # codes are stored [outputs, inputs] in any case
    shape = checkpoint.shapes[name][::-1] if transposed else checkpoint.shapes[name]
    if stored is None or not module.takes(stored) or shape != tuple(place.shape):
        return False
    first = place.storage_offset() // module.weight.shape[1]
    transform = TRANSFORMS["" if transposed else target.transform]
    module.keep(first, stored.map(lambda part: transform(part, config)))
    return True
