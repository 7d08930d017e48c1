"""The largest logit of each row, for greedy sampling. On a CPU the native library finds it in one call, where there is
one. torch's argmax takes ten times the time of numpy's, and numpy needs three calls.
"""

from array import array
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tokenmill.kernels import native_library
from tokenmill.memory.transfer import Vector


def largest(logits_RV: Tensor) -> tuple[Vector, Vector]:
    """Per row the id and value of its largest logit, the lowest id first among equals; NaN counts as the largest."""
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


def largest_allowed(logits_RV: Tensor, masks: Sequence[NDArray[np.int32] | None]) -> tuple[Vector, Vector, Vector]:
    """Per row the id of the largest logit that a mask of bits admits, its value and that of the largest of all.

    On a CPU. Mostly the largest of all is admitted, and then the rest of the mask does not matter.
    """
    ids, values = (list(each) for each in largest(logits_RV))
    allowed = list(values)
    for row, words_W in enumerate(masks):
        if words_W is not None and not _admits(words_W, int(ids[row])):
            logits_V = logits_RV[row].float().numpy()
            bits_V = np.zeros(len(logits_V), dtype=np.bool_)
            given = np.unpackbits(words_W.view(np.uint8), count=len(logits_V), bitorder="little").view(np.bool_)
            bits_V[: len(given)] = given
            masked_V = np.where(bits_V, logits_V, -np.inf)
            ids[row] = int(masked_V.argmax())
            allowed[row] = float(masked_V[ids[row]])
    return ids, allowed, values


def _admits(words_W: NDArray[np.int32], token: int) -> bool:
    word = token // 32
    return word < len(words_W) and bool(int(words_W[word]) >> token % 32 & 1)
