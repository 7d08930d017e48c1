"""Inputs that each layer has of each token beside the stream (Gemma 3n and 4), as data: a row of a table, and a product
of the embedding. A layer adds norm(projection(act(gate(x)) · row)) to its output.
"""

from collections import Counter
from dataclasses import dataclass

from tokenmill.model.blocks import Norm, Projection
from tokenmill.model.description import PER_LAYER, MlpBlock


@dataclass(frozen=True)
class PerLayerBlock:
    """The part of one layer, behind its MLP."""

    gate: Projection
    projection: Projection
    norm: Norm
    activation: str

    name = "per_layer"
    rarity = PER_LAYER
    mlps: tuple[MlpBlock, ...] = ()

    @property
    def matrices(self) -> Counter[Projection]:
        return Counter([self.gate, self.projection])

    @property
    def norms(self) -> dict[str, Norm]:
        return {"norm": self.norm}

    @property
    def vectors(self) -> dict[str, tuple[int, ...]]:
        return {}

    def roles(self) -> dict[str, Projection]:
        """Name its matrices by their roles."""
        return {"gate": self.gate, "projection": self.projection}


@dataclass(frozen=True)
class PerLayerInputs:
    """The rows of all layers: (norm(projection(x) · hidden ** -0.5) + table[token] · size ** 0.5) / 2 ** 0.5, where x
    is the input of the first layer. size: of a layer's row; a row of the table has the rows of all layers in order.
    vocab_size: rows of the table; tokens behind its end have the first row.
    """

    vocab_size: int
    size: int
    num_layers: int
    projection: Projection
    norm: Norm
    block: PerLayerBlock

    name = "per_layer_inputs"

    @property
    def width(self) -> int:
        return self.size * self.num_layers

    @property
    def matrices(self) -> Counter[Projection]:
        return Counter(self.roles().values())

    def roles(self) -> dict[str, Projection]:
        """Name its matrices by their roles."""
        return {"projection": self.projection}


def per_layer_inputs(
    hidden: int, *, vocab_size: int, num_layers: int, size: int, eps: float, activation: str
) -> PerLayerInputs:
    """Describe the inputs of a model of that width."""
    block = PerLayerBlock(
        gate=Projection("per_layer_gate", hidden, (size,)),
        projection=Projection("per_layer_projection", size, (hidden,)),
        norm=Norm(hidden, "rms", eps),
        activation=activation,
    )
    projection = Projection("per_layer_inputs", hidden, (size * num_layers,))
    return PerLayerInputs(vocab_size, size, num_layers, projection, Norm(size, "rms", eps), block)
