"""The tensors of an adapter's file, put together for each module of the model that they change."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from tokenmill.errors import CheckpointError
from tokenmill.weights.adapters.tensor_names import PAIRS, Names, check_pairs, is_turned, names_of_gguf, names_of_peft


@dataclass
class Module:
    """The tensors of one module, float32 on the CPU, by their kinds. name: its path. scale: of the product b · a.

    a [R, I], b [O, R], or embedding_a [R, V], embedding_b [D, R]; b_bias [O], which is multiplied by the scale;
    magnitude [O], of DoRA; weight, bias: in the place of the base's; tokens [N, D]: rows in the place of the base's.
    """

    name: str
    scale: float = 1.0
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def get(self, kind: str) -> Tensor | None:
        return self.tensors.get(kind)

    @property
    def rank(self) -> int:
        """The rank of the factors; of the factors of all experts in one (PEFT), times the number of experts."""
        return max((self.tensors[kind].shape[-2] for kind, _ in PAIRS if kind in self.tensors), default=0)

    def has_only(self, *kinds: str) -> bool:
        return self.tensors.keys() <= set(kinds)


def modules_of_peft(tensors: Mapping[str, Tensor], where: str) -> dict[str, Module]:
    """Put together the tensors of a PEFT file. CheckpointError lists names of another form, and halves of pairs."""
    return _modules(tensors, names_of_peft(tensors, where), where)


def modules_of_gguf(tensors: Mapping[str, Tensor], where: str) -> dict[str, Module]:
    """Put together the tensors of a llama.cpp adapter. CheckpointError as above."""
    names = names_of_gguf(tensors, where)
    found = {name: tensor.t() if is_turned(names[name], tensor.dim()) else tensor for name, tensor in tensors.items()}
    return _modules(found, names, where, stacks=True)


def _modules(tensors: Mapping[str, Tensor], names: Names, where: str, stacks: bool = False) -> dict[str, Module]:
    """Put tensors together. CheckpointError also for numbers that are not finite."""
    found = dict[str, Module]()
    for name, tensor in tensors.items():
        module, kind = names[name]
        if tensor.numel() and not all(map(math.isfinite, map(float, tensor.aminmax()))):
            raise CheckpointError(f"{where}: {kind} of {module} holds numbers that are not finite")
        found.setdefault(module, Module(module)).tensors[kind] = tensor
    shapes = {
        name: {kind: tuple(each.shape) for kind, each in module.tensors.items()} for name, module in found.items()
    }
    check_pairs(shapes, where, stacks)
    return found
