"""The transforms of tensors that files store otherwise than the decoder has them, by the names that families give them.

Each transform is here in both directions, of which one undoes the other: a model is read from one layout and written in
another.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenmill.model.config import ModelConfig

if TYPE_CHECKING:
    from torch import Tensor

Layout = Callable[["Tensor", ModelConfig], "Tensor"]


def _same(tensor: "Tensor", _: ModelConfig) -> "Tensor":
    return tensor


def _transposed(tensor: "Tensor", _: ModelConfig) -> "Tensor":
    """Transpose [in, out] ↔ [out, in]; a bias stays."""
    return tensor.t()


@dataclass(frozen=True)
class Transform:
    """A tensor in a file's layout → the decoder's, and back.

    orders_rows: nothing but the order of rows changes, so that codes are transformed as values are. of_rows: the name
    of the transform that is left where rows are [outputs, inputs] already, as rows of codes are.
    """

    to_decoder: Layout = _same
    to_file: Layout = _same
    orders_rows: bool = False
    of_rows: str | None = None


def _heads_to_qkv(tensor: "Tensor", config: ModelConfig) -> "Tensor":
    """Reorder [N · (q, k, v) · H, …] to [(q, k, v) · N · H, …]."""
    shape = (config.num_heads, 3, config.head_dim, *tensor.shape[1:])
    return tensor.reshape(shape).transpose(0, 1).reshape(tensor.shape)


def _qkv_to_heads(tensor: "Tensor", config: ModelConfig) -> "Tensor":
    shape = (3, config.num_heads, config.head_dim, *tensor.shape[1:])
    return tensor.reshape(shape).transpose(0, 1).reshape(tensor.shape)


def _bigcode_qkv(tensor: "Tensor", config: ModelConfig) -> "Tensor":
    """Reorder Q, K and V, which multi-head files interleave by head; multi-query files have them in order."""
    return tensor if config.num_kv_heads != config.num_heads else _heads_to_qkv(tensor, config)


def _to_bigcode_qkv(tensor: "Tensor", config: ModelConfig) -> "Tensor":
    return tensor if config.num_kv_heads != config.num_heads else _qkv_to_heads(tensor, config)


def _pairs_to_halves(tensor: "Tensor", config: ModelConfig) -> "Tensor":
    """Reorder rows of Q or K from pairs (0, 1), (2, 3), … that rotate together to pairs (i, i + dim/2).

    Within each head the rotated rows are sorted, the even ones first. Scores do not depend on the order, as long as Q
    and K have the same.
    """
    heads = tensor.reshape(-1, config.head_dim, *tensor.shape[1:])
    return heads[:, _halves(config)].reshape(tensor.shape)


def _halves_to_pairs(tensor: "Tensor", config: ModelConfig) -> "Tensor":
    heads = tensor.reshape(-1, config.head_dim, *tensor.shape[1:])
    return heads[:, _pairs(config)].reshape(tensor.shape)


def _qkv_to_halves(tensor: "Tensor", config: ModelConfig) -> "Tensor":
    """Reorder the rows of Q, K and V in one tensor as _pairs_to_halves does; V, which is not rotated, stays."""
    heads = tensor.reshape(-1, config.head_dim, *tensor.shape[1:]).clone()
    rotated = config.num_heads + config.num_kv_heads
    heads[:rotated] = heads[:rotated][:, _halves(config)]
    return heads.reshape(tensor.shape)


def _qkv_to_pairs(tensor: "Tensor", config: ModelConfig) -> "Tensor":
    heads = tensor.reshape(-1, config.head_dim, *tensor.shape[1:]).clone()
    rotated = config.num_heads + config.num_kv_heads
    heads[:rotated] = heads[:rotated][:, _pairs(config)]
    return heads.reshape(tensor.shape)


def _halves(config: ModelConfig) -> list[int]:
    dim = config.head_dim if config.rope is None else config.rope.dim
    return [*range(0, dim, 2), *range(1, dim, 2), *range(dim, config.head_dim)]


def _pairs(config: ModelConfig) -> list[int]:
    order = _halves(config)
    return sorted(range(len(order)), key=order.__getitem__)


def _interleaved(rows: "Tensor", _: ModelConfig) -> "Tensor":
    """Reorder rows gate 0, up 0, gate 1, up 1, … to all of the gate, then all of up."""
    return rows.reshape(-1, 2, *rows.shape[1:]).transpose(0, 1).reshape(rows.shape)


def _to_interleaved(rows: "Tensor", _: ModelConfig) -> "Tensor":
    return rows.reshape(2, -1, *rows.shape[1:]).transpose(0, 1).reshape(rows.shape)


TRANSFORMS: dict[str, Transform] = {
    "": Transform(orders_rows=True),
    "one row": Transform(lambda tensor, _: tensor[0], lambda tensor, _: tensor[None]),
    "as a row": Transform(lambda tensor, _: tensor[None], lambda tensor, _: tensor[0]),
    "less one": Transform(lambda tensor, _: tensor - 1, lambda tensor, _: tensor + 1),
    "transpose": Transform(_transposed, _transposed, of_rows=""),
    "heads_to_qkv": Transform(_heads_to_qkv, _qkv_to_heads, orders_rows=True),
    "bigcode_qkv": Transform(_bigcode_qkv, _to_bigcode_qkv, orders_rows=True),
    "pairs_to_halves": Transform(_pairs_to_halves, _halves_to_pairs, orders_rows=True),
    "pairs_to_halves of heads": Transform(
        lambda tensor, config: tensor[:, _halves(config)], lambda tensor, config: tensor[:, _pairs(config)]
    ),
    "pairs_to_halves of qkv": Transform(_qkv_to_halves, _qkv_to_pairs, orders_rows=True),
    "interleaved": Transform(_interleaved, _to_interleaved, orders_rows=True),
    "transpose interleaved": Transform(
        lambda tensor, config: _interleaved(tensor.t(), config),
        lambda tensor, config: _to_interleaved(tensor, config).t(),
        of_rows="interleaved",
    ),
}


def of_rows(name: str) -> Transform:
    """Find the transform that is left where the rows of a tensor are [outputs, inputs] already."""
    transform = TRANSFORMS[name]
    return transform if transform.of_rows is None else TRANSFORMS[transform.of_rows]
