"""Attention kernels on random rows: against the formula written out, and the same bits for every placement."""

import itertools

import pytest
import torch

from tokenmill.cache.padded_step import PaddedStep
from tokenmill.cache.pool import Pool
from tokenmill.cache.spec import CacheSpec, RowsSpec
from tokenmill.cache.step import Span, Step
from tokenmill.errors import NoKernel
from tokenmill.kernels.attend import AttentionShape
from tokenmill.kernels.attend.gather import attend_written_out
from tokenmill.kernels.attend.kernel import choose
from tokenmill.registry import ATTEND

LENGTH, HEADS, KV_HEADS, HEAD_DIM = 29, 6, 2, 10
SHAPES = [
    AttentionShape(0.3),
    AttentionShape(0.3, window=5),
    AttentionShape(0.3, softcap=2.0),
    AttentionShape(0.3, sinks=True),
]
NAMES = ["plain", "window", "softcap", "sinks"]
SINKS = torch.linspace(-2.0, 3.0, HEADS)
DTYPES = [torch.float32, torch.bfloat16]


CPU = torch.device("cpu")


def rows(num_heads: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(LENGTH, num_heads, HEAD_DIM, generator=generator).to(dtype)


def attend(kernel, block_size: int, splits: list[int], shape: AttentionShape, dtype: torch.dtype) -> torch.Tensor:
    """All queries of one sequence, fed in pieces, its blocks in reverse order in the pool."""
    num_blocks = -(-LENGTH // block_size)
    name = str(dtype).removeprefix("torch.")
    spec = CacheSpec((RowsSpec(KV_HEADS, HEAD_DIM),), name, "dense", block_size, num_blocks + 1)
    layer = Pool(spec, torch.device("cpu")).layers[0]
    table = list(range(num_blocks, 0, -1))
    slots = [table[p // block_size] * block_size + p % block_size for p in range(LENGTH)]
    q, k, v = rows(HEADS, dtype, 1), rows(KV_HEADS, dtype, 2), rows(KV_HEADS, dtype, 3)
    out = []
    for start, end in itertools.pairwise([0, *splits, LENGTH]):
        base = table[0] * block_size if num_blocks == 1 else None
        span = Span(0, end - start, start, base, torch.tensor(slots[:end]) if base is None else None)
        positions = range(start, end)
        step = Step(positions, positions, slots[start:end], [span], None, end - start, CPU)
        if kernel.padded:
            keys_BL = torch.tensor([slots[:end] + slots[:3]])  # those beyond the end are any
            step = PaddedStep(step.token_ids_T, step.positions_T, step.slots_T, keys_BL, None, end - start)
        sinks = SINKS if shape.sinks else None
        out.append(kernel(q[start:end], k[start:end], v[start:end], layer, step, shape, sinks))
    return torch.cat(out)


def expected(shape: AttentionShape) -> torch.Tensor:
    """The formula over all rows at once, in float32."""
    positions = torch.arange(LENGTH)
    span = Span(0, LENGTH, 0, 0, None)
    step = Step(range(LENGTH), range(LENGTH), range(LENGTH), [span], None, LENGTH, CPU)
    numbers = [rows(HEADS, torch.float32, 1), rows(KV_HEADS, torch.float32, 2), rows(KV_HEADS, torch.float32, 3)]
    scores = torch.einsum("tkgh,lkh->kgtl", numbers[0].view(LENGTH, KV_HEADS, -1, HEAD_DIM), numbers[1]) * shape.scale
    if shape.softcap is not None:
        scores = shape.softcap * torch.tanh(scores / shape.softcap)
    far = positions[:, None] - positions[None, :]
    hidden = (far < 0) | (far >= (shape.window or LENGTH))
    scores = scores.masked_fill(hidden, -torch.inf)
    weights = scores.softmax(-1)
    if shape.sinks:
        exponentials, sinks = scores.exp(), SINKS.exp().view(KV_HEADS, -1, 1, 1)
        weights = exponentials / (exponentials.sum(-1, keepdim=True) + sinks)
    out = torch.einsum("kgtl,lkh->tkgh", weights, numbers[2]).reshape(LENGTH, HEADS, HEAD_DIM)
    torch.testing.assert_close(attend_written_out(*numbers, step, span, shape, SINKS if shape.sinks else None), out)
    return out


@pytest.mark.parametrize("splits", [[], [28], [1, 2, 3], [7, 20]], ids=str)
@pytest.mark.parametrize("block_size", [LENGTH, 1, 4])
@pytest.mark.parametrize("shape", SHAPES, ids=NAMES)
@pytest.mark.parametrize("name", ATTEND)
def test_every_kernel_is_the_formula(name, shape, block_size, splits):
    spec = CacheSpec((RowsSpec(KV_HEADS, HEAD_DIM),), "float32", "dense", block_size, 40)
    try:
        _, kernel = choose(name, spec, CPU, LENGTH, frozenset([shape]), padded=name == "padded")
    except NoKernel:
        assert name == "rows" and (block_size < LENGTH or not shape.is_plain)
        return
    torch.testing.assert_close(attend(kernel, block_size, splits, shape, torch.float32), expected(shape))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES[:2], ids=["plain", "window"])
@pytest.mark.parametrize("splits", [[], [28], [1, 2, 3], [7, 20]], ids=str)
def test_the_block_size_changes_no_bit(splits, shape, dtype):
    def run(name: str, block_size: int) -> torch.Tensor:
        spec = CacheSpec((RowsSpec(KV_HEADS, HEAD_DIM),), "float32", "dense", block_size, 40)
        return attend(choose(name, spec, CPU, LENGTH, frozenset([shape]))[1], block_size, splits, shape, dtype)

    reference = run("rows", LENGTH)
    for block_size in (1, 3, 16, LENGTH):
        assert torch.equal(run("gather", block_size), reference)


def test_a_refusal_names_every_candidate_and_its_reason():
    spec = CacheSpec((RowsSpec(KV_HEADS, HEAD_DIM),), "float32", "dense", 4, 40)
    with pytest.raises(NoKernel, match="rows: needs one block per sequence, and block_size 4 is under max_length 29"):
        choose("rows", spec, CPU, LENGTH, frozenset(SHAPES))
    assert choose("auto", spec, CPU, LENGTH, frozenset(SHAPES))[0] == "gather"


def test_a_kernel_is_chosen_for_the_steps_that_it_serves():
    spec = CacheSpec((RowsSpec(KV_HEADS, HEAD_DIM),), "float32", "dense", 4, 40)
    assert choose("auto", spec, CPU, LENGTH, frozenset(SHAPES), padded=True)[0] == "padded"
    with pytest.raises(NoKernel, match="padded: serves padded steps only"):
        choose("padded", spec, CPU, LENGTH, frozenset(SHAPES[:1]))
