"""Attention backend padded: steps of fixed shape for a compiler to fuse, with no loop over sequences and no branch on
data.

One query to a sequence is written out as sums: code compiled from it reads each row of the cache where it lies, in any
format, and stores no copy. More queries gather their rows once and go through torch's SDPA.
"""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from tokenmill.cache.formats.layer import LayerKV
from tokenmill.cache.padded_step import PaddedStep
from tokenmill.cache.step import Step
from tokenmill.kernels.attend import AttentionShape
from tokenmill.kernels.attend.kernel import Attend, capped


class Padded(Attend):
    """The kernel for padded steps, with every format, device and shape."""

    padded = True

    def attend(
        self, q_TNH: Tensor, layer: LayerKV, step: Step, shape: AttentionShape, sinks_N: Tensor | None
    ) -> Tensor:
        assert isinstance(step, PaddedStep), "chosen for padded steps"
        num_sequences, num_keys = step.keys_BL.shape
        positions_BC = step.positions_T.view(num_sequences, -1)
        keys_L = torch.arange(num_keys, device=step.keys_BL.device)
        seen_BCL = keys_L <= positions_BC[..., None]
        if shape.window is not None:
            seen_BCL = seen_BCL & (keys_L > positions_BC[..., None] - shape.window)
        rows = layer.gather(step.keys_BL.flatten())
        k_BLKH, v_BLKH = (each.view(num_sequences, num_keys, *each.shape[1:]) for each in rows)
        num_kv_heads, head_dim = k_BLKH.shape[2:]
        q_BCKGH = q_TNH.view(num_sequences, -1, num_kv_heads, q_TNH.shape[1] // num_kv_heads, head_dim)
        if q_BCKGH.shape[1] == 1:
            out = _one_query(q_BCKGH[:, 0], k_BLKH, v_BLKH, seen_BCL[:, 0], shape, sinks_N)
        else:
            # Slots beyond a sequence's end may hold anything, and 0 times NaN is not 0.
            there_BL11 = (keys_L <= positions_BC[:, -1:])[..., None, None]
            k_BLKH, v_BLKH = torch.where(there_BL11, k_BLKH, 0), torch.where(there_BL11, v_BLKH, 0)
            out = _many_queries(q_BCKGH, k_BLKH, v_BLKH, seen_BCL, shape, sinks_N)
        return out.reshape(*q_TNH.shape[:2], -1).to(q_TNH.dtype)


def _weights(scores: Tensor, sinks: Tensor | None, dim: int) -> Tensor:
    """Return the softmax of the scores along a dimension, of which the sinks, one long there, take a share."""
    if sinks is None:
        return torch.softmax(scores, dim=dim)
    shape = [*scores.shape]
    shape[dim] = 1
    with_sinks = torch.cat((scores, sinks.float().expand(shape)), dim=dim)
    return torch.softmax(with_sinks, dim=dim).narrow(dim, 0, scores.shape[dim])


def _one_query(
    q_BKGH: Tensor, k_BLKH: Tensor, v_BLKH: Tensor, seen_BL: Tensor, shape: AttentionShape, sinks_N: Tensor | None
) -> Tensor:
    seen_BL11 = seen_BL[..., None, None]
    scores_BLKG = (q_BKGH[:, None].float() * k_BLKH[:, :, :, None].float()).sum(-1) * shape.scale
    scores_BLKG = capped(scores_BLKG, shape).masked_fill(~seen_BL11, -torch.inf)
    weights_BLKG = _weights(scores_BLKG, None if sinks_N is None else sinks_N.view(scores_BLKG.shape[2:]), 1)
    v_BLK1H = torch.where(seen_BL11, v_BLKH, 0)[:, :, :, None].float()
    return (weights_BLKG[..., None] * v_BLK1H).sum(1)


def _many_queries(
    q_BCKGH: Tensor, k_BLKH: Tensor, v_BLKH: Tensor, seen_BCL: Tensor, shape: AttentionShape, sinks_N: Tensor | None
) -> Tensor:
    group = q_BCKGH.shape[3]
    q_BKGCH = q_BCKGH.permute(0, 2, 3, 1, 4)
    k_BKGLH = k_BLKH.transpose(1, 2)[:, :, None].expand(-1, -1, group, -1, -1)
    v_BKGLH = v_BLKH.transpose(1, 2)[:, :, None].expand(-1, -1, group, -1, -1)
    mask_B1CL = seen_BCL[:, None]
    if shape.is_plain:
        q_BNCH, k_BNLH, v_BNLH = (x.flatten(1, 2) for x in (q_BKGCH, k_BKGLH, v_BKGLH))
        out_BNCH = scaled_dot_product_attention(q_BNCH, k_BNLH, v_BNLH, mask_B1CL, scale=shape.scale)
    else:
        scores = torch.matmul(q_BKGCH.float(), k_BKGLH.transpose(-1, -2).float()).flatten(1, 2) * shape.scale
        scores = capped(scores, shape).masked_fill(~mask_B1CL, -torch.inf)
        weights = _weights(scores, None if sinks_N is None else sinks_N[:, None, None], -1)
        out_BNCH = torch.matmul(weights, v_BKGLH.flatten(1, 2).float())
    return out_BNCH.transpose(1, 2)
