"""The facts beside the logits on which a token depends, and whether it can be known before it is sampled."""

import numpy as np
import pytest

from tokenmill.sample.state import ChoiceKind, Row, choice_kind, rows_of
from tokenmill.schedule.choosing import Choosing
from tokenmill.schedule.sequence import Sequence, Work
from tokenmill.settings.sampling_params import SamplingParams

LARGEST, LOGITS, HISTORY = ChoiceKind.LARGEST, ChoiceKind.LOGITS, ChoiceKind.HISTORY
GREEDY = {"temperature": 0.0}


@pytest.mark.parametrize(
    ("given", "num_generated", "kind"),
    [
        (GREEDY, 0, LARGEST),
        ({"temperature": 0.5}, 0, LOGITS),
        ({**GREEDY, "min_new_tokens": 3}, 2, LOGITS),
        ({**GREEDY, "min_new_tokens": 3}, 3, LARGEST),
        ({**GREEDY, "logit_bias": {3: 1.0}}, 0, LOGITS),
        ({**GREEDY, "allowed_token_ids": [3]}, 0, LOGITS),
        ({**GREEDY, "presence_penalty": 0.5}, 0, HISTORY),
        ({**GREEDY, "frequency_penalty": 0.5}, 9, HISTORY),
        ({"temperature": 1.0, "repetition_penalty": 1.5}, 0, HISTORY),
    ],
)
def test_what_a_choice_needs(given, num_generated, kind):
    params = SamplingParams(**given)
    assert choice_kind(Choosing(params), num_generated) is kind
    assert Row(Choosing(params), 5 + num_generated, [0] * (5 + num_generated), 5).kind is kind


def row(tokens, position=None, num_prompt_tokens=2, **choosing):
    params = SamplingParams(**choosing.pop("params", {}))
    return Row(Choosing(params, **choosing), len(tokens) if position is None else position, tokens, num_prompt_tokens)


def test_the_output_begins_behind_the_prompt_or_where_penalties_count_from():
    assert row([1, 2, 3, 4]).output_start == 2
    assert row([1, 2, 3, 4], penalties_from=0).output_start == 0
    assert row([1, 2, 3, 4], penalties_from=3).output_start == 3
    assert row([1, 2]).output_start == 2


@pytest.mark.parametrize(("position", "forbidden"), [(2, (7, 9)), (4, (7, 9)), (5, ()), (6, ())])
def test_an_end_is_forbidden_before_the_least_length(position, forbidden):
    """Three new tokens behind a prompt of two: the one at position 5 is the fourth."""
    made = row([1] * position, stop_ids={7: "stop", 9: "stop"}, params={"min_new_tokens": 3})
    assert made.forbidden_ids == forbidden


@pytest.mark.parametrize(
    ("output", "forbidden"),
    [
        ([], (4,)),
        ([1], (4,)),
        ([1, 2], (3, 4)),
        ([5, 1, 2], (3, 4)),
        ([1, 2, 5], (4,)),
        ([2], (4, 6)),
        ([9, 2], (4, 6)),
    ],
)
def test_the_token_that_completes_a_bad_word_is_forbidden(output, forbidden):
    """The words are 1 2 3, 4, and 2 6, of which the prompt 1 2 begins none."""
    words = ((1, 2, 3), (4,), (2, 6))
    found = row([1, 2, *output], bad_words=words).forbidden_ids
    assert set(found) == set(forbidden) | ({6} if output[-1:] == [2] else set())


def test_ends_and_bad_words_are_forbidden_together():
    made = row([1, 2], stop_ids={7: "stop"}, bad_words=((4,),), params={"min_new_tokens": 1})
    assert made.forbidden_ids == (7, 4)


@pytest.mark.parametrize(("params", "looks_back"), [({}, False), ({"presence_penalty": 1.0}, True)])
def test_a_row_for_the_token_after_each_draft(params, looks_back):
    choosing = Choosing(SamplingParams(**params))
    sequence = Sequence(1, [5, 6, 7], 2, 20, choosing)
    rows = list(rows_of(Work(sequence, 2, 3, 3, (8, 9))))
    assert [each.position for each in rows] == [3, 4, 5]
    assert all(each.choosing is choosing and each.num_prompt_tokens == 2 for each in rows)
    expected = [[5, 6, 7], [5, 6, 7, 8], [5, 6, 7, 8, 9]] if looks_back else [[5, 6, 7]] * 3
    assert [list(each.tokens) for each in rows] == expected
    [only] = rows_of(Work(sequence, 2, 1, 1))
    assert only.position == 3 and list(only.tokens) == [5, 6, 7]


@pytest.mark.parametrize("num_certain", [0, 1, 2])
def test_there_is_no_row_where_a_draft_is_certain(num_certain):
    sequence = Sequence(1, [5, 6, 7], 2, 20, Choosing(SamplingParams(presence_penalty=1.0)))
    masks = [np.full(1, count, dtype=np.int32) for count in range(num_certain, 3)]
    rows = list(rows_of(Work(sequence, 2, 3, 3 - num_certain, (8, 9), num_certain), masks))
    assert [each.position for each in rows] == [3, 4, 5][num_certain:]
    assert [list(each.tokens) for each in rows] == [[5, 6, 7, 8, 9][: 3 + count] for count in range(num_certain, 3)]
    assert [int(each.mask[0]) for each in rows] == [0, 1, 2][num_certain:]
