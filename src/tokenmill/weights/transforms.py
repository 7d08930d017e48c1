"""The transforms of tensors that files store otherwise than the decoder has them, by the names that families give them.

Each transform is here in both directions, of which one undoes the other: a model is read from one layout and written in
another.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tokenmill.errors import CheckpointError
from tokenmill.model.config import ModelConfig
from tokenmill.model.families.mixers_of import mixer_of
from tokenmill.model.mixers.delta_net import DeltaNetBlock
from tokenmill.model.mixers.latent import LatentBlock
from tokenmill.model.mixers.mamba2 import Mamba2Block

Layout = Callable[[Tensor, ModelConfig], Tensor]


def _same(tensor: Tensor, _: ModelConfig) -> Tensor:
    return tensor


def _transposed(tensor: Tensor, _: ModelConfig) -> Tensor:
    """Transpose [in, out] ↔ [out, in]; a bias stays."""
    return tensor.t()


@dataclass(frozen=True)
class Transform:
    """A tensor in a file's layout → the decoder's, and back.

    orders_rows: nothing but the order of rows changes, so that codes are transformed as values are; orders_columns:
    nothing but the order of columns. of_rows: the name
    of the transform that is left where rows are [outputs, inputs] already, as rows of codes are.
    """

    to_decoder: Layout = _same
    to_file: Layout = _same
    orders_rows: bool = False
    orders_columns: bool = False
    of_rows: str | None = None


def _heads_to_qkv(tensor: Tensor, config: ModelConfig) -> Tensor:
    """Reorder [N · (q, k, v) · H, …] to [(q, k, v) · N · H, …]."""
    shape = (config.num_heads, 3, config.head_dim, *tensor.shape[1:])
    return tensor.reshape(shape).transpose(0, 1).reshape(tensor.shape)


def _bigcode_qkv(tensor: Tensor, config: ModelConfig) -> Tensor:
    """Reorder Q, K and V, which multi-head files interleave by head; multi-query files have them in order."""
    return tensor if config.num_kv_heads != config.num_heads else _heads_to_qkv(tensor, config)


def _pairs_to_halves(tensor: Tensor, config: ModelConfig) -> Tensor:
    """Reorder rows of Q or K from pairs (0, 1), (2, 3), … that rotate together to pairs (i, i + dim/2).

    Within each head the rotated rows are sorted, the even ones first. Scores do not depend on the order, as long as Q
    and K have the same.
    """
    heads = tensor.reshape(-1, config.head_dim, *tensor.shape[1:])
    return heads[:, _halves(config)].reshape(tensor.shape)


def _qkv_to_halves(tensor: Tensor, config: ModelConfig) -> Tensor:
    """Reorder the rows of Q, K and V in one tensor as _pairs_to_halves does; V, which is not rotated, stays."""
    heads = tensor.reshape(-1, config.head_dim, *tensor.shape[1:]).clone()
    rotated = config.num_heads + config.num_kv_heads
    heads[:rotated] = heads[:rotated][:, _halves(config)]
    return heads.reshape(tensor.shape)


def _halves(config: ModelConfig) -> list[int]:
    dim = config.head_dim if config.rope is None else config.rope.dim
    return [*range(0, dim, 2), *range(1, dim, 2), *range(dim, config.head_dim)]


def _latent_pairs(role: str) -> Layout:
    """Make the layout that sorts rotated rows as _pairs_to_halves does: of latent attention's q, or of its row r."""

    def layout(tensor: Tensor, config: ModelConfig) -> Tensor:
        block = mixer_of(config, LatentBlock)
        assert block is not None, "latent attention alone has such rows"
        if not block.pairs:
            return tensor
        width = block.query_dim if role == "q" else block.row_dim
        first = width - block.rope_dim
        order = [*range(first), *range(first, width, 2), *range(first + 1, width, 2)]
        return tensor.reshape(-1, width, *tensor.shape[1:])[:, order].reshape(tensor.shape)

    return layout


