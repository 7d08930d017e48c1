"""The proof that a checkpoint's tensors and a model's parameters are the same: nothing is missing, left over, or
misshapen. Only names and shapes are read.
"""

from tokenmill.errors import CheckpointError
from tokenmill.model.config import ModelConfig
from tokenmill.model.description import describe
from tokenmill.model.families import Family
from tokenmill.model.parameters import parameter_shapes
from tokenmill.weights.names import Target, expand, is_further, is_ignored, rows_of
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
        raise CheckpointError(what, missing=wanted, unexpected=unexpected, misshapen=misshapen)
    return targets


def expected_tensors(family: Family, config: ModelConfig) -> dict[str, tuple[Target, tuple[int, ...]]]:
    """List the tensors that a file of this model has, by their names without the family's prefix, and their shapes."""
    shapes, found = parameter_shapes(describe(config)), {}
    for name, target in expand(family, config, shapes).items():
        outputs, *inputs = shapes[target.parameter]
        found[name] = target, target.shape_in_file(len(rows_of(target, outputs, config)), tuple(inputs))
    return found
