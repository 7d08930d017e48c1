"""Fill a decoder from a checkpoint, tensor by tensor, and prove that nothing is missing, left over or misshapen.

The decoder is built without memory. Then each module in turn is given memory, filled straight from the file (cast,
transformed and moved to the device on the way) and brought into its final form. The largest module is first, while most
memory is free. At no time is there a second copy of the weights, only of one matrix.
"""

import ctypes
from collections import defaultdict
from collections.abc import Callable, Collection
from math import prod

import torch
from torch import nn

from tokenmill.errors import CheckpointError
from tokenmill.model.config import ModelConfig
from tokenmill.model.decoder import Decoder
from tokenmill.model.families import find_family
from tokenmill.quant.schemes import Matrix, Scheme
from tokenmill.weights.checkpoint import Checkpoint
from tokenmill.weights.names import TRANSFORMS, Target, expand, is_ignored, part_of

__all__ = ["Progress", "allocate", "empty_decoder", "load_decoder", "match_tensors", "return_memory"]

Progress = Callable[[int, int], None]


def empty_decoder(config: ModelConfig, scheme: Scheme, num_positions: int, fused: Collection[str]) -> Decoder:
    """A decoder of the right shape whose parameters have no memory yet."""
    with torch.device("meta"):
        return Decoder(config, scheme, num_positions, fused).eval().requires_grad_(False)


def load_decoder(
    checkpoint: Checkpoint, decoder: Decoder, dtype: torch.dtype, device: torch.device, progress: Progress
) -> None:
    """Give the decoder memory and the checkpoint's weights. CheckpointError lists all that does not fit."""
    targets = match_tensors(checkpoint, decoder)
    modules: dict[str, list[str]] = defaultdict(list)
    for name, target in targets.items():
        modules[target.parameter.rpartition(".")[0]].append(name)
    sizes = {path: sum(prod(checkpoint.shapes[name]) for name in names) for path, names in modules.items()}
    done = 0
    for number, path in enumerate(sorted(modules, key=lambda path: -sizes[path])):
        module = decoder.get_submodule(path)
        allocate(module, dtype, device)
        for name in modules[path]:
            progress(done, len(targets))
            _place(checkpoint, name, targets[name], module, decoder.config)
            done += 1
        if isinstance(module, Matrix):
            module.finish()
        if number % 16 == 0:
            return_memory()
    progress(done, len(targets))
    # A head that is tied to the embedding takes the codes that the file has of it.
    if decoder.config.tie_embeddings and isinstance(decoder.head, Matrix) and decoder.head.keeps_codes:
        name = next(name for name, target in targets.items() if target.parameter == "embedding.weight")
        stored = checkpoint.read_codes(name)
        if stored is not None:
            decoder.head.keep(0, stored)
    decoder.finish()
    return_memory()


def return_memory() -> None:
    """Return freed memory to the system, which the C library would keep: 45 to 80 MB for SmolLM2."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc; other libraries return memory by themselves
    if trim is not None:
        trim(0)


def match_tensors(checkpoint: Checkpoint, decoder: Decoder) -> dict[str, Target]:
    """The checkpoint's own name of each tensor → its target.

    CheckpointError lists every tensor that is missing, unexpected or misshapen. Only names and shapes are read.
    """
    config, family = decoder.config, find_family(checkpoint.config)
    parameters = dict(decoder.named_parameters())
    if config.tie_embeddings:
        parameters.pop("head.weight", None)
    wanted = expand(family, config, parameters)
    targets, unexpected, misshapen = {}, [], []
    for name, shape in checkpoint.shapes.items():
        short = name.removeprefix(family.prefix)
        if short in wanted:
            target = targets[name] = wanted.pop(short)
            expected = tuple(part_of(parameters[target.parameter], target.part, config).shape)
            expected = expected[::-1] if target.transform == "transpose" else expected
            if shape != expected:
                misshapen.append(f"{name} {list(shape)} where {list(expected)} goes")
        # A second copy of tied embeddings is harmless.
        elif not is_ignored(family, short) and not (config.tie_embeddings and family.names.get(short) == "head.weight"):
            unexpected.append(name)
    if wanted or unexpected or misshapen:
        what = f"{checkpoint.path} does not fit its config"
        raise CheckpointError(what, missing=wanted, unexpected=unexpected, misshapen=misshapen)
    return targets


def allocate(module: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
    dtype = getattr(module, "fills_in", None) or dtype
    for name, parameter in module.named_parameters(recurse=False):
        empty = torch.empty(parameter.shape, dtype=dtype, device=device)
        setattr(module, name, nn.Parameter(empty, requires_grad=False))


def _place(checkpoint: Checkpoint, name: str, target: Target, module: nn.Module, config: ModelConfig) -> None:
    """Store one tensor, whose shape is right: as the file's codes if the module keeps them, else as values."""
    kind = target.parameter.rpartition(".")[2]
    place = part_of(module.get_parameter(kind), target.part, config)
    if isinstance(module, Matrix) and module.keeps_codes and kind == "weight":
        stored = checkpoint.read_codes(name)
        if stored is not None:
            # Codes are stored [outputs, inputs] in any case.
            transform = TRANSFORMS["" if target.transform == "transpose" else target.transform]
            first = place.storage_offset() // place.shape[1]
            if module.keep(first, stored.map(lambda part: transform(part, config))):
                return
    tensor = checkpoint.read(name)
    if not tensor.is_floating_point():
        raise CheckpointError(f"{name} holds {tensor.dtype}: quantised exports of this kind are not supported yet")
    if tensor.shape != checkpoint.shapes[name]:
        raise CheckpointError(f"{checkpoint.path} was changed while it was in use: {name} has another shape now")
    place.copy_(TRANSFORMS[target.transform](tensor, config))
