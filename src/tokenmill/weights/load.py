"""Fills a decoder from a checkpoint, tensor by tensor, and proves that nothing is missing, left over or misshapen.

The decoder is built without memory. Then each module in turn is given memory, filled straight from the file (cast,
transformed and moved to the device on the way) and brought into its final form: by the matrix itself, the largest
first, or by a program that packs all matrices in an order of its own. At no time is there a second copy of the weights,
only of one matrix.
"""

import ctypes
from collections import defaultdict
from collections.abc import Callable, Collection
from math import prod

import torch
from torch import Tensor, nn

from tokenmill.errors import CheckpointError, naming
from tokenmill.model.config import ModelConfig
from tokenmill.model.decoder import Decoder
from tokenmill.model.families import find_family
from tokenmill.model.layers import Embedding
from tokenmill.quant.matrix import Matrix
from tokenmill.quant.schemes import Scheme
from tokenmill.quant.stored import Stored
from tokenmill.weights.checkpoint import Checkpoint
from tokenmill.weights.names import TRANSFORMS, Target, expand, is_ignored, part_of

__all__ = [
    "Fill",
    "Loader",
    "Progress",
    "allocate",
    "empty_decoder",
    "load_decoder",
    "match_tensors",
    "read_values",
    "return_memory",
]

RETURNED = 16  # matrices after which freed memory is given back
Progress = Callable[[int, int], None]
Fill = Callable[[Matrix | Embedding], None]  # gives a matrix, or the embedding as codes, its weights, if it has none


def empty_decoder(config: ModelConfig, scheme: Scheme, num_positions: int, fused: Collection[str]) -> Decoder:
    """A decoder of the right shape whose parameters have no memory yet."""
    with torch.device("meta"):
        return Decoder(config, scheme, num_positions, fused).eval().requires_grad_(False)


def load_decoder(
    checkpoint: Checkpoint,
    decoder: Decoder,
    dtype: torch.dtype,
    device: torch.device,
    progress: Progress,
    packs: bool = False,
) -> Fill:
    """Give the decoder memory and the checkpoint's weights. CheckpointError lists all that does not fit.

    packs: matrices stay empty, and the program that packs them fills each by the function that is returned.
    """
    loader = Loader(checkpoint, decoder, dtype, device, progress)
    loader.fill_small(later=(decoder.embedding,) if packs and decoder.has_coded_embedding else ())
    for number, matrix in enumerate(() if packs else loader.matrices):
        loader.fill(matrix)
        matrix.finish()
        if number % RETURNED == 0:
            return_memory()
    decoder.finish()
    return_memory()
    return loader.fill if packs else filled


def filled(matrix: Matrix | Embedding) -> None:
    """The Fill of a decoder whose matrices have their weights."""


