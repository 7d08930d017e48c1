"""Every rank finds the same division: all rows and heads, each once, in their order, in parts as equal as can be."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tokenmill.parallel.division import (
    ALONE,
    TILE,
    Rank,
    divide,
    divide_rows,
    part_rows,
    places,
    times,
    whole_tiles,
)


@given(some.integers(0, 300), some.integers(1, 9))
def test_every_thing_is_one_rank_s_and_none_has_two_more(count, ranks):
    shares = divide(count, ranks)
    assert [each for share in shares for each in share] == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(some.integers(1, 5000), some.integers(1, 9))
def test_rows_are_divided_by_whole_tiles_or_not_at_all(count, ranks):
    shares = divide_rows(count, ranks)
    if shares is None:
        assert -(-count // TILE) < ranks
        return
    assert len(shares) == ranks and all(shares)
    assert [row for share in shares for row in share] == list(range(count))
    assert all(share.start % TILE == 0 for share in shares)


def test_rows_of_heads_in_the_merged_matrix():
    # SmolLM2: 9 query heads over 3 kv heads, 64 wide.
    sizes = (576, 192, 192)
    first, last = [[range(384)], [range(128)], [range(128)]], [[range(384, 576)], [range(128, 192)], [range(128, 192)]]
    assert part_rows(sizes, first) == [range(384), range(576, 704), range(768, 896)]
    assert part_rows(sizes, last) == [range(384, 576), range(704, 768), range(896, 960)]


@given(some.data())
def test_rows_are_found_again_among_those_of_whole_tiles(data):
    group, kv_heads, width = (data.draw(some.integers(1, 5)) for _ in range(3))
    heads = data.draw(some.sampled_from(divide(kv_heads, data.draw(some.integers(1, kv_heads)))))
    count = (group + 2) * kv_heads * width
    kv = times(heads, width)
    sizes = [group * kv_heads * width, kv_heads * width, kv_heads * width]
    wanted = part_rows(sizes, [[times(kv, group)], [kv], [kv]])
    widened = whole_tiles(wanted, count)
    assert all(each.start % TILE == 0 and (each.stop % TILE == 0 or each.stop == count) for each in widened)
    computed = [row for each in widened for row in each]
    assert sorted(set(computed)) == computed
    found = [computed[place] for each in places(wanted, widened) for place in each]
    assert found == [row for each in wanted for row in each]


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("total", [0, 1, 2, 15, 48, 1536])
def test_the_shares_are_all_of_it_in_order(count, total):
    shares = [list(Rank(number, count).share(total)) for number in range(count)]
    assert [each for share in shares for each in share] == list(range(total))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1


def test_one_rank_has_all():
    assert ALONE.share(9) == range(9)
