"""The recurrence of linear attention: a state of each head that each token decays, changes and reads.

    S <- decay · S;  S <- S + key ⊗ change;  out = queryᵀ S

change is the value itself (Mamba 2: Dao & Gu 2024, arXiv 2405.21060), or by the delta rule (value - keyᵀ S) · beta
(Yang et al. 2024, arXiv 2412.06464). slices.py tells how S is stored.
"""

import torch
from torch import Tensor

from tokenmill.cache.pool import LayerStates
from tokenmill.cache.step import Step
from tokenmill.model.mixers.rounds import rounds_of


def softplus(x: Tensor) -> Tensor:
    """Compute log(1 + exp(x)), written out: torch's softplus computes the last numbers of a tensor in another way."""
    return torch.where(x > 20, x, torch.log1p(torch.exp(x)))


def recur(
    query_TNK: Tensor,
    key_TNK: Tensor,
    value_TNV: Tensor,
    decay: Tensor,
    beta_TN: Tensor | None,
    kept: LayerStates,
    step: Step,
) -> Tensor:
    """Take all tokens of a step into the states and read each token's output, [T, N, V]; float32 throughout.

    decay: of each head, [T, N], or of each number of its key, [T, N, K]. beta_TN: for the delta rule, None without. The
    states are the second state of the layer.
    """
    whole = rounds_of(step)
    state_BNSKC = kept.read(whole.slots, 1)
    shape = (*state_BNSKC.shape[1:3], state_BNSKC.shape[-1])
    key_TNK, query_TNK = key_TNK[:, :, None, :, None], query_TNK[:, :, None, :, None]
    value_TNSC = value_TNV.view(-1, *shape)
    out_TNSC = torch.empty_like(value_TNSC)
    decay_TN1K1 = decay[:, :, None, None, None] if decay.dim() == 2 else decay[:, :, None, :, None]
    for each in whole.rounds:
        rows = each.rows_B
        state, key = state_BNSKC[: len(rows)], key_TNK[rows]
        state *= decay_TN1K1[rows]
        change = value_TNSC[rows]
        if beta_TN is not None:
            change = (change - (state * key).sum(-2)) * beta_TN[rows][:, :, None, None]
        state += key * change[..., None, :]
        out_TNSC[rows] = (state * query_TNK[rows]).sum(-2)
        for text, slot in each.saved:
            kept.write(1, [slot], state[text : text + 1])
    return out_TNSC.flatten(-2)
