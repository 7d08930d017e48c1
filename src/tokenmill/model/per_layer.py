"""Inputs that each layer has of each token beside the stream (Gemma 3n and 4), as data: a row of a table, and a product
of the embedding. A layer adds norm(projection(act(gate(x)) · row)) to its output.
"""

from collections import Counter
from dataclasses import dataclass, replace

from tokenmill.model.blocks import Norm, Projection
from tokenmill.model.config import ModelConfig
from tokenmill.model.description import PER_LAYER, MlpBlock
from tokenmill.settings.engine_config import DTYPES

STORED_AS = "inputs_as_stored"
"""A key of our own in config.json: see PerLayerInputs.stored."""
CODED = {"Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14}
"""Types of GGUF of whose rows every program decodes one by one, by llama.cpp's numbers."""
BITS = dict(zip(CODED, (4.5, 5.0, 5.5, 6.0, 8.5, 4.5, 5.5, 6.5625), strict=True))
"""Bits of a number, with scales and minimums, of these types."""
PACKED = "packed"


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
    vocab_size: rows of the table; tokens behind its end have the first row. stored: how a file has the table in one
    place, from which rows can be looked up: a dtype, a key of CODED, PACKED in a packed model; or empty.
    """

    vocab_size: int
    size: int
    num_layers: int
    projection: Projection
    norm: Norm
    block: PerLayerBlock
    stored: str = ""

    name = "per_layer_inputs"

    @property
    def width(self) -> int:
        return self.size * self.num_layers

    def stays_in_file(self, dtype: str) -> bool:
        """Tell whether a model in this dtype looks rows up in the file, in the place of a table in memory: where no
        number has to be compared with the largest one of the dtype.
        """
        widened = dtype == "float32" and self.stored in ("bfloat16", "float16")
        return widened or self.stored in (dtype, PACKED) or (self.stored in CODED and dtype != "float16")

    @property
    def matrices(self) -> Counter[Projection]:
        return Counter(self.roles().values())

    def roles(self) -> dict[str, Projection]:
        """Name its matrices by their roles."""
        return {"projection": self.projection}


def numbers_in_file(model: ModelConfig, dtype: str) -> int:
    """Count the numbers of the table that a model in this dtype looks up in the file; 0 where it holds the table."""
    inputs: PerLayerInputs | None = model.per_layer
    return 0 if inputs is None or not inputs.stays_in_file(dtype) else inputs.vocab_size * inputs.width


def bytes_in_file(model: ModelConfig, dtype: str) -> tuple[int, int]:
    """Count the bytes of that table in the file, and of the row that a token reads."""
    numbers, inputs = numbers_in_file(model, dtype), model.per_layer
    if not numbers:
        return 0, 0
    each = BITS.get(inputs.stored) or 8 * DTYPES[dtype if inputs.stored == PACKED else inputs.stored]
    return int(numbers * each / 8), int(inputs.width * each / 8)


def held_in_memory(model: ModelConfig) -> ModelConfig:
    """Describe the same model with its table in memory."""
    return model if model.per_layer is None else replace(model, per_layer=replace(model.per_layer, stored=""))


def per_layer_inputs(
    hidden: int, *, vocab_size: int, num_layers: int, size: int, eps: float, activation: str, stored: str
) -> PerLayerInputs:
    """Describe the inputs of a model of that width."""
    block = PerLayerBlock(
        gate=Projection("per_layer_gate", hidden, (size,)),
        projection=Projection("per_layer_projection", size, (hidden,)),
        norm=Norm(hidden, "rms", eps, rounds_last=True),
        activation=activation,
    )
    projection = Projection("per_layer_inputs", hidden, (size * num_layers,))
    return PerLayerInputs(
        vocab_size, size, num_layers, projection, Norm(size, "rms", eps, rounds_last=True), block, stored
    )
