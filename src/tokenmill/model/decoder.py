"""The decoder: embed, a stack of layers, norm, head. Every family is this module with another description.

Tokens of all sequences come packed in one dimension T. The cache and the attention kernel are inputs of the forward,
not parts of the module. Only the rows whose logits are wanted reach the last norm and the head, which is the largest
matrix of a small model.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tokenmill.cache.pool import LayerKept
from tokenmill.cache.step import Step
from tokenmill.kernels.attend.kernel import Attend
from tokenmill.model.config import ModelConfig
from tokenmill.model.description import LayerDescription, describe
from tokenmill.model.layers import Embedding, make_linear, make_norm
from tokenmill.model.rope import Angles, RotaryTable
from tokenmill.quant.matrix import product
from tokenmill.quant.schemes import Scheme
from tokenmill.registry import MIXERS, MLPS, lookup


def _make(block: Any, scheme: Scheme, fused: Collection[str]) -> Any:
    """Make the module of an entry of MLPS; None for None."""
    return None if block is None else lookup(MLPS, block.name, "mlp", computes=True)(block, scheme, fused)


class Layer(nn.Module):
    """Mixers and MLP with their norms, as the description of the layer joins them. Each mixer is named for its kind."""

    def __init__(self, description: LayerDescription, scheme: Scheme, fused: Collection[str]) -> None:
        super().__init__()
        self.description, mlp = description, description.mlp
        norms = description.norms
        self.attention_norm = make_norm(norms.get("attention_norm"), fused)
        self.mixer_names = [mixer.name for mixer in description.mixers]
        for mixer in description.mixers:
            make = lookup(MIXERS, mixer.name, "mixer", computes=True)
            self.add_module(mixer.name, make(mixer, scheme, fused))
        self.attention_after_norm = make_norm(norms.get("attention_after_norm"), fused)
        self.mlp_norm = make_norm(norms.get("mlp_norm"), fused)
        self.mlp = _make(mlp, scheme, fused)
        self.mlp_after_norm = make_norm(norms.get("mlp_after_norm"), fused)
        self.mixes = description.mixes
        self.parallel, self.multiplier = description.parallel, description.multiplier
        self.norms_sums = description.norms_sums
        self.per_layer = _make(description.per_layer, scheme, fused)
        self.scalar = nn.Parameter(torch.empty(1)) if description.scalar else None

    def forward(
        self,
        x_TD: Tensor,
        angles: Angles | None,
        step: Step,
        attend: Attend,
        *kept: LayerKept,
        input_TP: Tensor | None = None,
    ) -> Tensor:
        """Compute the output of the layer. kept: what each of its mixers keeps. input_TP: see per_layer.py."""
        halves, own = self._halves, (angles, step, attend, kept)
        x_TD = halves(x_TD, *own) if self.per_layer is None else self.per_layer(x_TD, input_TP, halves, *own)
        return x_TD if self.scalar is None else x_TD * self.scalar

    def _halves(
        self, x_TD: Tensor, angles: Angles | None, step: Step, attend: Attend, kept: Sequence[LayerKept], *more: Any
    ) -> Tensor:
        normed_TD = x_TD if self.attention_norm is None else self.attention_norm(x_TD)
        left_TD = attended_TD = x_TD
        if self.mixes:
            mixers = zip(self.mixer_names, kept, strict=True)
            mixed = [self.get_submodule(name)(normed_TD, angles, own, step, attend) for name, own in mixers]
            attended_TD = sum(mixed[1:], mixed[0])
            if self.attention_after_norm is not None and not self.norms_sums:
                attended_TD = self.attention_after_norm(attended_TD)
            if self.multiplier != 1.0:
                attended_TD = attended_TD * self.multiplier
            left_TD = x_TD if self.parallel else x_TD + attended_TD
            left_TD = self.attention_after_norm(left_TD) if self.norms_sums else left_TD
            for each in more:  # what stands beside attention: see streams_modules.py
                left_TD = each(left_TD, normed_TD)
        if self.mlp is None:
            return left_TD
        out_TD = self.mlp(self._mlp_input(normed_TD, left_TD))
        if self.mlp_after_norm is not None and not self.norms_sums:
            out_TD = self.mlp_after_norm(out_TD)
        if self.multiplier != 1.0:
            out_TD = out_TD * self.multiplier
        sum_TD = out_TD + attended_TD + x_TD if self.parallel else left_TD + out_TD
        is_normed = self.norms_sums and self.mlp_after_norm is not None
        return self.mlp_after_norm(sum_TD) if is_normed else sum_TD  # type: ignore[no-any-return]

    def _mlp_input(self, normed_TD: Tensor, left_TD: Tensor) -> Tensor:
        if self.description.shared_norm:
            return normed_TD
        return left_TD if self.mlp_norm is None else self.mlp_norm(left_TD)


def run_layer(layer: nn.Module, *inputs: Any, **more: Any) -> Tensor:
    """Call the layer. It is a function, so that a compiler can wrap it."""
    return layer(*inputs, **more)  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """The whole model. `num_positions` bounds the rotary tables: the engine's max_length. fused: see layers.py."""

    def __init__(self, config: ModelConfig, scheme: Scheme, num_positions: int, fused: Collection[str]) -> None:
        super().__init__()
        self.config, self.num_positions = config, num_positions
        self.description = whole = describe(config)
        self.embedding = Embedding(config.vocab_size, config.hidden_size)
        self.embedding_norm = make_norm(whole.embedding_norm, fused)
        rows = config.max_position_embeddings + config.first_position if config.positions == "learned" else 0
        self.position_embedding, self.type_embedding = (
            Embedding(number, config.hidden_size) if number else None for number in (rows, config.num_types)
        )
        self.distance_bias = _make(config.distance_bias, scheme, fused)
        self.per_layer = _make(whole.per_layer, scheme, fused)
        self.layers = nn.ModuleList(Layer(layer, scheme, fused) for layer in whole.layers)
        self.norm = make_norm(whole.norm, fused)
        # Tied to the embedding, the head needs a matrix of its own only where the scheme does not store it plainly.
        needs_head = config.has_head and not (config.tie_embeddings and scheme.is_plain)
        self.head = make_linear(whole.head, scheme, fused) if needs_head else None
        ropes = [*whole.ropes, None]
        self.num_kept, self.kept_by = len(whole.keeps), whole.kept_by
        self.rope_numbers = [ropes.index(layer.rope) for layer in whole.layers]
        self.rotary = nn.ModuleList()  # a table for each rope, made by `finish`, once there is a device

    @torch.no_grad()
    def finish(self) -> None:
        """Make the rotary tables, after the weights were filled."""
        embedding = self.embedding.weight
        for rope in self.description.ropes:
            self.rotary.append(RotaryTable(rope, self.num_positions, embedding.dtype, embedding.device))

    @property
    def num_bytes(self) -> int:
        """Bytes of all weights, in the form in which they are multiplied."""
        tables = sum(buffer.nbytes for buffer in self.rotary.buffers())
        return sum(tensor.nbytes for tensor in (*self.parameters(), *self.buffers())) - tables

    def forward(
        self, step: Step, layers_kept: list[LayerKept], attend: Attend, run_layer: Callable[..., Tensor] = run_layer
    ) -> Tensor:
        """Compute the logits of the wanted rows, [R, V] in the model's dtype. run_layer: may be compiled."""
        x_TD, angles, inputs = self.begin(step)
        assert len(layers_kept) == self.num_kept, "each mixer has a layer of the cache"
        for layer, of_layer, layer_angles, more in zip(self.layers, self.kept_by, angles, inputs, strict=True):
            own = [layers_kept[number] for number in of_layer]
            x_TD = run_layer(layer, x_TD, layer_angles, step, attend, *own, **more)
        if isinstance(step, Step) and step.keeps_hidden:
            step.hidden_TD = self.normed(x_TD)
        if not step.num_rows:
            return x_TD.new_empty((0, self.config.vocab_size))  # a chunk in the middle of a prompt
        return self.end(x_TD if step.rows_R is None else x_TD[step.rows_R])

    def begin(self, step: Step) -> tuple[Tensor, list[Angles | None], list[dict[str, Tensor]]]:
        """Compute the input of the first layer, [T, D], the angles of each layer, and what it takes by name."""
        ids_T, size = step.token_ids_T, self.config.vocab_size
        if self.distance_bias is not None:
            step.bias = self.distance_bias
        x_TD: Tensor = self.embedding(ids_T if self.type_embedding is None else ids_T % size)
        x_TD = self.embedding_norm(x_TD) if self.config.embedding_norm == "plain" else x_TD
        if self.config.embedding_multiplier != 1.0:  # rounded to the model's dtype, as Gemma's reference does
            x_TD = x_TD * torch.tensor(self.config.embedding_multiplier, dtype=x_TD.dtype, device=x_TD.device)
        if self.position_embedding is not None:
            first = self.config.first_position
            x_TD = x_TD + self.position_embedding(step.positions_T + first if first else step.positions_T)
        if self.type_embedding is not None:
            x_TD = x_TD + self.type_embedding(ids_T // size)
        x_TD = self.embedding_norm(x_TD) if self.config.embedding_norm == "own" else x_TD
        angles = self.angles(step.positions_T)
        x_TD, inputs = (x_TD, [{}] * len(angles)) if self.per_layer is None else self.per_layer(ids_T, x_TD)
        return x_TD, angles, inputs

    def angles(self, positions_T: Tensor) -> list[Angles | None]:
        """Look up for each layer the rows of its rotary table; None where it has no rope."""
        found = [*(table(positions_T) for table in self.rotary), None]
        return [found[number] for number in self.rope_numbers]

    def end(self, x_RD: Tensor) -> Tensor:
        """Compute logits [R, V] of the last layer's output."""
        x_RD = self.normed(x_RD)
        logits_RV: Tensor = product(x_RD, self.embedding.weight) if self.head is None else self.head(x_RD)
        multiplier, softcap = self.config.logit_multiplier, self.config.logit_softcap
        if multiplier != 1.0:
            logits_RV = logits_RV * multiplier
        if softcap is not None:
            logits_RV = torch.tanh(logits_RV / softcap) * softcap
        return logits_RV

    def normed(self, x_RD: Tensor) -> Tensor:
        """Compute the rows that the head reads, of the last layer's output."""
        return self.norm(x_RD if self.per_layer is None else self.per_layer.joined(x_RD))  # type: ignore[no-any-return]
