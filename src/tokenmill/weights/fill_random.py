"""Random weights for a decoder whose model has no files, made at the speed of memory.

One block of random numbers is repeated over every matrix. Norms are ones, so that activations stay in range.
"""

from collections.abc import Callable

import torch

from tokenmill.model.decoder import Decoder
from tokenmill.quant.schemes import Matrix
from tokenmill.weights.checkpoint import Checkpoint
from tokenmill.weights.load import allocate

__all__ = ["fill_random"]

TILE, STANDARD_DEVIATION, SEED = 2**20 + 7, 0.02, 0


def fill_random(
    checkpoint: Checkpoint,
    decoder: Decoder,
    dtype: torch.dtype,
    device: torch.device,
    progress: Callable[[int, int], None] | None = None,
) -> Decoder:
    """As load_decoder, and reads nothing of the checkpoint."""
    del checkpoint
    generator = torch.Generator().manual_seed(SEED)
    tile = (torch.randn(TILE, generator=generator) * STANDARD_DEVIATION).to(dtype).to(device)
    tied = decoder.head if decoder.config.tie_embeddings else None
    modules = [m for m in decoder.modules() if m is not tied and next(m.parameters(recurse=False), None) is not None]
    for number, module in enumerate(modules):
        if progress is not None:
            progress(number, len(modules))
        allocate(module, dtype, device)
        for parameter in module.parameters(recurse=False):
            _lay(parameter.data, tile)
        if isinstance(module, Matrix):
            module.finish()
    decoder.finish()
    return decoder


def _lay(parameter: torch.Tensor, tile: torch.Tensor) -> None:
    if parameter.dim() == 1:
        parameter.fill_(1.0)
        return
    flat = parameter.view(-1)
    for start in range(0, len(flat), len(tile)):
        piece = flat[start : start + len(tile)]
        piece.copy_(tile[: len(piece)])
