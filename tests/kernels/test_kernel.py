"""The choice of a kernel, and steps of several sequences, which every kernel attends to one by one."""

import pytest
import torch

from tokenmill.cache.padded_step import PaddedStep
from tokenmill.cache.pool import Pool
from tokenmill.cache.spec import CacheSpec, RowsSpec
from tokenmill.cache.step import Span, Step
from tokenmill.errors import ConfigError, NoKernel
from tokenmill.kernels.attend import AttentionShape
from tokenmill.kernels.attend.gather import ContiguousRows, Gather
from tokenmill.kernels.attend.kernel import Attend, capped, choose
from tokenmill.kernels.attend.padded import Padded
from tokenmill.registry import ATTEND

CPU = torch.device("cpu")
PLAIN = AttentionShape(0.3)
HEADS, KV_HEADS, WIDTH, BLOCK = 4, 2, 6, 8


def spec(block_size=BLOCK, num_blocks=4):
    return CacheSpec((RowsSpec(KV_HEADS, WIDTH),), "float32", "dense", block_size, num_blocks)


def refusal(name, shapes=(PLAIN,), padded=False, block_size=BLOCK):
    with pytest.raises(NoKernel) as error:
        choose(name, spec(block_size), CPU, 8, frozenset(shapes), padded)
    return error.value.reasons


@pytest.mark.parametrize(("name", "kind"), [("rows", ContiguousRows), ("gather", Gather)])
def test_a_kernel_by_its_name(name, kind):
    found, kernel = choose(name, spec(), CPU, 8, frozenset([PLAIN]))
    assert found == name and type(kernel) is kind


@pytest.mark.parametrize(
    ("block_size", "shape", "padded", "expected"),
    [
        (8, PLAIN, False, "rows"),
        (9, PLAIN, False, "rows"),
        (7, PLAIN, False, "gather"),
        (8, AttentionShape(1.0, window=3), False, "rows"),
        (8, AttentionShape(1.0, softcap=3.0), False, "gather"),
        (8, AttentionShape(1.0, sinks=True), False, "gather"),
        (8, AttentionShape(1.0, softcap=3.0, sinks=True), True, "padded"),
    ],
)
def test_auto_is_the_first_that_serves(block_size, shape, padded, expected):
    assert choose("auto", spec(block_size), CPU, 8, frozenset([PLAIN, shape]), padded)[0] == expected


def test_why_a_kernel_does_not_serve():
    small = "needs one block per sequence, and block_size 7 is under max_length 8"
    scores = "has neither caps of attention scores, nor attention sinks, nor a bias by distance"
    assert refusal("rows", block_size=7) == {"rows": small}
    assert refusal("rows", [PLAIN, AttentionShape(1.0, softcap=1.0)]) == {"rows": scores}
    for name in ("rows", "gather"):
        assert refusal(name, padded=True) == {name: "serves packed steps only"}
    assert refusal("padded") == {"padded": "serves padded steps only"}
    with pytest.raises(ConfigError, match=f"'flash' is not allowed: use one of {', '.join(sorted(ATTEND))}"):
        choose("flash", spec(), CPU, 8, frozenset([PLAIN]))


def test_a_shape_is_plain_by_default():
    assert PLAIN.is_plain and (PLAIN.window, PLAIN.softcap, PLAIN.sinks) == (None, None, False)
    assert not AttentionShape(1.0, softcap=1.0).is_plain and not AttentionShape(1.0, sinks=True).is_plain
    assert not AttentionShape(1.0, distances=True).is_plain


def test_a_kernel_says_itself_how_it_attends():
    assert Attend().refuse(spec(), CPU, 8, frozenset()) is None and not Attend().padded
    with pytest.raises(NotImplementedError):
        Attend().attend(None, None, None, None, None)


def test_caps_of_scores():
    """softcap * tanh(x / softcap), of Gemma 2."""
    scores = torch.tensor([0.0, 1.0, -100.0])
    torch.testing.assert_close(capped(scores, AttentionShape(1.0, softcap=2.0)), 2 * torch.tanh(scores / 2))
    assert capped(scores, PLAIN) is scores


