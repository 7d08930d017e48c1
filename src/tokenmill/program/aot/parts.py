"""The parts of a forward that an AOT package has compiled code for: a layer, and what follows the last one.

Weights are inputs of a part, so that one code serves all layers of one kind, and code and weights lie apart. Before
the first layer there are only lookups, which run as they stand.
"""

from collections.abc import Hashable, Sequence

from torch import Tensor, nn
from torch.func import functional_call

from tokenmill.cache.formats import LayerKV
from tokenmill.cache.step import PaddedStep
from tokenmill.kernels.attend import Attend
from tokenmill.model.decoder import Decoder, Layer
from tokenmill.model.rope import Angles
from tokenmill.quant.quantized import QuantizedLinear

__all__ = ["End", "OneLayer", "Part", "kind_of", "weights_of"]


class OneLayer(nn.Module):
    """A layer as a function of a padded step and of its cache."""

    def __init__(self, layer: nn.Module, layer_kv: LayerKV, attend: Attend) -> None:
        super().__init__()
        self.layer, self._layer_kv, self._attend = layer, layer_kv, attend

    def forward(
        self,
        x_TD: Tensor,
        angles: Angles | None,
        positions_T: Tensor,
        slots_T: Tensor,
        keys_BL: Tensor,
        cache: Sequence[Tensor],
    ) -> Tensor:
        """[T, D] → [T, D]; the rows are written."""
        step = PaddedStep(positions_T, positions_T, slots_T, keys_BL, None, 0)
        out_TD: Tensor = self.layer(x_TD, angles, self._layer_kv.over(*cache), step, self._attend)
        return out_TD


class End(nn.Module):
    """What follows the last layer: [R, D] → [R, V]."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.norm, self.head = decoder.norm, decoder.head
        if self.head is None:
            self.embedding = decoder.embedding
        self._decoder = [decoder]  # not as a part: its layers do not belong here

    def forward(self, x_RD: Tensor) -> Tensor:
        """Logits."""
        return self._decoder[0].end(x_RD)


class Part(nn.Module):
    """A module as a function of its inputs and of its weights, in the order of weights_of."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._module = [module]  # not as a part: its weights are inputs
        self._names = [name for name, _ in _named(module)]

    def forward(self, inputs: tuple[object, ...], weights: list[Tensor]) -> Tensor:
        """See the module."""
        out: Tensor = functional_call(self._module[0], dict(zip(self._names, weights, strict=True)), inputs)
        return out


def weights_of(module: nn.Module) -> list[Tensor]:
    """Parameters and buffers."""
    return [tensor.detach() for _, tensor in _named(module)]


def _named(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [*module.named_parameters(), *module.named_buffers()]


def kind_of(layer: Layer) -> Hashable:
    """Layers of equal kind run the same code: their description is equal, and how their tensors are stored."""
    bits = [[part.bits for part in module.parts()] for module in layer.modules() if isinstance(module, QuantizedLinear)]
    stored = [(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in _named(layer)]
    return layer.description, str((bits, stored))
