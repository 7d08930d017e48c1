"""The tensors of an adapter's file, put together for each module of the model that they change.

PEFT names a tensor base_model.model.PATH.KIND, with the path of the module in the transformers model; llama.cpp names
it NAME.lora_a or NAME.lora_b, with its own name of the weight.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from tokenmill.errors import CheckpointError

_PREFIX = "base_model.model."
_KINDS = {
    "lora_A.weight": "a",
    "lora_B.weight": "b",
    "lora_B.bias": "b_bias",
    "lora_embedding_A": "embedding_a",
    "lora_embedding_B": "embedding_b",
    "lora_magnitude_vector": "magnitude",
    "lora_magnitude_vector.weight": "magnitude",
    "base_layer.weight": "weight",
    "base_layer.bias": "bias",
    "token_adapter.trainable_tokens_delta": "tokens",
    "weight": "weight",
    "bias": "bias",
}
_KIND = re.compile(rf"(?P<module>.+?)\.(?P<kind>{'|'.join(map(re.escape, _KINDS))})")
EMBEDDING = "token_embd"  # llama.cpp's name
_PAIRS = (("a", "b"), ("embedding_a", "embedding_b"))


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
        return max((self.tensors[kind].shape[-2] for kind, _ in _PAIRS if kind in self.tensors), default=0)

    def has_only(self, *kinds: str) -> bool:
        return self.tensors.keys() <= set(kinds)


def modules_of_peft(tensors: Mapping[str, Tensor], where: str) -> dict[str, Module]:
    """Put together the tensors of a PEFT file. CheckpointError lists names of another form, and halves of pairs."""
    found, unexpected = dict[str, Module](), []
    for name, tensor in tensors.items():
        match = _KIND.fullmatch(name.removeprefix(_PREFIX).replace(".default.", ".").removesuffix(".default"))
        if not name.startswith(_PREFIX) or match is None:
            unexpected.append(name)
            continue
        module = found.setdefault(match["module"], Module(match["module"]))
        if _KINDS[match["kind"]] in module.tensors:
            raise CheckpointError(f"{where}: {name} stands there twice, under two names")
        module.tensors[_KINDS[match["kind"]]] = tensor
    if unexpected:
        what = f"{where} holds tensors whose names are not those that PEFT gives, {_PREFIX}MODULE.lora_A.weight"
        raise CheckpointError(what, unexpected=unexpected)
    _check_pairs(found.values(), where)
    return found


def modules_of_gguf(tensors: Mapping[str, Tensor], where: str) -> dict[str, Module]:
    """Put together the tensors of a llama.cpp adapter. CheckpointError as above."""
    found, unexpected = dict[str, Module](), []
    for name, tensor in tensors.items():
        module, _, kind = name.rpartition(".lora_")
        if kind not in ("a", "b") or not module.endswith(".weight"):
            unexpected.append(name)
            continue
        path = module.removesuffix(".weight")
        own = found.setdefault(path, Module(path)).tensors
        if path != EMBEDDING:
            own[kind] = tensor
        else:  # llama.cpp takes rows of its A, [V, R]
            own[f"embedding_{kind}"] = tensor.t() if kind == "a" and tensor.dim() == 2 else tensor
    if unexpected:
        what = f"{where} holds tensors whose names are not those of an adapter, NAME.weight.lora_a and .lora_b"
        raise CheckpointError(what, unexpected=unexpected)
    _check_pairs(found.values(), where, stacks=True)
    return found


def _check_pairs(modules: Iterable[Module], where: str, stacks: bool = False) -> None:
    """Raise CheckpointError unless each factor is a matrix and has its other half, of the same rank, and all numbers
    are finite. stacks: factors of all experts have a third dimension.
    """
    missing, misshapen = [], []
    for module in modules:
        for kind, tensor in module.tensors.items():
            if tensor.numel() and not all(map(math.isfinite, map(float, tensor.aminmax()))):
                raise CheckpointError(f"{where}: {kind} of {module.name} holds numbers that are not finite")
        for first, second in _PAIRS:
            a, b = module.get(first), module.get(second)
            if (a is None) != (b is None):
                missing.append(f"{module.name} ({second if b is None else first})")
            elif a is not None and b is not None:
                is_known = a.dim() == b.dim() and (a.dim() == 2 or (stacks and a.dim() == 3 and first == "a"))
                if not is_known or a.shape[-2] != b.shape[-1] or not a.shape[-2]:
                    misshapen.append(f"{module.name}: {list(a.shape)} and {list(b.shape)}, no [R, I] and [O, R]")
        alone = {"magnitude", "b_bias"} & module.tensors.keys()
        if alone and not {"a", "embedding_a"} & module.tensors.keys():
            missing.append(f"{module.name} (the factors of {sorted(alone)[0]})")
    if missing or misshapen:
        raise CheckpointError(f"{where} is not whole", missing=missing, misshapen=misshapen)
