"""A step as tensors, and which rows each query of a span may attend to."""

import pytest
import torch

from tokenmill.cache.step import Span, Step
from tokenmill.schedule.sequence import unread_mark

CPU = torch.device("cpu")


def step(tokens=(7, 8, 9), rows=None, **more):
    return Step(tokens, [4, 5, 6], [40, 41, 42], [], rows, 3, CPU, **more)


def test_its_fields_as_tensors():
    made = step(rows=[2, 0])
    for name, values in {
        "token_ids_T": [7, 8, 9],
        "positions_T": [4, 5, 6],
        "slots_T": [40, 41, 42],
        "rows_R": [2, 0],
    }.items():
        tensor = getattr(made, name)
        assert tensor.dtype == torch.int64 and tensor.tolist() == values
        assert getattr(made, name) is tensor
    assert step().rows_R is None
    assert (made.fed_R, made.has_unknown, tuple(made.stop_ids)) == (None, False, ())


def test_a_token_that_was_not_read_yet_is_the_one_that_its_row_chose():
    tokens = [unread_mark(1), 5, unread_mark(0), unread_mark(2)]
    made = step(tokens, fed_R=torch.tensor([10, 11, 12]))
    assert made.token_ids_T.tolist() == [11, 5, 10, 12]
    assert made.fed(torch.tensor([[0, unread_mark(0)]])).tolist() == [[0, 10]]
    plain = torch.tensor([1, 2])
    assert step().fed(plain) is plain


def test_the_length_of_a_span():
    span = Span(2, 3, 4, 0, None)
    assert span.length == 7 and (span.num_logits, span.blocks) == (0, ())


@pytest.mark.parametrize(
    ("start", "count", "window", "seen"),
    [
        (0, 3, None, ["x..", "xx.", "xxx"]),
        (2, 2, None, ["xxx.", "xxxx"]),
        (2, 2, 2, ["xx.", ".xx"]),  # from position 1 on, the first that is seen
        (0, 3, 1, ["x..", ".x.", "..x"]),
        (3, 1, 9, ["xxxx"]),
    ],
)
def test_what_a_query_sees(start, count, window, seen):
    """A window of n is a token and the n - 1 before it."""
    made, span = step(), Span(0, count, start, 0, None)
    mask = made.mask(span, window, False, torch.float32)
    assert ["".join("x" if value == 0 else "." for value in row) for row in mask.tolist()] == seen
    assert set(mask.unique().tolist()) <= {0.0, -torch.inf}


def test_a_mask_is_made_once_for_each_span_window_and_dtype():
    made, span = step(), Span(0, 3, 0, 0, None)
    first = made.mask(span, None, False, torch.float32)
    assert made.mask(span, None, False, torch.float32) is first
    for other in (
        made.mask(span._replace(first=3, start=1), None, False, torch.float32),
        made.mask(span, 2, False, torch.float32),
        made.mask(span, None, False, torch.bfloat16),
    ):
        assert other is not first
    assert made.mask(span, None, False, torch.bfloat16).dtype == torch.bfloat16
    assert step().mask(span, None, False, torch.float32) is not first