# ---- several sequences in one step


def rows(count, heads, seed):
    return torch.randn(count, heads, WIDTH, generator=torch.Generator().manual_seed(seed))


def formula(q, k, v, start, shape):
    """softmax(q · k * scale) · v for each query and head, over the rows that it sees."""
    out = torch.empty_like(q)
    for index in range(len(q)):
        first = 0 if shape.window is None else max(start + index + 1 - shape.window, 0)
        for head in range(q.shape[1]):
            keys, values = (x[first : start + index + 1, head * KV_HEADS // q.shape[1]] for x in (k, v))
            scores = capped(keys @ q[index, head] * shape.scale, shape)
            out[index, head] = scores.softmax(0) @ values
    return out


SHAPES = [PLAIN, AttentionShape(0.3, window=3), AttentionShape(0.3, softcap=1.5)]
# (start, count, block) of each sequence: one token, many from the start, many after a first one.
SPANS = [(4, 1, 2), (0, 5, 1), (1, 3, 3)]


def filled(spans):
    """A pool in which each sequence has rows up to its end; NaN wherever nothing was written."""
    pool = Pool(spec(), CPU)
    layer = pool.layers[0]
    for tensor in layer.tensors:
        tensor.fill_(torch.nan)
    for start, count, block in spans:
        slots = torch.arange(block * BLOCK, block * BLOCK + start + count)
        layer.write(slots[:start], rows(8, KV_HEADS, 10 + block)[:start], rows(8, KV_HEADS, 20 + block)[:start])
    return layer


def joined(spans, of):
    return torch.cat([of(start, count, block) for start, count, block in spans])


def whole(spans):
    """Queries, keys and values of the step, and what must come of them."""
    q = joined(spans, lambda start, count, block: rows(8, HEADS, block)[start : start + count])
    k = joined(spans, lambda start, count, block: rows(8, KV_HEADS, 10 + block)[start : start + count])
    v = joined(spans, lambda start, count, block: rows(8, KV_HEADS, 20 + block)[start : start + count])

    def expected(shape):
        return joined(
            spans,
            lambda start, count, block: formula(
                rows(8, HEADS, block)[start : start + count],
                rows(8, KV_HEADS, 10 + block),
                rows(8, KV_HEADS, 20 + block),
                start,
                shape,
            ),
        )

    return q, k, v, expected


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("spans", [SPANS, SPANS[:1], SPANS[1:2], SPANS[2:]], ids=["three", "one", "first", "later"])
@pytest.mark.parametrize("contiguous", [True, False], ids=["rows", "gathered"])
def test_packed_steps(spans, shape, contiguous):
    q, k, v, expected = whole(spans)
    made, first = [], 0
    for start, count, block in spans:
        base = block * BLOCK
        slots = None if contiguous else torch.arange(base, base + start + count)
        made.append(Span(first, count, start, base if contiguous else None, slots))
        first += count
    positions = [p for start, count, _ in spans for p in range(start, start + count)]
    slots = [block * BLOCK + p for start, count, block in spans for p in range(start, start + count)]
    step = Step(positions, positions, slots, made, None, first, CPU)
    torch.testing.assert_close(Gather()(q, k, v, filled(spans), step, shape), expected(shape))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_padded_steps(shape, count):
    """Each sequence has as many tokens, over more keys than there are; no key beyond the end is looked at."""
    spans = [(0, count, 1), (4, count, 2)]
    q, k, v, expected = whole(spans)
    positions = torch.tensor([p for start, count, _ in spans for p in range(start, start + count)])
    slots = torch.tensor([block * BLOCK + p for start, count, block in spans for p in range(start, start + count)])
    keys_BL = torch.tensor([list(range(block * BLOCK, block * BLOCK + 8)) for *_, block in spans])
    step = PaddedStep(positions, positions, slots, keys_BL, None, len(positions))
    torch.testing.assert_close(Padded()(q, k, v, filled(spans), step, shape), expected(shape))
