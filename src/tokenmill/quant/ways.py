"""Ways to multiply on a CPU, and the choice of one by which a row has the same bits alone and among others.

oneDNN takes another kernel for another number of rows, width, number of threads and instruction set, and another kernel
may add in another order: a single row wider than 1,024 is summed in stretches; a processor with AMX sums more than 32
rows of bfloat16 otherwise; on AVX-512 without bfloat16 a single row of any width differs, and of a narrow matrix each
thread adds up a part of the inputs. The name of a processor does not tell which of these holds, so each shape is
multiplied once when it is first met, with rows whose products cancel out: only the rounding is left, and shows every
other order. All ways of oneDNN have the bits of its product of several rows in one thread, so that matrices
may be divided among processes, and the number of threads may change.
"""

import logging
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tokenmill.kernels.threads import torch_threads

log = logging.getLogger(__name__)

Way = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""x [T, D], a plain matrix [F, D] or one in oneDNN's layout, a bias [F] or None → [T, F]."""

ROWS = (2, 3, 8, 33, 70, 300)  # that are compared: each kernel has its own bounds, all found so far lie between these
PORTION = 32  # rows of bfloat16 that a matrix unit sums in the same order as fewer
MAX_NUMBERS = 2**22  # that are tried of a larger matrix,
MIN_OUTPUTS = 64  # and at least so many outputs for each thread: fewer may be multiplied as a narrow matrix is
MIN_SUMS = 512  # that are compared of a narrow matrix, since a few sums may be the same in another order


def once(x_TD: Tensor, weight: Tensor, bias_F: Tensor | None) -> Tensor:
    """Multiply by oneDNN, in one product."""
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x_TD, weight, bias_F, "none", [], "")
    return out


def twins(x_TD: Tensor, weight: Tensor, bias_F: Tensor | None) -> Tensor:
    """Multiply by oneDNN, a single row together with a copy of itself."""
    if x_TD.shape[0] != 1:
        return once(x_TD, weight, bias_F)
    return once(x_TD.expand(2, -1).contiguous(), weight, bias_F)[:1]


def portions(x_TD: Tensor, weight: Tensor, bias_F: Tensor | None) -> Tensor:
    """Multiply by oneDNN, up to 32 rows at a time."""
    if x_TD.shape[0] <= PORTION:
        return twins(x_TD, weight, bias_F)
    return torch.cat([twins(part_TD, weight, bias_F) for part_TD in torch.split(x_TD, PORTION)])


def twins_in_one_thread(x_TD: Tensor, weight: Tensor, bias_F: Tensor | None) -> Tensor:
    """Multiply as twins, in this thread alone."""
    with torch_threads(1):
        return twins(x_TD, weight, bias_F)


def portions_in_one_thread(x_TD: Tensor, weight: Tensor, bias_F: Tensor | None) -> Tensor:
    """Multiply as portions, in this thread alone."""
    with torch_threads(1):
        return portions(x_TD, weight, bias_F)


BY_ONEDNN: tuple[Way, ...] = (once, twins, portions, twins_in_one_thread, portions_in_one_thread)  # the fastest first


def multiply(x_TD: Tensor, weight_FD: Tensor, bias_F: Tensor | None) -> Tensor:
    """Compute x · weightᵀ + bias with a plain matrix on a CPU, in the way chosen for its shape."""
    return choose(*weight_FD.shape, x_TD.dtype, torch.get_num_threads())(x_TD, weight_FD, bias_F)


@cache
def choose(outputs: int, inputs: int, dtype: torch.dtype, threads: int, packed: bool = False) -> Way:
    """Choose the first way that keeps a row's bits for so many threads and for one; warn if no way does.

    packed: the matrix is in oneDNN's layout. Else torch's own product is the way where oneDNN does not multiply these
    numbers on this processor, and the last one to try where it does.
    """
    tried = min(outputs, max(MAX_NUMBERS // inputs, MIN_OUTPUTS * threads))
    x_RD, weight_FD = cancelling(tried, inputs, dtype)
    ways = BY_ONEDNN if packed else (*BY_ONEDNN, F.linear)
    if tried < outputs:
        ways = ways[1:]  # how a single row is summed depends on the outputs, too
    weight = reordered(weight_FD) if packed else weight_FD
    try:
        once(x_RD, weight, None)
    except RuntimeError:
        if packed:
            raise
        return F.linear
    for way in ways:
        if keeps_bits(way, x_RD, weight, threads):
            return way
    message = "the bits of a row times a matrix of %d x %d in %s depend on other rows or on threads on this processor"
    log.warning(message, outputs, inputs, dtype)
    return twins


def reordered(weight_FD: Tensor) -> Tensor:
    """Bring a matrix into oneDNN's layout."""
    weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight_FD, None)
    return weight


def cancelling(outputs: int, inputs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Make rows (u, -u), and a matrix of rows (v, v), with their columns in one order drawn at random: each product is
    0 except for the rounding of its sum.

    In bfloat16 the results of ordinary numbers hide 99.97 % of the differences; and without the random order a kernel
    that sums 1,024 inputs at a time would have 0 of 2,048 just as another one that sums them one by one.
    """
    random, half = np.random.default_rng(inputs), inputs // 2  # torch's generator wants modules that a start leaves out
    counts = (max(2, min(-(-MIN_SUMS // outputs), max(ROWS))), min(outputs, 61))
    u_RD, v_FD = (torch.from_numpy(random.standard_normal((rows, half), np.float32)).to(dtype) for rows in counts)
    order_D = torch.from_numpy(random.permutation(inputs))
    rest = inputs - 2 * half  # a column that counts for nothing
    x_RD = F.pad(torch.cat((u_RD, -u_RD), dim=1), (0, rest))[:, order_D].contiguous()
    weight_FD = F.pad(torch.cat((v_FD, v_FD), dim=1), (0, rest))[:, order_D]
    return x_RD, weight_FD.repeat(-(-outputs // len(v_FD)), 1)[:outputs].contiguous()


def keeps_bits(way: Way, x_RD: Tensor, weight: Tensor, threads: int) -> bool:
    """Tell whether rows, each alone and all repeated many times, have the bits of their product in one thread."""
    with torch_threads(1):
        right_RF = way(x_RD, weight, None)
    for count in sorted({1, threads}):
        with torch_threads(count):
            if not all(torch.equal(way(x_RD[r : r + 1], weight, None)[0], right_RF[r]) for r in range(len(x_RD))):
                return False
            for rows in ROWS:
                times = -(-rows // len(x_RD))
                out_TF = way(x_RD.repeat(times, 1)[:rows], weight, None)
                if not torch.equal(out_TF, right_RF.repeat(times, 1)[:rows]):
                    return False
    return True


def finish_products(module: nn.Module, parts: Sequence[int], multipliers: Sequence[float], clip: float | None) -> None:
    """Have a module, whatever its class, multiply the products of each part of a merged matrix by its multiplier, and
    bring products into [-clip, clip].
    """

    def scaled(_module: nn.Module, _inputs: object, out_TF: Tensor) -> Tensor:
        of_parts = zip(torch.split(out_TF, list(parts), dim=-1), multipliers, strict=True)
        return torch.cat([part_TF * multiplier for part_TF, multiplier in of_parts], dim=-1)

    if any(each != 1.0 for each in multipliers):
        module.register_forward_hook(scaled)
    if clip is not None:
        module.register_forward_hook(lambda _, __, out_TF: out_TF.clamp(-clip, clip))