def _halves_swapped(tensor: Tensor, config: ModelConfig) -> Tensor:
    """Swap the halves of the rows of each head, so that pairs (i, i + dim/2) rotate the other way round."""
    heads = tensor.reshape(-1, config.head_dim, *tensor.shape[1:])
    return heads.roll(config.head_dim // 2, dims=1).reshape(tensor.shape)


def _gate_before_query(tensor: Tensor, config: ModelConfig) -> Tensor:
    """Reorder [N · (query, gate) · H, …] to [(gate, query) · N · H, …]."""
    shape = (config.num_heads, 2, config.head_dim, *tensor.shape[1:])
    return tensor.reshape(shape).transpose(0, 1).flip(0).reshape(tensor.shape)


def _interleaved(rows: Tensor, _: ModelConfig) -> Tensor:
    """Reorder rows gate 0, up 0, gate 1, up 1, … to all of the gate, then all of up."""
    return rows.reshape(-1, 2, *rows.shape[1:]).transpose(0, 1).reshape(rows.shape)


def _log_of_minus(tensor: Tensor, _: ModelConfig) -> Tensor:
    """Take A_log from -exp(A_log)."""
    if not bool((tensor < 0).all()):
        raise CheckpointError("a tensor that has -exp(A_log) holds numbers that are not below 0")
    return torch.log(-tensor)


def _minus_exp(tensor: Tensor, _: ModelConfig) -> Tensor:
    return -torch.exp(tensor)


def _by_groups(tensor: Tensor, config: ModelConfig) -> Tensor:
    """Split the weights of a norm into rows of the groups of Mamba 2."""
    block = mixer_of(config, Mamba2Block)
    assert block is not None, "Mamba 2 alone has such a norm"
    return tensor.reshape(block.num_groups, -1)


def _tiled_to_grouped(tensor: Tensor, config: ModelConfig) -> Tensor:
    """Reorder rows of the heads of v in a delta net from [of each k head the first, then the second, …] to [all of the
    first k head, all of the second, …].
    """
    block = _delta_net(config)
    heads = tensor.reshape(block.num_v_heads // block.num_k_heads, block.num_k_heads, -1, *tensor.shape[1:])
    return heads.transpose(0, 1).reshape(tensor.shape)


def _tiled_after_keys(tensor: Tensor, config: ModelConfig) -> Tensor:
    """Reorder the rows of v alone, which stand behind q and k."""
    block = _delta_net(config)
    first = 2 * block.num_k_heads * block.key_dim
    return torch.cat([tensor[:first], _tiled_to_grouped(tensor[first:], config)])


def _by_k_heads(role: str) -> Layout:
    """Make the layout that reorders rows from [for each k head of a delta net its rows of the first part of a matrix,
    then of the second, …] to [all of the first part, all of the second, …].
    """

    def layout(tensor: Tensor, config: ModelConfig) -> Tensor:
        block = _delta_net(config)
        parts = [rows // block.num_k_heads for rows in block.matrices[role].parts]
        heads = tensor.reshape(block.num_k_heads, sum(parts), *tensor.shape[1:])
        return torch.cat([part.flatten(0, 1) for part in torch.split(heads, parts, dim=1)])

    return layout


def _of_columns(of_rows: Layout) -> Layout:
    """Make the layout that orders columns, of values or of codes and their scales, as another one orders rows of
    heads.
    """

    def layout(tensor: Tensor, config: ModelConfig) -> Tensor:
        heads = _delta_net(config).num_v_heads
        if tensor.shape[1] % heads:
            what = f"codes whose scales are for the inputs of several of {heads} heads cannot be put in another order"
            raise CheckpointError(f"{what}; --scheme dense reads the file's values instead")
        return of_rows(tensor.t(), config).t().contiguous()

    return layout


def _delta_net(config: ModelConfig) -> DeltaNetBlock:
    block = mixer_of(config, DeltaNetBlock)
    assert block is not None, "delta nets alone have heads in that order"
    return block


def _undone(to_decoder: Layout) -> Layout:
    """Make the layout that brings rows back into the order that they had before `to_decoder`."""

    def to_file(rows: Tensor, config: ModelConfig) -> Tensor:
        return rows[to_decoder(torch.arange(len(rows))[:, None], config)[:, 0].argsort()]

    return to_file


def _of_order(to_decoder: Layout) -> Transform:
    return Transform(to_decoder, _undone(to_decoder), orders_rows=True)


TRANSFORMS: dict[str, Transform] = {
    "": Transform(orders_rows=True),
    "one row": Transform(lambda tensor, _: tensor[0], lambda tensor, _: tensor[None]),
    "as a row": Transform(lambda tensor, _: tensor[None], lambda tensor, _: tensor[0]),
    "depthwise": Transform(lambda tensor, _: tensor[:, 0], lambda tensor, _: tensor[:, None]),
    "less one": Transform(lambda tensor, _: tensor - 1, lambda tensor, _: tensor + 1),
    "transpose": Transform(_transposed, _transposed, of_rows=""),
    "heads_to_qkv": _of_order(_heads_to_qkv),
    "bigcode_qkv": _of_order(_bigcode_qkv),
    "pairs_to_halves": _of_order(_pairs_to_halves),
    "pairs_to_halves of heads": Transform(
        lambda tensor, config: tensor[:, _halves(config)],
        lambda tensor, config: tensor[:, torch.tensor(_halves(config)).argsort()],
    ),
    "pairs_to_halves of qkv": _of_order(_qkv_to_halves),
    "latent pairs of q": _of_order(_latent_pairs("q")),
    "latent pairs of r": _of_order(_latent_pairs("r")),
    "halves swapped": _of_order(_halves_swapped),
    "gate before query": _of_order(_gate_before_query),
    "log of minus": Transform(_log_of_minus, _minus_exp),
    "column log of minus": Transform(
        lambda tensor, config: _log_of_minus(tensor[:, 0], config),
        lambda tensor, config: _minus_exp(tensor, config)[:, None],
    ),
    "as a column": Transform(lambda tensor, _: tensor[:, 0], lambda tensor, _: tensor[:, None]),
    "heads in the middle": Transform(lambda tensor, _: tensor.flatten(), lambda tensor, _: tensor[None, None, :, None]),
    "by groups": Transform(lambda tensor, _: tensor.flatten(), _by_groups),
    "tiled": _of_order(_tiled_to_grouped),
    "tiled after keys": _of_order(_tiled_after_keys),
    "tiled columns": Transform(
        _of_columns(_tiled_to_grouped), _of_columns(_undone(_tiled_to_grouped)), orders_columns=True
    ),
    "tiled log of minus": Transform(
        lambda tensor, config: _tiled_to_grouped(_log_of_minus(tensor, config), config),
        lambda tensor, config: _minus_exp(_undone(_tiled_to_grouped)(tensor, config), config),
    ),
    "qkvz by k heads": _of_order(_by_k_heads("qkvz")),
    "gates by k heads": _of_order(_by_k_heads("gates")),
    "interleaved": _of_order(_interleaved),
    "transpose interleaved": Transform(
        lambda tensor, config: _interleaved(tensor.t(), config),
        lambda tensor, config: _undone(_interleaved)(tensor, config).t(),
        of_rows="interleaved",
    ),
}


def of_rows(name: str) -> Transform:
    """Find the transform that is left where the rows of a tensor are [outputs, inputs] already."""
    transform = TRANSFORMS[name]
    return transform if transform.of_rows is None else TRANSFORMS[transform.of_rows]
