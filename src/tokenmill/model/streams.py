"""Several streams of each token through all layers (AltUp, Baykal et al. 2023, arXiv 2301.13310), with inputs of each
layer, as data: Gemma 3n.

Before the first layer further streams are made of the embedding. A layer predicts all streams as sums of all, computes
with the first, and corrects all streams by as much as the result differs from the prediction. What the token's input of
this layer says is added to the further streams. Behind the last layer the streams are joined.
"""

from collections import Counter
from dataclasses import dataclass

from tokenmill.model.blocks import Norm, Projection
from tokenmill.model.description import STREAMS
from tokenmill.model.per_layer import PerLayerBlock, PerLayerInputs


@dataclass(frozen=True, kw_only=True)
class StreamsBlock(PerLayerBlock):
    """The part of one layer. num: of streams. laurel: two matrices between which there are few numbers, beside
    attention. scaled: the first stream is multiplied by a vector before the gate reads it.
    """

    num: int
    laurel: tuple[Projection, Projection]
    scaled: bool

    name = "streams"
    rarity = STREAMS

    @property
    def matrices(self) -> Counter[Projection]:
        return Counter([self.gate, self.projection, *self.laurel])

    @property
    def norms(self) -> dict[str, Norm]:
        return dict.fromkeys(("norm", "laurel.norm", "router_norm"), self.norm)

    @property
    def vectors(self) -> dict[str, tuple[int, ...]]:
        num, hidden = self.num, self.norm.size
        return {"router": (num, hidden), "predict": (num * num, num), "correct": (num, num), "scale": (hidden,)}

    def roles(self) -> dict[str, Projection]:
        left, right = self.laurel
        return {**super().roles(), "laurel.left": left, "laurel.right": right}


@dataclass(frozen=True, kw_only=True)
class StreamsInputs(PerLayerInputs):
    """The part before the first layer and behind the last. stream: the form of the matrices that make a further stream
    of the embedding, and of the matrices by which it is joined to the first one.
    """

    stream: Projection
    block: StreamsBlock

    name = "streams_inputs"

    @property
    def num_further(self) -> int:
        return self.block.num - 1

    def roles(self) -> dict[str, Projection]:
        places = [f"{part}.{number}" for part in ("expand", "join") for number in range(self.num_further)]
        return {**super().roles(), **dict.fromkeys(places, self.stream)}
