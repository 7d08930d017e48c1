"""The PyTorch modules as they stand: the reference, on every device."""

import torch
from torch import Tensor

from tokenmill.cache.pool import Pool
from tokenmill.cache.step import Step
from tokenmill.model.decoder import Decoder

__all__ = ["Eager"]


class Eager:
    """Calls the decoder."""

    description = "PyTorch modules as they stand"

    @staticmethod
    def refuse(device: torch.device) -> str | None:
        """Never."""
        del device  # runs wherever torch does
        return None

    def __init__(self, decoder: Decoder, pool: Pool) -> None:
        self._decoder, self._layers = decoder, pool.layers

    def run(self, step: Step) -> Tensor:
        """See Program."""
        logits_RV: Tensor = self._decoder(step, self._layers)
        return logits_RV
