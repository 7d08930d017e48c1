"""The recurrence of linear attention: a state of each head that each token decays, changes and reads.

    S <- decay · S;  S <- S + key ⊗ change;  out = queryᵀ S

change is the value itself (Mamba 2: Dao & Gu 2024, arXiv 2405.21060), or by the delta rule (value - keyᵀ S) · beta
(Yang et al. 2024, arXiv 2412.06464). slices.py tells how S is stored.
"""

from typing import Any

import torch
from torch import Tensor

from tokenmill.cache.padded_step import PaddedStep, StatesOver
from tokenmill.cache.pool import LayerStates
from tokenmill.cache.step import Span, Step
from tokenmill.model.mixers.padded_states import is_span, read_states, saves_of, without_padding, write_states
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
    step: Step | PaddedStep,
) -> Tensor:
    """Take all tokens of a step into the states and read each token's output, [T, N, V]; float32 throughout.

    decay: of each head, [T, N], or of each number of its key, [T, N, K]. beta_TN: for the delta rule, None without. The
    states are the second state of the layer.
    """
    if isinstance(step, PaddedStep):
        return _recur_padded(query_TNK, key_TNK, value_TNV, decay, beta_TN, kept.tensors[1], step)
    whole = rounds_of(step)
    state_BNSKC = kept.read(whole.slots, 1)
    shape = (*state_BNSKC.shape[1:3], state_BNSKC.shape[-1])
    key_TNK, query_TNK = key_TNK[:, :, None, :, None], query_TNK[:, :, None, :, None]
    value_TNSC = value_TNV.view(-1, *shape)
    out_TNSC = torch.empty_like(value_TNSC)
    decay_TN1K1 = _decays(decay)
    for each in whole.rounds:
        rows = each.rows_B
        state, beta_BN = state_BNSKC[: len(rows)], None if beta_TN is None else beta_TN[rows]
        out_TNSC[rows] = _advance(state, query_TNK[rows], key_TNK[rows], value_TNSC[rows], decay_TN1K1[rows], beta_BN)
        for text, slot in each.saved:
            kept.write(1, [slot], state[text : text + 1])
    return out_TNSC.flatten(-2)


def _advance(
    state_BNSKC: Tensor, query: Tensor, key: Tensor, change: Tensor, decay: Tensor, beta_BN: Tensor | None
) -> Tensor:
    """Take a token of each text into its state, in place; return what the token reads."""
    state_BNSKC *= decay
    if beta_BN is not None:
        change = (change - (state_BNSKC * key).sum(-2)) * beta_BN[:, :, None, None]
    state_BNSKC += key * change[..., None, :]
    return (state_BNSKC * query).sum(-2)


def _decays(decay: Tensor) -> Tensor:
    """View decays as factors of states, [T, N, 1, K or 1, 1]."""
    return decay[:, :, None, None, None] if decay.dim() == 2 else decay[:, :, None, :, None]


def _recur_padded(
    query_TNK: Tensor,
    key_TNK: Tensor,
    value_TNV: Tensor,
    decay: Tensor,
    beta_TN: Tensor | None,
    states: Tensor,
    step: PaddedStep,
) -> Tensor:
    state_BNSKC = read_states(states, step)
    if is_span(value_TNV, step):
        counts_S, _ = saves_of(step)
        out_TNV, kept = recur_span(query_TNK, key_TNK, value_TNV, decay, beta_TN, state_BNSKC, counts_S)
        write_states(states, step, kept)
        return without_padding(out_TNV, step)
    key_BN1K1, query_BN1K1 = key_TNK[:, :, None, :, None], query_TNK[:, :, None, :, None]
    value_BNSC = value_TNV.view(-1, *states.shape[1:3], states.shape[-1])
    out_BNSC = _advance(state_BNSKC, query_BN1K1, key_BN1K1, value_BNSC, _decays(decay), beta_TN)
    write_states(states, step, state_BNSKC)
    return out_BNSC.flatten(-2)


@torch.library.custom_op("tokenmill::recur_span", mutates_args=())
def recur_span(
    query_TNK: Tensor,
    key_TNK: Tensor,
    value_TNV: Tensor,
    decay: Tensor,
    beta_TN: Tensor | None,
    state_BNSKC: Tensor,
    counts_S: Tensor,
) -> tuple[Tensor, Tensor]:
    """Take the tokens of one span into its state; return their outputs, and the states after so many of them.

    They change the state one after the other, which no compiler unrolls: it calls this operation. It changes none of
    its inputs, because the regions in which equal layers are compiled once have no place for operations that do.
    """
    counts = counts_S.tolist()
    span = Span(0, counts[-1], 0, None, None, state=0, saves=tuple(zip(counts, range(1, len(counts) + 1), strict=True)))
    states = torch.cat([state_BNSKC, state_BNSKC.expand(len(counts), *state_BNSKC.shape[1:])])
    step = Step((), (), (), [span], None, 0, counts_S.device)
    kept = StatesOver(states, states)  # the second of them is read
    return recur(query_TNK, key_TNK, value_TNV, decay, beta_TN, kept, step), states[1:].clone()


@recur_span.register_fake
def _(*given: Any) -> tuple[Tensor, Tensor]:
    _, _, value_TNV, _, _, state_BNSKC, counts_S = given
    return value_TNV.new_empty(value_TNV.shape), state_BNSKC.new_empty(counts_S.shape[0], *state_BNSKC.shape[1:])
