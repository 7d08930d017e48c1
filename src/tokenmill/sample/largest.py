"""The largest logit of each row, for greedy sampling. On a CPU the native library finds it in one call, where there is
one. torch's argmax takes ten times the time of numpy's, and numpy needs three calls.
"""

from array import array
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tokenmill.constrain.vocabulary import BITS
from tokenmill.kernels import native_library
from tokenmill.memory.transfer import Vector


def largest(logits_RV: Tensor) -> tuple[Vector, Vector]:
    """Per row the id and value of its largest logit, the lowest id first among equals; NaN counts as the largest."""
    if not logits_RV.is_cpu:
        largest_R, ids_R = logits_RV.max(dim=-1)
        return ids_R, largest_R
    if _is_for_library(logits_RV):
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
            ids[row], allowed[row] = _largest_of(logits_RV[row], words_W)
    return ids, allowed, values


def _largest_of(logits_V: Tensor, words_W: NDArray[np.int32]) -> tuple[int, float]:
    """The id of the largest logit that a mask admits, and its value: -inf where it admits none."""
    size = len(logits_V)
    if _is_for_library(logits_V) and len(words_W) * BITS >= size and words_W.flags.c_contiguous:
        found = native_library.library().tm_argmax_admitted(logits_V.data_ptr(), size, words_W.ctypes.data)
        return (0, -np.inf) if found < 0 else (found, float(logits_V[found]))
    bits_V = np.zeros(size, dtype=np.bool_)
    given = np.unpackbits(words_W.view(np.uint8), count=size, bitorder="little").view(np.bool_)
    bits_V[: len(given)] = given
    masked_V = np.where(bits_V, logits_V.float().numpy(), -np.inf)
    found = int(masked_V.argmax())
    return found, float(masked_V[found])


def _is_for_library(logits: Tensor) -> bool:
    return native_library.is_usable() and logits.dtype == torch.float32 and logits.is_contiguous()


def _admits(words_W: NDArray[np.int32], token: int) -> bool:
    word = token // BITS
    return word < len(words_W) and bool(int(words_W[word]) >> token % BITS & 1)
