"""The allocator of blocks, operation by operation; law 10 has random ones."""

from array import array
from hashlib import blake2b

import pytest

from tests.integrity import check_blocks
from tokenmill.schedule.blocks import BlockAllocator, chain_digest


def states(blocks):
    return "".join(blocks.state_of(block) for block in range(blocks.num_blocks))


@pytest.fixture
def blocks():
    return BlockAllocator(4, 16)


def test_a_name_is_a_hash_over_the_tokens_and_the_name_before():
    expected = blake2b(b"salt" + array("q", [1, -2, 3]).tobytes(), digest_size=16).digest()
    assert chain_digest(b"salt", [1, -2, 3]) == expected and len(expected) == 16
    names = {chain_digest(*given) for given in ((b"", [1, 2]), (b"", [2, 1]), (b"x", [1, 2]), (b"", [1]), (b"", []))}
    assert len(names) == 5


@pytest.mark.parametrize(("tokens", "count"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (32, 2), (33, 3)])
def test_the_blocks_that_tokens_need(blocks, tokens, count):
    assert blocks.count(tokens) == count


def test_blocks_are_handed_out_once_the_one_that_is_free_longest_first(blocks):
    assert [blocks.allocate() for _ in range(5)] == [0, 1, 2, 3, None]
    assert blocks.num_free == 0 and blocks.references == [1] * 4
    for block in (2, 0):
        blocks.release(block)
    assert blocks.num_free == 2 and states(blocks) == "fufu"
    assert [blocks.allocate(), blocks.allocate(), blocks.allocate()] == [2, 0, None]


def test_a_block_is_free_when_its_last_reference_goes(blocks):
    block = blocks.allocate()
    assert states(blocks) == "ufff"
    blocks.share(block)
    blocks.share(block)
    assert blocks.references[0] == 3 and states(blocks) == "sfff"
    blocks.release(block)
    assert states(blocks) == "sfff"
    blocks.release(block)
    assert states(blocks) == "ufff" and blocks.num_free == 3
    blocks.release(block)
    assert states(blocks) == "ffff" and blocks.num_free == 4
    with pytest.raises(AssertionError, match="block 0 was released twice"):
        blocks.release(block)


def test_a_published_block_is_found_until_it_is_reused(blocks):
    for _ in range(4):
        blocks.allocate()
    blocks.publish(2, b"two")
    assert (blocks.find(b"two"), blocks.find(b"other"), blocks.num_named) == (2, None, 1)
    blocks.release(2)
    assert states(blocks) == "uuku" and blocks.find(b"two") == 2
    blocks.share(2)
    assert states(blocks) == "uuuu" and blocks.num_free == 0 and blocks.allocate() is None
    blocks.release(2)
    assert blocks.allocate() == 2
    assert blocks.find(b"two") is None and blocks.num_named == 0


def test_the_first_block_of_a_name_keeps_it_and_a_block_its_first_name(blocks):
    blocks.publish(0, b"a")
    blocks.publish(1, b"a")
    blocks.publish(0, b"b")
    assert (blocks.find(b"a"), blocks.find(b"b"), blocks.num_named) == (0, None, 1)
    blocks.unpublish(1)
    blocks.unpublish(0)
    assert blocks.find(b"a") is None
    blocks.publish(1, b"a")
    assert blocks.find(b"a") == 1
    blocks.forget_names()
    assert (blocks.find(b"a"), blocks.num_named, states(blocks)) == (None, 0, "ffff")


def test_a_table_is_cut_from_its_end(blocks):
    table = [blocks.allocate() for _ in range(4)]
    blocks.cut(table, 4)
    assert table == [0, 1, 2, 3]
    blocks.cut(table, 1)
    assert table == [0] and states(blocks) == "ufff"
    assert [blocks.allocate() for _ in range(3)] == [3, 2, 1]  # the last was released first


def test_clear_forgets_references_and_names(blocks):
    for _ in range(3):
        blocks.allocate()
    blocks.publish(1, b"one")
    blocks.release(1)
    blocks.clear()
    assert states(blocks) == "ffff" and blocks.find(b"one") is None and blocks.num_free == 4
    check_blocks(blocks, [])
    assert [blocks.allocate() for _ in range(5)] == [0, 1, 2, 3, None]


def test_integrity_is_that_of_the_tables(blocks):
    table = [blocks.allocate(), blocks.allocate()]
    check_blocks(blocks, [table])
    for tables in ([[0]], [table, table], [[0, 1, 2]], []):
        with pytest.raises(AssertionError, match="reference counts differ from the block tables"):
            check_blocks(blocks, tables)
    blocks.references = [1, 0, 0, 0]
    with pytest.raises(AssertionError, match="free set is wrong"):
        check_blocks(blocks, [[0]])
