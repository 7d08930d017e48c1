"""The proof that a checkpoint's tensors and a model's parameters are the same: nothing is missing, left over, or
misshapen. Only names and shapes are read.
"""

from tokenmill.errors import CheckpointError
from tokenmill.model.config import ModelConfig
from tokenmill.value_reader import brief
from tokenmill.weights.names import Target, expected_tensors, is_further, is_ignored
from tokenmill.weights.plain import Checkpoint


def match_tensors(checkpoint: Checkpoint, config: ModelConfig) -> dict[str, Target]:
    """Match the checkpoint's own name of each tensor with its target.

    CheckpointError lists every tensor that is missing, unexpected or misshapen.
    """
    family = checkpoint.family
    wanted = expected_tensors(family, config)
    targets, unexpected, misshapen = {}, [], []
    for name, shape in checkpoint.shapes.items():
        short = name.removeprefix(family.prefix)
        if short in wanted:
            targets[name], expected = wanted.pop(short)
            if shape != expected:
                misshapen.append(f"{name} {list(shape)} where {list(expected)} goes")
        elif not is_ignored(family, short) and not is_further(family, config, short):
            unexpected.append(name)
    if wanted or unexpected or misshapen:
        what = f"{checkpoint.path} does not fit its config"
        if wanted and unexpected and not targets:
            begins = sorted({".".join(name.split(".")[:2]) for name in unexpected})
            what += f": no tensor has a name of this family; the names begin with {brief(begins)}"
        raise CheckpointError(what, missing=wanted, unexpected=unexpected, misshapen=misshapen)
    return targets
