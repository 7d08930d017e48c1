"""The decoder: embed, a stack of layers, norm, head. Every family is this module with another ModelConfig.

Tokens of all sequences come packed in one dimension T. The cache is an input, not a buffer of the module. Only the rows
whose logits are wanted reach the last norm and the head, which is the largest matrix of a small model.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tokenmill.cache.formats import LayerKV
from tokenmill.cache.step import PaddedStep, Step
from tokenmill.kernels.attend import Attend
from tokenmill.model.attention import Attention
from tokenmill.model.config import ModelConfig
from tokenmill.model.layers import MLP, Embedding, make_norm
from tokenmill.model.moe import MoE
from tokenmill.model.rope import RotaryTable
from tokenmill.quant.dense import product
from tokenmill.quant.schemes import Matrix, Scheme

__all__ = ["Decoder", "Layer", "run_layer"]


class Layer(nn.Module):
    """Attention and MLP with their norms, in series or side by side."""

    def __init__(self, config: ModelConfig, index: int, scheme: Scheme, attend: Attend) -> None:
        super().__init__()
        self.attention_norm = make_norm(config, config.hidden_size)
        self.attention = Attention(config, index, scheme, attend)
        self.mlp_norm = make_norm(config, config.hidden_size)
        self.mlp = MoE(config, scheme) if config.num_experts else MLP(config, scheme)
        self.parallel = config.residual == "parallel"

    def forward(self, x_TD: Tensor, rotary: tuple[Tensor, Tensor] | None, layer_kv: LayerKV, step: Step) -> Tensor:
        """[T, D] → [T, D]"""
        attended_TD = self.attention(self.attention_norm(x_TD), rotary, layer_kv, step)
        if self.parallel:
            return self.mlp(self.mlp_norm(x_TD)) + attended_TD + x_TD  # type: ignore[no-any-return]
        x_TD = x_TD + attended_TD
        return x_TD + self.mlp(self.mlp_norm(x_TD))  # type: ignore[no-any-return]


def run_layer(
    layer: nn.Module, x_TD: Tensor, rotary: tuple[Tensor, Tensor] | None, layer_kv: LayerKV, step: Step
) -> Tensor:
    """[T, D] → [T, D]"""
    return layer(x_TD, rotary, layer_kv, step)  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """The whole model. `num_positions` bounds the position tables; it is the engine's max_length."""

    def __init__(self, config: ModelConfig, scheme: Scheme, attend: Attend, num_positions: int) -> None:
        super().__init__()
        self.config, self.num_positions = config, num_positions
        self.embedding = Embedding(config.vocab_size, config.hidden_size)
        self.position_embedding = (
            Embedding(config.max_position_embeddings, config.hidden_size) if config.positions == "learned" else None
        )
        self.layers = nn.ModuleList(Layer(config, index, scheme, attend) for index in range(config.num_layers))
        self.norm = make_norm(config, config.hidden_size)
        # Tied to the embedding, the head needs a matrix of its own only where the scheme stores it in another form.
        self.head = None
        if not config.tie_embeddings or scheme.copies_tied_head:
            self.head = scheme.linear(config.hidden_size, config.vocab_size, config.head_bias)
        self.rotary: RotaryTable | None = None  # made by `finish`, once there is a device
        self.run_layer: Callable[..., Tensor] = run_layer  # for a compiler to mark as what is repeated

    @torch.no_grad()
    def finish(self) -> None:
        """After the weights were filled: make what follows from them, a tied head and the rotary table."""
        embedding = self.embedding.weight
        if self.config.tie_embeddings and self.head is not None:
            self.head.weight = embedding
            self.head.finish()
        if self.config.rope is not None:
            self.rotary = RotaryTable(self.config.rope, self.num_positions, embedding.dtype, embedding.device)

    @property
    def num_bytes(self) -> int:
        """Bytes of all weights, in the form that is multiplied with."""
        inside = {id(parameter) for matrix in self._matrices for parameter in matrix.parameters()}
        rest = sum(parameter.nbytes for parameter in self.parameters() if id(parameter) not in inside)
        return rest + sum(matrix.num_bytes for matrix in self._matrices)

    @property
    def _matrices(self) -> list[Matrix]:
        return [module for module in self.modules() if isinstance(module, Matrix)]

    def forward(self, step: Step | PaddedStep, layers_kv: list[LayerKV]) -> Tensor:
        """Logits of the wanted rows, [R, V] in the model's dtype."""
        x_TD, rotary = self.begin(step)
        for layer, layer_kv in zip(self.layers, layers_kv, strict=True):
            x_TD = self.run_layer(layer, x_TD, rotary, layer_kv, step)
        if not step.num_rows:
            nothing_RV: Tensor = x_TD.new_empty((0, self.config.vocab_size))
            return nothing_RV  # a chunk in the middle of a prompt
        return self.end(x_TD if step.rows_R is None else x_TD[step.rows_R])

    def begin(self, step: Step | PaddedStep) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """What the layers start from: [T, D], and the angles of each position."""
        x_TD: Tensor = self.embedding(step.token_ids_T)
        if self.position_embedding is not None:
            x_TD = x_TD + self.position_embedding(step.positions_T)
        return x_TD, None if self.rotary is None else self.rotary(step.positions_T)

    def end(self, x_RD: Tensor) -> Tensor:
        """Logits [R, V] of what the layers end with."""
        x_RD = self.norm(x_RD)
        logits_RV: Tensor = product(x_RD, self.embedding.weight) if self.head is None else self.head(x_RD)
        if self.config.logit_softcap is not None:
            logits_RV = torch.tanh(logits_RV / self.config.logit_softcap) * self.config.logit_softcap
        return logits_RV
