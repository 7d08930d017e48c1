"""The map of a file's tensors to the parameters, and parts of parameters, that they fill.

A family's names are patterns; one that ends in [{e}] is of a tensor that has all experts of a layer, [experts, …].
Here they are expanded for one model, so that coverage can be proved: every parameter is filled completely, and every
tensor of the file is used or known to be no weight.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenmill.model.config import ModelConfig
from tokenmill.model.description import describe
from tokenmill.model.families import Family

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Target:
    """`parameter` of the decoder, the `part` of it ("" for all) and the transform of the file's tensor.

    A part that is a number is one row of weights [heads, head_dim].
    """

    parameter: str
    part: str
    transform: str

    @property
    def is_transposed(self) -> bool:
        """Whether a matrix lies in the file as [inputs, outputs]."""
        return self.transform.startswith("transpose")

    def shape_in_file(self, num_rows: int, inputs: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the file's tensor, which fills so many rows of [rows, *inputs]."""
        if self.part.isdigit():
            return inputs
        shape = (num_rows, *inputs)
        return (1, *shape) if self.transform == "one row" else shape[::-1] if self.is_transposed else shape


def expand(family: Family, config: ModelConfig, parameters: Iterable[str]) -> dict[str, Target]:
    """File name → target, for every parameter that this model has."""
    existing = set(parameters)
    marks = {
        "{p}": (".weight", ".bias"),
        "{i}": range(config.num_layers),
        "{e}": range(config.num_experts),
        "{h}": range(config.num_heads),
        "{k}": range(config.num_kv_heads),
    }
    targets = {}
    for pattern, goal in family.names.items():
        pairs = [(pattern, goal)]
        for mark, values in marks.items():
            if mark in pattern:
                pairs = [(p.replace(mark, str(v)), g.replace(mark, str(v))) for p, g in pairs for v in values]
        for name, text in pairs:
            place, _, transform = text.partition(" | ")
            parameter, _, part = place.partition(":")
            if parameter in existing:
                targets[name] = Target(parameter, part, transform)
    return targets


def stacked(family: Family) -> re.Pattern[str]:
    """The family's tensors that hold all experts of a layer, by their names without the family's prefix.

    So do their codes and scales in a quantised directory, which are named after them.
    """
    patterns = (name.removesuffix("[{e}]") for name in family.names if name.endswith("[{e}]"))
    either = "|".join(re.escape(name).replace(r"\{i\}", r"\d+") for name in patterns)
    return re.compile(f"(?:{either})(?:_blocks|_scales)?" if either else r"(?!)")


def is_ignored(family: Family, name: str) -> bool:
    """Whether it is a buffer that a file may carry beside its weights."""
    return any(re.fullmatch(re.escape(p).replace(r"\{i\}", r"\d+"), name) for p in family.ignored)


def is_further(family: Family, config: ModelConfig, name: str) -> bool:
    """Whether it is of the layers that predict further tokens."""
    return name.startswith(tuple(begin.replace("{n}", str(config.num_layers)) for begin in family.further))


def rows_of(target: Target, num_rows: int, config: ModelConfig) -> range:
    """Choose the rows, of the num_rows of a merged parameter, that one tensor of the file fills."""
    if not target.part:
        return range(num_rows)
    if target.part.isdigit():
        return range(int(target.part), int(target.part) + 1)
    if target.part in ("gate", "up"):
        half = num_rows // 2
        return range(half) if target.part == "gate" else range(half, num_rows)
    layer = int(target.parameter.split(".")[1])  # layers.{i}.attention.qkv
    q, kv, _ = describe(config).layers[layer].attention.qkv.parts
    return {"q": range(q), "k": range(q, q + kv), "v": range(q + kv, num_rows)}[target.part]


def _heads_to_qkv(tensor: "Tensor", config: ModelConfig) -> "Tensor":
    """[N · (q, k, v) · H, …] → [(q, k, v) · N · H, …]"""
    shape = (config.num_heads, 3, config.head_dim, *tensor.shape[1:])
    return tensor.reshape(shape).transpose(0, 1).reshape(tensor.shape)


def _bigcode_qkv(tensor: "Tensor", config: ModelConfig) -> "Tensor":
    """Multi-query files are q, k, v already; multi-head ones interleave them by head."""
    return tensor if config.num_kv_heads != config.num_heads else _heads_to_qkv(tensor, config)


def _pairs_to_halves(tensor: "Tensor", config: ModelConfig) -> "Tensor":
    """Rows of q or k, from pairs (0, 1), (2, 3), … that rotate together to (i, i + dim/2).

    Within each head the rotated rows are sorted, the even ones first; scores do not depend on the order, where that of
    q and k is the same.
    """
    heads = tensor.reshape(-1, config.head_dim, *tensor.shape[1:])
    return heads[:, _halves(config)].reshape(tensor.shape)


def _pairs_to_halves_of_heads(tensor: "Tensor", config: ModelConfig) -> "Tensor":
    """The same of the weights [heads, head_dim] of a norm of q or k."""
    return tensor[:, _halves(config)]


def _halves(config: ModelConfig) -> list[int]:
    dim = config.head_dim if config.rope is None else config.rope.dim
    return [*range(0, dim, 2), *range(1, dim, 2), *range(dim, config.head_dim)]


def _interleaved(rows: "Tensor", config: ModelConfig) -> "Tensor":
    """Rows gate 0, up 0, gate 1, up 1, … → all of the gate, then all of up."""
    return rows.reshape(-1, 2, *rows.shape[1:]).transpose(0, 1).reshape(rows.shape)


TRANSFORMS: dict[str, Callable[["Tensor", ModelConfig], "Tensor"]] = {
    "": lambda tensor, _: tensor,
    "one row": lambda tensor, _: tensor[0],
    "transpose": lambda tensor, _: tensor.t(),
    "heads_to_qkv": _heads_to_qkv,
    "bigcode_qkv": _bigcode_qkv,
    "pairs_to_halves": _pairs_to_halves,
    "pairs_to_halves of heads": _pairs_to_halves_of_heads,
    "interleaved": _interleaved,
    "transpose interleaved": lambda tensor, config: _interleaved(tensor.t(), config),
}