class Loader:
    """Fills a decoder: what is small at once, each matrix when it is asked for.

    progress: is told the bytes of the checkpoint's tensors that were read, and of all of them.
    """

    def __init__(
        self, checkpoint: Checkpoint, decoder: Decoder, dtype: torch.dtype, device: torch.device, progress: Progress
    ) -> None:
        self._checkpoint, self._decoder, self._progress = checkpoint, decoder, progress
        self._dtype, self._device, self._done = dtype, device, 0
        self._targets: dict[nn.Module, list[tuple[str, Target]]] = defaultdict(list)
        targets = match_tensors(checkpoint, decoder)
        for name, target in targets.items():
            self._targets[decoder.get_submodule(target.parameter.rpartition(".")[0])].append((name, target))
        self._total = sum(prod(checkpoint.shapes[name]) for name in targets)

    @property
    def matrices(self) -> list[Matrix]:
        """The largest first, while most memory is free; a tied head has no tensors of its own, and is the last."""
        found = [module for module in self._targets if isinstance(module, Matrix)]
        found.sort(key=lambda matrix: -sum(prod(self._checkpoint.shapes[name]) for name, _ in self._targets[matrix]))
        head = self._tied_head
        return found if head is None else [*found, head]

    def fill_small(self, later: Collection[nn.Module] = ()) -> None:
        """Tables, norms and biases: all but the weights of matrices, and the modules that are filled `later`."""
        self._progress(0, self._total)
        for module, targets in self._targets.items():
            if module in later:
                module.to(self._dtype)  # still without memory
                continue
            is_matrix = isinstance(module, Matrix)
            allocate(module, self._dtype, self._device, without=("weight",) if is_matrix else ())
            for name, target in targets:
                if not (is_matrix and target.parameter.endswith(".weight")):
                    self._place(name, target, module)

    def fill(self, matrix: Matrix | Embedding) -> None:
        """The weights of one matrix, which is not finished yet; or the codes of the embedding."""
        if isinstance(matrix, Embedding):
            matrix.codes = self._embedding_codes()
            return
        if matrix is self._tied_head:
            self._fill_tied(matrix)
            return
        allocate(matrix, self._dtype, self._device, only=("weight",))
        with naming(self._checkpoint.path):
            for name, target in self.weights_of(matrix):
                self._place(name, target, matrix)

    def weights_of(self, matrix: Matrix) -> list[tuple[str, Target]]:
        """The tensors that the weight of a matrix is filled from."""
        return [(name, target) for name, target in self._targets[matrix] if target.parameter.endswith(".weight")]

    @property
    def _tied_head(self) -> Matrix | None:
        return self._decoder.head if self._decoder.config.tie_embeddings else None

    def _fill_tied(self, head: Matrix) -> None:
        """A head that is tied to the embedding takes the codes that the file has of it, or its values."""
        head.weight = self._decoder.embedding.weight
        stored = self._embedding_codes() if head.keeps_codes else None
        if stored is not None:
            head.keep(0, stored)

    def _embedding_codes(self) -> Stored | None:
        ((name, _),) = self._targets[self._decoder.embedding]
        return self._checkpoint.read_codes(name)

    def _place(self, name: str, target: Target, module: nn.Module) -> None:
        _place(self._checkpoint, name, target, module, self._decoder.config)
        self._done += prod(self._checkpoint.shapes[name])
        self._progress(self._done, self._total)


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
            expected = tuple(part_of(parameters[target.parameter], target, config).shape)
            expected = expected[::-1] if target.transform == "transpose" else expected
            if shape != expected:
                misshapen.append(f"{name} {list(shape)} where {list(expected)} goes")
        elif not is_ignored(family, short):
            unexpected.append(name)
    if wanted or unexpected or misshapen:
        what = f"{checkpoint.path} does not fit its config"
        raise CheckpointError(what, missing=wanted, unexpected=unexpected, misshapen=misshapen)
    return targets


def allocate(
    module: nn.Module,
    dtype: torch.dtype,
    device: torch.device,
    only: Collection[str] = (),
    without: Collection[str] = (),
) -> None:
    """Memory for a module's own parameters, or for those of these names."""
    dtype = getattr(module, "fills_in", None) or dtype
    for name, parameter in list(module.named_parameters(recurse=False)):
        if name in without or (only and name not in only):
            continue
        empty = torch.empty(parameter.shape, dtype=dtype, device=device)
        setattr(module, name, nn.Parameter(empty, requires_grad=False))


def _place(checkpoint: Checkpoint, name: str, target: Target, module: nn.Module, config: ModelConfig) -> None:
    """Store one tensor, whose shape is right: as the file's codes if the module keeps them, else as values."""
    kind = target.parameter.rpartition(".")[2]
    place = part_of(module.get_parameter(kind), target, config)
    if isinstance(module, Matrix) and module.keeps_codes and kind == "weight":
        stored = checkpoint.read_codes(name)
        if stored is not None:
            # Codes are stored [outputs, inputs] in any case.
            transform = TRANSFORMS["" if target.transform == "transpose" else target.transform]
            first = place.storage_offset() // place.shape[1]
            if module.keep(first, stored.map(lambda part: transform(part, config))):
                return
    place.copy_(TRANSFORMS[target.transform](read_values(checkpoint, name, place.dtype), config))


def read_values(checkpoint: Checkpoint, name: str, dtype: torch.dtype) -> Tensor:
    """Checkpoint.read, with CheckpointError for a tensor that is not in floating point or whose shape has changed."""
    with naming(checkpoint.path):
        tensor = checkpoint.read(name, dtype)
    if not tensor.is_floating_point():
        raise CheckpointError(
            f"{checkpoint.path}: {name} holds {tensor.dtype}: quantised exports of this kind are not supported yet"
        )
    if tensor.shape != checkpoint.shapes[name]:
        raise CheckpointError(f"{checkpoint.path} was changed while it was in use: {name} has another shape now")
    return tensor
