"""The operations before the layer that predicts further tokens."""

from tokenmill.model.mtp import MtpInput
from tokenmill.program.native.op_list import ATTENDED, PAIR, REPLACE, STORE, OpList


def add_mtp(ops: OpList, block: MtpInput) -> None:
    """Add the operations that make the residual stream of embeddings and given rows."""
    if block.norm is None:
        ops.add(PAIR, to=ATTENDED, inputs=block.fc.inputs)
    else:
        assert block.norm.kind == "rms" and not block.norm.bias, "no family has others"
        embedding, hidden = (ops.factors(f"mtp.{role}", norm) for role, norm in block.norms.items())
        ops.add(PAIR, to=ATTENDED, weight=embedding, input_norm=hidden, eps=block.norm.eps)
    ops.linear([(None, "mtp.fc")], block.fc, STORE, ATTENDED)
    ops.add(REPLACE)
