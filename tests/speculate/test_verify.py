"""What is accepted of the drafts of a step."""

import pytest

from tokenmill.schedule.sequence import Plan, Sequence, Work
from tokenmill.speculate.speculation import verify


@pytest.mark.parametrize(
    ("drafts", "num_certain", "sampled", "accepted"),
    [
        ((), 0, [], []),  # in the midst of a prompt
        ((), 0, [5], [5]),
        ((5, 6), 0, [5, 6, 7], [5, 6, 7]),
        ((5, 6), 0, [5, 9, 7], [5, 9]),
        ((5, 6), 0, [9, 6, 7], [9]),
        ((5, 6), 1, [6, 7], [5, 6, 7]),
        ((5, 6), 1, [9, 7], [5, 9]),
        ((5, 6), 2, [7], [5, 6, 7]),
    ],
)
def test_drafts_are_accepted_up_to_the_first_that_differs(drafts, num_certain, sampled, accepted):
    sequence = Sequence(1, [1, 2, 3], 2, 20)
    work = Work(sequence, 2, 1 + len(drafts), len(sampled), drafts, num_certain)
    assert verify(Plan([work]), [sampled]) == [accepted]
