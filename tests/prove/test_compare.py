"""Where two texts first differ, in the best unit that both have, and by how much their log-probabilities do."""

import pytest

from tokenmill.prove.answer import Text
from tokenmill.prove.compare import TextDifference, first_difference, logprob_distance


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        (Text("ab", "stop"), Text("ab", "stop"), None),
        (Text("ab", "stop"), Text("ac", "stop"), TextDifference("character", 1)),
        (Text("ab", "stop"), Text("abc", "stop"), TextDifference("character", 2)),
        (Text("ab", "stop"), Text("ab", "length"), TextDifference("end", 2)),
        (Text("ab", "stop", (1, 2)), Text("ab", "stop", (1, 3)), TextDifference("token", 1)),
        (Text("ab", "stop", (1, 2)), Text("abc", "stop", (1, 2, 3)), TextDifference("token", 2)),
        (Text("ab", "stop", (1, 2)), Text("ab", "stop", (1, 2, 3)), None),  # 3 ends the text, and is not always listed
        (Text("ab", "stop", (1, 2)), Text("ab", "stop", (1, 2, 3, 4)), TextDifference("token", 2)),
        (Text("ab", "stop", (1, 2)), Text("ab", "length", (1, 2, 3)), TextDifference("token", 2)),
        (Text("ab", "stop", (1, 2), ("a", "b")), Text("ab", "stop", None, ("a", "b")), None),
        (Text("ab", "stop", None, ("a", "b")), Text("ab", "stop", None, ("ab",)), TextDifference("token", 0)),
        (Text("ab", "stop", (1, 2)), Text("ab ", "stop", (1, 2)), TextDifference("character", 2)),
    ],
)
def test_first_difference(one, other, found):
    assert first_difference(one, other) == found


def test_log_probabilities_are_compared_up_to_the_first_token_that_differs():
    one = Text("abc", "stop", (1, 2, 3), None, (-1.0, -2.0, -3.0))
    assert logprob_distance(one, one) == 0.0
    assert logprob_distance(one, Text("abd", "stop", (1, 2, 4), None, (-1.0, -2.5, -9.0))) == 0.5
    assert logprob_distance(one, Text("abc", "stop", (1, 2, 3))) is None
    assert logprob_distance(one, Text("abc", "stop", (1, 2, 3), None, (-1.0, -2.0))) == 0.0
    assert logprob_distance(one, Text("abc", "stop", (1, 2, 3), None, (None, -2.0, -3.0))) == float("inf")
