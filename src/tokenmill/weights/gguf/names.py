"""GGUF's names and layout of each family's tensors, and Hugging Face's, in both directions.

llama.cpp's converters rename every tensor and transform some
(https://github.com/ggml-org/llama.cpp/tree/master/conversion). The names come from the gguf package's own table,
applied to the names of the family. Each transform is here in both directions, and one undoes the other.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import gguf

from tokenmill.model.families import find_family, gguf_facts

if TYPE_CHECKING:
    from torch import Tensor

ROPE_FREQS = "rope_freqs.weight"
Layout = Callable[["Tensor", Mapping[str, Any]], "Tensor"]


@dataclass(frozen=True)
class Transform:
    """A tensor in GGUF's layout → Hugging Face's, and back; each is given the sizes in the words of config.json.

    transposes: matrices alone are transposed, which leaves codes [outputs, inputs] as they are.
    """

    to_hf: Layout = lambda tensor, _: tensor
    to_gguf: Layout = lambda tensor, _: tensor
    transposes: bool = False


def hf_bases(model_type: str) -> dict[str, str]:
    """GGUF name → Hugging Face name, both without .weight or .bias; {i} is the layer, {e} the expert."""
    arch = gguf_facts(model_type).architecture
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(number, 1)
    family = find_family({"model_type": model_type})
    bases = {}
    for pattern in family.names:
        base = family.prefix + re.sub(r"(\{p\}|\.weight|\.bias)$", "", pattern)
        # gguf's table names the head without the family's prefix, and experts without their number.
        for spelling in (base, base.removeprefix(family.prefix)):
            stored = names.get_name(spelling.replace("{i}", "0").replace(".{e}", ""))
            if stored is not None:
                bases[stored.replace("blk.0.", "blk.{i}.")] = spelling
                break
    return bases


def find_transform(model_type: str, kind: str) -> Transform:
    """Find the transform of tensors of that kind, which is GGUF's name without its layer and .weight or .bias."""
    order, *keys = gguf_facts(model_type).rows.get(kind.removeprefix("blk.{i}."), ("same",))
    return ORDERS[order](*keys)


def _transpose(tensor: "Tensor", config: Mapping[str, Any]) -> "Tensor":
    """[out, in] → [in, out], as GPT-2's Conv1D has it, or back; a bias stays."""
    return tensor.t()


def _swap_axes(axis: int, shape: tuple[int | str, ...], tensor: "Tensor", config: Mapping[str, Any]) -> "Tensor":
    """The rows as an array of `shape`, keys of the config and one -1, with `axis` and the one after it exchanged."""
    sizes = [config[size] if isinstance(size, str) else size for size in shape]
    if tensor.shape[0] % abs(prod(sizes)):
        return tensor  # its shape is reported as wrong by the loader
    return tensor.reshape(*sizes, *tensor.shape[1:]).transpose(axis, axis + 1).reshape(tensor.shape)


def _halves(heads: str) -> Transform:
    """Reorder, within each head, from pairs of rows that rotate together, 0 1, 2 3, …, to all even rows, then all odd
    rows.
    """
    return Transform(partial(_swap_axes, 1, (heads, -1, 2)), partial(_swap_axes, 1, (heads, 2, -1)))


def _interleaved(heads: str) -> Transform:
    """[(q, k, v) · N · H, …] → [N · (q, k, v) · H, …]"""
    return Transform(partial(_swap_axes, 0, (3, heads, -1)), partial(_swap_axes, 0, (heads, 3, -1)))


def _plus_one() -> Transform:
    """The weight of a norm that a model multiplies by 1 + weight: the converter stores the sum."""
    return Transform(lambda tensor, _: tensor - 1, lambda tensor, _: tensor + 1)


ORDERS: Mapping[str, Callable[..., Transform]] = {
    "same": Transform,
    "transposed": lambda: Transform(_transpose, _transpose, transposes=True),
    "pairs": _halves,
    "plus_one": _plus_one,
    "interleaved": _interleaved,
}
"""The orders of rows that a family may name."""
