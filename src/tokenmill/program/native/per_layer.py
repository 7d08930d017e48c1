"""The operations of what each layer has of each token beside its input: before the first layer, and in each one."""

from typing import Any

import torch

from tokenmill.model.per_layer import CODED, PerLayerBlock, PerLayerInputs
from tokenmill.program.native.layouts import LAYOUTS
from tokenmill.program.native.op_list import ATTENDED, COPY, GATE, INPUTS, MLP_IN, STORE, OpList
from tokenmill.program.native.spec import ACTIVATIONS
from tokenmill.program.native.weights import SmallTensor


def add_inputs(ops: OpList, inputs: PerLayerInputs, dtype: str) -> None:
    """Add the operations that make the inputs of all layers. dtype: of the table."""
    name = "per_layer.embedding.weight"
    wanted, weights = SmallTensor(name, ops.shapes[name], in_float32=False), ops.weights
    is_mapped = inputs.stays_in_file(dtype)
    table, kind = weights.map_table(wanted) if is_mapped else (weights.keep_table(wanted), dtype)
    ops.add(COPY, to=MLP_IN)
    ops.linear([(None, "per_layer.projection")], inputs.projection, STORE, MLP_IN)
    norm: dict[str, Any] = {"weight": ops.factors("per_layer.norm", inputs.norm), "eps": inputs.norm.eps}
    factor = float(torch.tensor(inputs.size**0.5, dtype=getattr(torch, dtype)))  # as the reference has it
    sizes = {"block": inputs.size, "scale": factor, "act_a": inputs.projection.inputs**-0.5, "act_b": 2**-0.5, **norm}
    coded = CODED.get(kind, 0)
    stored: dict[str, Any] = {"table": table, "coded": coded, "scheme": LAYOUTS[dtype if coded else kind]}
    ops.add(INPUTS, outputs=inputs.width, rows=inputs.vocab_size, **stored, **sizes)


def add_per_layer(ops: OpList, layer: int, block: PerLayerBlock) -> int:
    """Add the operations of one layer; return the first column of what is stored, for the norm that adds it. The
    columns before it hold gates, which other threads may still read.
    """
    size = block.gate.outputs
    ops.add(COPY, to=MLP_IN)
    ops.linear([(layer, "per_layer.gate")], block.gate, STORE, MLP_IN)
    activation = ACTIVATIONS[block.activation]
    ops.add(GATE, to=ATTENDED, of_inputs=1, column=layer * size, outputs=size, activation=activation)
    ops.linear([(layer, "per_layer.projection")], block.projection, STORE, ATTENDED, column=size)
    return size
