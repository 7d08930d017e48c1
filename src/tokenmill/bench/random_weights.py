"""Random weights for an architecture that has no files, so that its speed can be measured."""

import torch

from tokenmill.model.decoder import Decoder
from tokenmill.quant.matrix import Matrix
from tokenmill.weights.checkpoint import Checkpoint
from tokenmill.weights.load import Fill, Progress, allocate, filled


def fill_random(
    checkpoint: Checkpoint,
    decoder: Decoder,
    dtype: torch.dtype,
    device: torch.device,
    progress: Progress,
    packs: bool = False,
) -> Fill:
    """Fill a decoder for shapes without files: random numbers made at the speed of memory, nothing is read.

    One block of random numbers is repeated over every matrix. Norms are ones, so that activations stay in range.
    """
    block = (torch.randn(2**20 + 7, generator=torch.Generator().manual_seed(0)) * 0.02).to(dtype).to(device)
    tied = decoder.head if decoder.config.tie_embeddings else None
    modules = [m for m in decoder.modules() if m is not tied and next(m.parameters(recurse=False), None) is not None]
    for number, module in enumerate(modules):
        progress(number, len(modules))
        allocate(module, dtype, device)
        for parameter in module.parameters(recurse=False):
            if parameter.dim() == 1:
                parameter.fill_(1.0)
                continue
            for piece in torch.split(parameter.view(-1), len(block)):
                piece.copy_(block[: len(piece)])
        if isinstance(module, Matrix):
            module.finish()
    if tied is not None:
        tied.weight = decoder.embedding.weight
        tied.finish()
    decoder.finish()
    return filled
