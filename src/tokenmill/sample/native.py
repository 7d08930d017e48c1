"""The choice of tokens by the native library, for all rows of a step in one call: the largest logit that a mask admits,
or a draw with temperature, top_k, top_p and min_p; and the numbers from which log-probabilities follow.

It computes the same numbers as sample/filters.py and sample/probabilities.py, except for the last bit of exponentials,
which are the library's own. So a row on a CPU is chosen here where there is a library, whatever other rows want, unless
it is drawn by a setting that the library does not know.
"""

import math
from array import array
from collections.abc import Sequence
from ctypes import Array

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tokenmill.kernels import native_library
from tokenmill.kernels.native_structs import TmSample, TmScore
from tokenmill.memory.transfer import Vector
from tokenmill.sample.filters import DRAW
from tokenmill.sample.probabilities import weight_of_largest
from tokenmill.sample.state import Row

KNOWN = ("temperature", "top_k", "top_p", "min_p")
_UNKNOWN = [stage for setting, stage in DRAW.items() if setting not in KNOWN]


def chooses(logits_RV: Tensor) -> bool:
    """Say whether the tokens of these logits are chosen by the library."""
    return logits_RV.is_cpu and native_library.is_usable()


def scores(logits_RV: Tensor) -> bool:
    """Say whether log-probabilities of these logits are computed from the numbers of the library."""
    return chooses(logits_RV) and logits_RV.dtype == torch.float32


def refuses(row: Row) -> bool:
    """Say whether the token of a row is drawn by a setting that the library does not know."""
    return row.params.temperature > 0 and any(stage.uses(row) for stage in _UNKNOWN)


def choose_tokens(logits_RV: Tensor, rows: Sequence[Row]) -> tuple[list[int], list[float], list[float]]:
    """Choose per row the id of its token; also find its largest logit and the largest that its mask admits: both must
    be finite.

    logits_RV: float32, after penalties. RequestError if a constraint could make no mask.
    """
    masks = [None if (words_W := row.words) is None else np.ascontiguousarray(words_W) for row in rows]
    found = samples(logits_RV.contiguous(), rows, masks)
    return [each.token for each in found], [each.largest for each in found], [each.admitted for each in found]


def samples(logits_RV: Tensor, rows: Sequence[Row], masks: Sequence[NDArray[np.int32] | None]) -> Array[TmSample]:
    """Have the library sample each row. logits_RV: float32, contiguous, as masks are."""
    num_rows, size = logits_RV.shape
    filled = (TmSample * num_rows)()
    for sample, row, words_W in zip(filled, rows, masks, strict=True):
        params = row.params
        if words_W is not None:
            sample.words, sample.num_words = words_W.ctypes.data, len(words_W)
        if params.temperature > 0:
            sample.temperature, sample.top_p = params.temperature, params.top_p
            sample.top_k = min(params.top_k, size)  # it has 32 bits, and the setting any number
            sample.log_min_p = math.log(params.min_p) if params.min_p > 0 else -math.inf
            sample.uniform = row.noise
    if native_library.library().tm_sample(logits_RV.data_ptr(), num_rows, size, filled):
        raise MemoryError(f"no memory to sample {num_rows} rows of {size:,} logits")
    return filled


def score(logits_RV: Tensor, ids_R: Tensor | None = None, num_top: int = 0) -> tuple[Tensor, list[int], Tensor]:
    """Compute of each row the logarithm of the sum of its exponentials, [R, 1] float64; NaN where its largest logit is
    not finite.

    Also find the rank of one token per row, if these are given, and the ids of the num_top likeliest tokens, [R, K], in
    order, the lowest id first among equals. logits_RV: float32.
    """
    logits_RV = logits_RV.contiguous()
    (num_rows, size), whole = logits_RV.shape, weight_of_largest(logits_RV)
    filled, top_RK = (TmScore * num_rows)(), np.zeros((num_rows, num_top), np.int64)
    for each, token in zip(filled, [-1] * num_rows if ids_R is None else ids_R.tolist(), strict=True):
        each.token = token
    if native_library.library().tm_score(logits_RV.data_ptr(), num_rows, size, filled, num_top, top_RK.ctypes.data):
        raise MemoryError(f"no memory to rank {size:,} logits")
    totals = [each.largest + math.log(each.total / whole) if each.total else math.nan for each in filled]
    order_RK = np.argsort(-np.take_along_axis(logits_RV.numpy(), top_RK, -1), axis=-1, kind="stable")
    top = torch.from_numpy(np.take_along_axis(top_RK, order_RK, -1))
    return torch.tensor(totals, dtype=torch.float64)[:, None], [each.rank for each in filled], top


def largest(logits_RV: Tensor) -> tuple[Vector, Vector]:
    """Find each row's largest logit, its id and value, the lowest id first among equals; NaN is the largest."""
    if not logits_RV.is_cpu:
        largest_R, ids_R = logits_RV.max(dim=-1)
        return ids_R, largest_R
    if native_library.is_usable() and logits_RV.dtype == torch.float32 and logits_RV.is_contiguous():
        num_rows, size = logits_RV.shape
        ids, values = array("q", [0]) * num_rows, array("f", [0.0]) * num_rows
        native_library.library().tm_argmax(
            logits_RV.data_ptr(), num_rows, size, ids.buffer_info()[0], values.buffer_info()[0]
        )
        return ids.tolist(), values.tolist()
    table_RV = logits_RV.float().numpy()
    places_R = table_RV.argmax(-1)
    return places_R, table_RV[np.arange(len(places_R)), places_R]
