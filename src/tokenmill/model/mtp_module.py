"""The module of an MTP layer or an assistant: a decoder whose first layer reads MtpInputs and not embeddings."""

from collections.abc import Collection

import torch
from torch import Tensor, nn

from tokenmill.cache.step import Step
from tokenmill.model.config import ModelConfig
from tokenmill.model.decoder import Decoder
from tokenmill.model.layers import make_linear, make_norm
from tokenmill.model.mtp import MtpInput
from tokenmill.model.rope import Angles
from tokenmill.quant.schemes import Scheme


class MtpInputs(nn.Module):
    """fc([norm(embedding), norm(row)])."""

    def __init__(self, block: MtpInput, scheme: Scheme, fused: Collection[str]) -> None:
        super().__init__()
        self.norms_both = block.norm is not None
        if self.norms_both:
            self.embedding_norm, self.hidden_norm = (make_norm(norm, fused) for norm in block.norms.values())
        self.fc = make_linear(block.fc, scheme, fused)

    def forward(self, x_TD: Tensor, given_TD: Tensor) -> Tensor:
        """Compute the input of the layer, [T, D], of embeddings and given rows."""
        given_TD = given_TD.to(x_TD.dtype)
        both = [self.embedding_norm(x_TD), self.hidden_norm(given_TD)] if self.norms_both else [given_TD]
        return self.fc(torch.cat(both, dim=-1))  # type: ignore[no-any-return]


class MtpDecoder(Decoder):
    """The layer, with the embedding and the head of its model."""

    def __init__(self, config: ModelConfig, scheme: Scheme, num_positions: int, fused: Collection[str]) -> None:
        super().__init__(config, scheme, num_positions, fused)
        assert self.description.mtp is not None, "other models are plain decoders"
        self.mtp = MtpInputs(self.description.mtp, scheme, fused)

    def begin(self, step: Step) -> tuple[Tensor, list[Angles | None], list[dict[str, Tensor]]]:
        x_TD, *others = super().begin(step)
        assert isinstance(step, Step) and step.given_TD is not None, "the runner gives rows"
        return self.mtp(x_TD, step.given_TD), *others
