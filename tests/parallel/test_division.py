"""Every rank finds the same division; the parts are as equal as can be."""

import pytest

from tokenmill.parallel.division import ALONE, Rank


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("total", [0, 1, 2, 15, 48, 1536])
def test_the_shares_are_all_of_it_in_order(count, total):
    shares = [list(Rank(number, count).share(total)) for number in range(count)]
    assert [each for share in shares for each in share] == list(range(total))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1


def test_one_rank_has_all():
    assert ALONE.share(9) == range(9)
