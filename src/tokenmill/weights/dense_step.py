"""A matrix by which a pooled vector is multiplied: the Dense module of sentence-transformers.

Its config.json names an activation as a class of torch. Nothing is imported by such a name: a few are known.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from tokenmill.errors import CheckpointError
from tokenmill.registry import CHECKPOINT_CHECKS, lookup
from tokenmill.text.tokenizer import read_json
from tokenmill.value_reader import ValueReader, brief
from tokenmill.weights.files import weight_files
from tokenmill.weights.plain import PlainCheckpoint

Floats = NDArray[np.float32]

ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {
    "Identity": lambda x: x,
    "Tanh": np.tanh,
    "ReLU": lambda x: np.maximum(x, np.float32(0)),
    "GELU": lambda x: np.asarray(torch.nn.functional.gelu(torch.from_numpy(x)).numpy(), np.float32),
    "Sigmoid": lambda x: np.reciprocal(1 + np.exp(-x), dtype=np.float32),
}
_PLAIN = {"module_input_name": "sentence_embedding", "module_output_name": None}


@dataclass(frozen=True)
class DenseStep:
    """activation(weight · x + bias). weight: [O, I]; bias: [O] or None."""

    weight: Floats
    bias: Floats | None
    activation: str

    def __call__(self, x: Floats) -> Floats:
        product = self.weight @ x
        return ACTIVATIONS[self.activation](product if self.bias is None else product + self.bias)


def activation_of(reader: ValueReader, key: str, name: object) -> str:
    """Find the activation that a class of torch names; CheckpointError, by the key, for another class."""
    package, _, activation = str(name).rpartition(".")
    if not package.startswith("torch.nn") or activation not in ACTIVATIONS:
        raise reader.refuse(key, name, f"one of {', '.join(f'torch.nn.{each}' for each in ACTIVATIONS)}")
    return activation


def dense_step(folder: Path) -> DenseStep:
    """Read the matrix of a folder, or of a GGUF file, see TextPooling. CheckpointError for tensors that do not fit its
    config and for other activations.
    """
    if folder.parent.is_file():
        name = f"{folder.name}.weight"
        weight = lookup(CHECKPOINT_CHECKS, "matrices", "reader")(folder.parent, (name,))[name]
        if weight.ndim != 2:
            raise CheckpointError(f"{folder.parent}: {name} has the shape {list(weight.shape)}, and must be a matrix")
        return DenseStep(weight, None, "Identity")
    reader = ValueReader(read_json(folder / "config.json"), str(folder / "config.json"), CheckpointError)
    outputs, inputs, bias = reader.count("out_features"), reader.count("in_features"), reader.flag("bias", True)
    name = reader.text("activation_function", "torch.nn.modules.activation.Tanh")
    activation = activation_of(reader, "activation_function", name)
    for key, value in _PLAIN.items():
        reader.expect(key, value)
    reader.refuse_unread(reader.values)
    checkpoint = PlainCheckpoint(folder, {}, weight_files(folder))
    wanted = {"linear.weight": (outputs, inputs)} | ({"linear.bias": (outputs,)} if bias else {})
    if dict(checkpoint.shapes) != wanted:
        raise CheckpointError(f"{folder} has the tensors {brief(dict(checkpoint.shapes))}; its config wants {wanted}")
    tensors = {each: checkpoint.read(each).float().numpy() for each in wanted}
    return DenseStep(tensors["linear.weight"], tensors.get("linear.bias"), activation)
