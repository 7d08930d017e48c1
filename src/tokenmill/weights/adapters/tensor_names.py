"""The names of the tensors in an adapter's file, and the check that they make whole pairs; without torch.

PEFT names a tensor base_model.model.PATH.KIND, with the path of the module in the transformers model; llama.cpp names
it NAME.weight.lora_a or NAME.weight.lora_b, with its own name of the weight.
"""

import re
from collections.abc import Iterable, Mapping

from tokenmill.errors import CheckpointError

Shape = tuple[int, ...]
Names = dict[str, tuple[str, str]]
"""The module and the kind of each tensor."""

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
PAIRS = (("a", "b"), ("embedding_a", "embedding_b"))
REPLACED = ("weight", "bias", "tokens")
"""The kinds of tensors that stand in the place of the base's."""


def names_of_peft(tensors: Iterable[str], where: str) -> Names:
    """Read the names in a PEFT file. CheckpointError lists names of another form."""
    found, places, unexpected = Names(), set[tuple[str, str]](), []
    for name in tensors:
        match = _KIND.fullmatch(name.removeprefix(_PREFIX).replace(".default.", ".").removesuffix(".default"))
        if not name.startswith(_PREFIX) or match is None:
            unexpected.append(name)
            continue
        place = (match["module"], _KINDS[match["kind"]])
        if place in places:
            raise CheckpointError(f"{where}: {name} stands there twice, under two names")
        places.add(place)
        found[name] = place
    if unexpected:
        what = f"{where} holds tensors whose names are not those that PEFT gives, {_PREFIX}MODULE.lora_A.weight"
        raise CheckpointError(what, unexpected=unexpected)
    return found


def names_of_gguf(tensors: Iterable[str], where: str) -> Names:
    """Read the names in a llama.cpp adapter. CheckpointError lists names of another form."""
    found, unexpected = Names(), []
    for name in tensors:
        module, _, kind = name.rpartition(".lora_")
        if kind not in ("a", "b") or not module.endswith(".weight"):
            unexpected.append(name)
            continue
        path = module.removesuffix(".weight")
        found[name] = (path, kind if path != EMBEDDING else f"embedding_{kind}")
    if unexpected:
        what = f"{where} holds tensors whose names are not those of an adapter, NAME.weight.lora_a and .lora_b"
        raise CheckpointError(what, unexpected=unexpected)
    return found


def is_turned(place: tuple[str, str], dimensions: int) -> bool:
    """Tell whether llama.cpp's file has a factor transposed: it takes rows of the A of an embedding, [V, R]."""
    return place[1] == "embedding_a" and dimensions == 2


def check_pairs(modules: Mapping[str, Mapping[str, Shape]], where: str, stacks: bool = False) -> None:
    """Raise CheckpointError unless each factor is a matrix and has its other half, of the same rank. modules: the shape
    of each kind of tensor. stacks: factors of all experts have a third dimension.
    """
    missing, misshapen = [], []
    for name, shapes in modules.items():
        for first, second in PAIRS:
            a, b = shapes.get(first), shapes.get(second)
            if (a is None) != (b is None):
                missing.append(f"{name} ({second if b is None else first})")
            elif a is not None and b is not None:
                is_known = len(a) == len(b) and (len(a) == 2 or (stacks and len(a) == 3 and first == "a"))
                if not is_known or a[-2] != b[-1] or not a[-2]:
                    misshapen.append(f"{name}: {list(a)} and {list(b)}, no [R, I] and [O, R]")
        alone = {"magnitude", "b_bias"} & shapes.keys()
        if alone and not {"a", "embedding_a"} & shapes.keys():
            missing.append(f"{name} (the factors of {sorted(alone)[0]})")
    if missing or misshapen:
        raise CheckpointError(f"{where} is not whole", missing=missing, misshapen=misshapen)
