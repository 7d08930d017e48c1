"""A model computed layer by layer, over all calibration texts at once, with the weights of one layer in memory.

Everything is in float32. The weights of a matrix are set just before it is applied, when its inputs are known, so that
they can be quantised for these inputs.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from tokenmill.cache.pool import LayerStates
from tokenmill.cache.spec import StateSpec
from tokenmill.cache.step import Span, Step
from tokenmill.kernels.attend.gather import Gather
from tokenmill.model.families import read_config
from tokenmill.quant.matrix import Matrix
from tokenmill.quant.schemes import Scheme
from tokenmill.settings.engine_config import FUSIBLE
from tokenmill.weights.checkpoint import Checkpoint
from tokenmill.weights.load import empty_decoder, fill_small
from tokenmill.weights.source import WeightSource

Choose = Callable[[str, Tensor, Tensor | None], Tensor]
"""The values [outputs, inputs] of a matrix: given its name, the checkpoint's values, and its inputs [T, K] or None."""

Key = TypeVar("Key")


class _Rows:
    """K and V of the tokens of one step alone, kept as they come: a layer of a cache (LayerKV) that holds one step."""

    kinds = ("k", "v")
    dtype = torch.float32
    tensors: tuple[Tensor, ...] = ()

    def write(self, slots_T: Tensor, k_TKH: Tensor, v_TKH: Tensor) -> None:
        self.tensors = (k_TKH, v_TKH)

    def gather(self, slots: Tensor | slice) -> tuple[Tensor, Tensor]:
        k_TKH, v_TKH = self.tensors
        return k_TKH[slots], v_TKH[slots]


class LayerWalk:
    """The hidden states of some texts after each layer of a checkpoint.

    rounded: names of the checkpoint's tensors for which `choose` gives the values; every other tensor is used as it is.
    """

    def __init__(self, checkpoint: Checkpoint, texts: list[list[int]], rounded: set[str]) -> None:
        longest, model, self._rounded = max(map(len, texts)), read_config(checkpoint.config), rounded
        self._weights = WeightSource(checkpoint, model, Scheme(), torch.float32)
        self._decoder = empty_decoder(model, Scheme(), longest, FUSIBLE)
        fill_small(self._decoder, self._weights)
        self._decoder.finish()
        self._step = _step(texts)
        self._x_TD, self._angles, _ = self._decoder.begin(self._step)

    @property
    def hidden_TD(self) -> Tensor:
        """Return the hidden states after the layers that were computed, of all texts one after the other."""
        return self._x_TD

    @property
    def num_layers(self) -> int:
        return len(self._decoder.layers)

    def names(self, number: int) -> Iterator[str]:
        """Name the tensors of a layer that are rounded."""
        for role in self._matrices(number):
            yield from (name for name in self._weights.tensors(number, role) if name in self._rounded)

    @torch.no_grad()
    def through(self, number: int, choose: Choose) -> None:
        """Compute a layer: the hidden states become those after it."""
        waiting = self._matrices(number)

        def reach(role: str, matrix: nn.Module, inputs: tuple[Tensor]) -> None:
            self._fill(number, role, waiting.pop(role), choose, inputs[0])

        hooks = [matrix.register_forward_pre_hook(partial(reach, role)) for role, matrix in waiting.items()]
        self._x_TD = self._apply(number, self._x_TD)
        for hook in hooks:
            hook.remove()
        for role, matrix in waiting.items():  # experts that no token went to
            self._fill(number, role, matrix, choose, None)
        self._empty(number)

    @torch.no_grad()
    def through_with(
        self,
        number: int,
        states: Mapping[Key, Tensor],
        changes: Mapping[Key, Collection[str]],
        changed: Callable[[Tensor], Tensor],
    ) -> dict[Key, Tensor]:
        """Compute a layer with its weights as they are, also for other states before it, [T, D] by any keys.

        Returns these after it and, for each key of `changes`, the hidden states after a layer in which the values
        [R, K] of the tensors of these names are `changed`.
        """
        places: dict[str, Tensor] = {}
        for role, matrix in self._matrices(number).items():
            matrix.fill(self._weights.matrix(number, role))
            weight = matrix.get_parameter("weight")
            for name, rows in self._weights.tensors(number, role).items():
                places[name] = weight[rows.start : rows.stop]
        found = {key: self._apply(number, x_TD) for key, x_TD in states.items()}
        for key, names in changes.items():
            kept = {name: places[name].clone() for name in names}
            for name in names:
                places[name].copy_(changed(kept[name]))
            found[key] = self._apply(number, self._x_TD)
            for name in names:
                places[name].copy_(kept[name])
        self._x_TD = self._apply(number, self._x_TD)
        self._empty(number)
        return found

    @torch.no_grad()
    def logits(self, x_TD: Tensor) -> Tensor:
        """Compute logits [T, V] of hidden states after the last layer."""
        head = self._decoder.head
        if head is not None and head.get_parameter("weight").is_meta:
            head.fill(self._weights.matrix(None, "head"))
        return self._decoder.end(x_TD)

    def _apply(self, number: int, x_TD: Tensor) -> Tensor:
        layer = self._decoder.layers[number]
        keeps = [mixer.keeps for mixer in self._decoder.description.layers[number].mixers]
        kept = [LayerStates(1, each, _zeros) if isinstance(each, StateSpec) else _Rows() for each in keeps]
        found: Tensor = layer(x_TD, self._angles[number], self._step, Gather(), *kept)  # no text goes on
        return found

    def _matrices(self, number: int) -> dict[str, Matrix]:
        modules = self._decoder.layers[number].named_modules()
        return {role: module for role, module in modules if isinstance(module, Matrix)}

    def _fill(self, number: int, role: str, matrix: Matrix, choose: Choose, inputs_TK: Tensor | None) -> None:
        def change(name: str, values_RK: Tensor) -> Tensor:
            return choose(name, values_RK, inputs_TK) if name in self._rounded else values_RK

        matrix.fill(self._weights.matrix(number, role, change=change))

    def _empty(self, number: int) -> None:
        for matrix in self._matrices(number).values():
            matrix.weight = nn.Parameter(torch.empty(0), requires_grad=False)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


def _step(texts: list[list[int]]) -> Step:
    token_ids = [token for text in texts for token in text]
    positions = [position for text in texts for position in range(len(text))]
    spans, first = [], 0
    for text in texts:
        spans.append(Span(first, len(text), 0, first, None))
        first += len(text)
    return Step(token_ids, positions, range(first), spans, None, 0, torch.device("cpu"))
