"""The operations around the two halves of a layer: inputs of each layer, and several streams of each token, also before
the first layer and behind the last; and the operations of an MLP of whose gates the largest are kept.
"""

from typing import Any

from tokenmill.model.blocks import Norm
from tokenmill.model.parameters import join
from tokenmill.model.per_layer import PerLayerBlock
from tokenmill.model.sparse import SparseMlpBlock
from tokenmill.model.streams import StreamsBlock, StreamsInputs
from tokenmill.program.native.op_list import (
    ACTIVATED,
    ADD,
    ATTENDED,
    ATTENTION_IN,
    BESIDE,
    COPY,
    CORRECT,
    EXPAND,
    GATE,
    IDENTITY,
    JOIN,
    LATENT,
    MLP_IN,
    NORM,
    PREDICT,
    SPREAD,
    STORE,
    OpList,
)
from tokenmill.program.native.per_layer import add_per_layer
from tokenmill.program.native.spec import ACTIVATIONS


def add_expand(ops: OpList, inputs: StreamsInputs) -> None:
    """Add the operations that make the further streams of the embedding, which MLP_IN has."""
    width = inputs.stream.outputs
    for number in range(inputs.num_further):
        ops.linear([(None, f"per_layer.expand.{number}")], inputs.stream, STORE, MLP_IN, column=number * width)
    ops.add(EXPAND, streams=inputs.block.num)


def add_join(ops: OpList, inputs: StreamsInputs) -> None:
    """Add the operations behind the last layer."""
    width = inputs.stream.outputs
    for number in range(inputs.num_further):
        ops.add(COPY, to=MLP_IN, stream=number + 1)
        ops.linear([(None, f"per_layer.join.{number}")], inputs.stream, STORE, MLP_IN, column=number * width)
    ops.add(JOIN)


class Around:
    """The operations of one layer around its two halves, in the order of its methods. block: none of them where it is
    None.
    """

    def __init__(self, ops: OpList, layer: int, block: PerLayerBlock | None) -> None:
        self._ops, self._layer, self._block = ops, layer, block
        self._streams = block if isinstance(block, StreamsBlock) else None

    def begin(self) -> None:
        """Predict the streams, if there are several."""
        if self._streams is not None:
            self._ops.add(PREDICT, coefficients=self._keep("predict"), **self._router(self._streams))

    def add_laurel(self) -> None:
        """Add the two matrices that read the input of attention. Their products are stored behind attention's."""
        if self._streams is None:
            return
        (left, right), width = self._streams.laurel, self._streams.norm.size
        paths = [[(self._layer, f"per_layer.laurel.{name}")] for name in ("left", "right")]
        self._ops.linear(paths[0], left, ACTIVATED, ATTENTION_IN, to=LATENT, activation=IDENTITY)
        self._ops.linear(paths[1], right, STORE, LATENT, column=width)

    def between(self, before: Norm | None) -> None:
        """Add these products and the input of attention, whose norm is `before`, to the sum behind attention."""
        if self._streams is None:
            return
        assert before is not None, "a layer with several streams has a norm before attention"
        weights: dict[str, Any] = {"weight": self._norm("laurel.norm", before)}
        weights["input_norm"] = self._ops.factors(join(self._layer, "attention_norm"), before)
        self._ops.add(BESIDE, column=before.size, eps=before.eps, rescale=2**-0.5, **weights)

    def end(self, **rescale: float) -> None:
        """Correct the streams, and add what the token's input of this layer says."""
        block, streams = self._block, self._streams
        if streams is not None:
            scale = self._keep("scale") if streams.scaled else None
            self._ops.add(CORRECT, coefficients=self._keep("correct"), factors=scale, **self._router(streams))
        if block is not None:
            column = add_per_layer(self._ops, self._layer, block)
            norm: dict[str, Any] = {"weight": self._norm("norm", block.norm), "eps": block.norm.eps, "column": column}
            self._ops.add(NORM if streams is None else SPREAD, epilogue=ADD, **norm, **rescale)

    def _router(self, streams: StreamsBlock) -> dict[str, Any]:
        norm = streams.norm
        weights: dict[str, Any] = {"weight": self._norm("router_norm", norm), "router": self._keep("router")}
        return {**weights, "eps": norm.eps, "scale": 1 / norm.size}

    def _norm(self, role: str, norm: Norm) -> int:
        return self._ops.factors(join(self._layer, f"per_layer.{role}"), norm)

    def _keep(self, role: str) -> int:
        return self._ops.keep(join(self._layer, f"per_layer.{role}"))


def add_sparse(ops: OpList, layer: int, block: SparseMlpBlock, **joins: Any) -> int:
    """Add an MLP of whose gates the largest are kept; return the first column of what it stores, behind its gates."""
    width = block.down.inputs
    ops.linear([(layer, "mlp.up")], block.up, STORE, MLP_IN)
    facts: dict[str, Any] = {"activation": ACTIVATIONS[block.activation], "sparse": 1, "cutoff": block.cutoff}
    ops.add(GATE, to=ATTENDED, column=width, outputs=width, **facts)
    ops.linear([(layer, "mlp.down")], block.down, source=ATTENDED, column=2 * width, **joins)
    return 2 * width
