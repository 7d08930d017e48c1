"""The tensors of the cache: their sizes, and rows that are put in, read, copied and checked."""

from pathlib import Path

import pytest
import torch

from tokenmill.cache.pool import ROWS, Pool
from tokenmill.cache.spec import CacheSpec, RowsSpec
from tokenmill.errors import SnapshotError

CPU = torch.device("cpu")
LAYERS, HEADS, WIDTH, BLOCK, BLOCKS = 2, 3, 4, 5, 6
FILE = Path("x.kv")


def pool(format="dense", dtype="float32"):
    made = Pool(CacheSpec((RowsSpec(HEADS, WIDTH),) * LAYERS, dtype, format, BLOCK, BLOCKS), CPU)
    generator = torch.Generator().manual_seed(1)
    for layer in made.layers:
        for tensor in layer.tensors:
            tensor.copy_(torch.randint(-100, 100, tensor.shape, generator=generator))
    return made


@pytest.mark.parametrize(
    ("format", "dtype", "per_row"),
    [
        ("dense", "float32", HEADS * WIDTH * 4),
        ("dense", "bfloat16", HEADS * WIDTH * 2),
        ("int8", "float32", HEADS * (WIDTH + 4)),  # a scale for each head
    ],
)
def test_the_size_is_known_before(format, dtype, per_row):
    spec = CacheSpec((RowsSpec(HEADS, WIDTH),) * LAYERS, dtype, format, BLOCK, BLOCKS)
    assert spec.num_slots == 30
    assert spec.bytes_per_token == 2 * LAYERS * per_row
    assert spec.num_bytes == 30 * spec.bytes_per_token == Pool(spec, CPU).num_bytes


def test_a_new_pool_is_zero():
    made = Pool(CacheSpec((RowsSpec(1, 2),), "float32", "dense", 2, 2), CPU)
    assert [tensor.shape for tensor in made.layers[0].tensors] == [(4, 1, 2)] * 2
    assert all(not tensor.any() for tensor in made.layers[0].tensors)


@pytest.mark.parametrize("is_joined", [True, False], ids=["from bytes", "by torch"])
@pytest.mark.parametrize(
    ("blocks", "count", "slots"),
    [
        ([2], 5, [10, 11, 12, 13, 14]),
        ([2], 1, [10]),
        ([5, 0], 7, [25, 26, 27, 28, 29, 0, 1]),
        ([1, 3], 10, [5, 6, 7, 8, 9, 15, 16, 17, 18, 19]),
        ([1], 0, []),
        ([], 0, []),
    ],
)
def test_where_the_rows_of_a_table_lie(blocks, count, slots, is_joined):
    made = pool()
    if not is_joined:  # as on other devices than a CPU
        made._slots = b""
    found = made.slots_of(blocks, count)
    assert found.dtype == torch.int64 and found.tolist() == slots


@pytest.mark.parametrize("format", ["dense", "int8"])
@pytest.mark.parametrize("on_cpu", [True, False])
def test_the_bytes_of_a_block_are_its_rows(format, on_cpu):
    made = pool(format)
    if not on_cpu:
        made._arrays = []
    stored = torch.cat([torch.from_numpy(part).flatten() for part in made.block_bytes(3)])
    assert stored.dtype == torch.uint8 and len(stored) == BLOCK * made.spec.bytes_per_token
    rows, expected = made.split(FILE, stored), made.read(torch.arange(15, 20))
    assert rows.keys() == expected.keys() and {"0.k", "1.v"} <= rows.keys()
    for name in rows:
        assert rows[name].dtype == expected[name].dtype and torch.equal(rows[name], expected[name])


@pytest.mark.parametrize(
    ("stored", "found"),
    [
        (torch.zeros(959, dtype=torch.uint8), r"torch.uint8 \[959\]"),
        (torch.zeros(961, dtype=torch.uint8), r"torch.uint8 \[961\]"),
        (torch.zeros(960), r"torch.float32 \[960\]"),
        (torch.zeros(960, 1, dtype=torch.uint8), r"torch.uint8 \[960, 1\]"),
    ],
)
def test_a_block_of_another_size_is_damaged(stored, found):
    """5 rows of 2 layers, K and V, 3 heads of 4 numbers of 4 bytes: 960."""
    with pytest.raises(SnapshotError, match=f"^x.kv is damaged: it holds {found}, which should be 960 bytes$"):
        pool().split(FILE, stored)


@pytest.mark.parametrize("slots", [[7], [7, 8, 9], [9, 7, 8], [3, 20], [8, 7], []])
def test_rows_that_are_written_are_read_again_and_no_others_change(slots):
    made, before = pool(), pool()
    index = torch.tensor(slots, dtype=torch.int64)
    rows = {name: torch.full_like(tensor, 0.5).double() for name, tensor in made.read(index).items()}
    made.write(index, rows)
    others = torch.tensor([slot for slot in range(30) if slot not in slots])
    for name, tensor in made.read(index).items():
        assert tensor.shape == (len(slots), HEADS, WIDTH) and (tensor == 0.5).all()
        assert torch.equal(made.read(others)[name], before.read(others)[name])


def test_each_row_goes_into_its_own_slot():
    made, before = pool(), pool()
    made.write(torch.tensor([4, 2]), before.read(torch.tensor([20, 21])))
    for name, tensor in made.read(torch.tensor([4, 2])).items():
        assert torch.equal(tensor, before.read(torch.tensor([20, 21]))[name])


def test_what_is_read_is_a_copy():
    made = pool()
    made.read(torch.tensor([1]))["0.k"].zero_()
    assert made.read(torch.tensor([1]))["0.k"].any()


def test_rows_are_converted_to_the_dtype_of_the_pool():
    rows = pool().read(torch.arange(3))
    found = pool(dtype="bfloat16").converted(rows)
    assert found.keys() == rows.keys()
    assert all(torch.equal(found[name], rows[name].bfloat16()) for name in rows)


def test_copies_of_blocks():
    made, before = pool(), pool()
    made.copy_block(ROWS, 1, 4)
    made.copy_block(ROWS, 4, 0)
    for name in made.read(torch.arange(30)):
        rows, were = made.read(torch.arange(30))[name], before.read(torch.arange(30))[name]
        assert torch.equal(rows[20:25], were[5:10]) and torch.equal(rows[0:5], were[5:10])
        assert torch.equal(rows[5:20], were[5:20]) and torch.equal(rows[25:], were[25:])


def test_rows_that_fit():
    made = pool()
    made.check_rows(FILE, made.read(torch.arange(3)), 3)
    made.check_rows(FILE, pool(dtype="bfloat16").read(torch.arange(3)), 3, convert=True)
    integers = pool("int8")
    integers.check_rows(FILE, integers.read(torch.arange(3)), 3)


@pytest.mark.parametrize(
    ("change", "how", "message"),
    [
        ({"0.k": None}, {}, r"x.kv is damaged: these of its tensors are missing or unknown: \['0.k'\]"),
        ({"9.k": torch.zeros(3)}, {}, r"missing or unknown: \['9.k'\]"),
        ({"1.v": torch.zeros(2, 3, 4)}, {}, r"x.kv is damaged: 1.v is \[2, 3, 4\], which should be \[3, 3, 4\]"),
        ({"1.v": torch.zeros(3, 3, 5)}, {}, r"1.v is \[3, 3, 5\], which should be \[3, 3, 4\]"),
        (
            {"1.v": torch.zeros(3, 3, 4).half()},
            {},
            "x.kv is damaged: 1.v holds torch.float16, which should be torch.float32",
        ),
        (
            {"1.v": torch.zeros(3, 3, 4).int()},
            {"convert": True},
            "1.v holds torch.int32, which should be torch.float32",
        ),
    ],
)
def test_rows_that_do_not_fit_are_named(change, how, message):
    made = pool()
    rows = {name: tensor for name, tensor in (made.read(torch.arange(3)) | change).items() if tensor is not None}
    with pytest.raises(SnapshotError, match=message):
        made.check_rows(FILE, rows, 3, **how)


def test_integers_stay_integers_though_floats_may_differ():
    made = pool("int8")
    rows = made.read(torch.arange(3))
    codes = next(name for name, tensor in rows.items() if not tensor.is_floating_point())
    with pytest.raises(SnapshotError, match=f"{codes} holds torch.float32, which should be torch.int8"):
        made.check_rows(FILE, rows | {codes: rows[codes].float()}, 3, convert=True)


def test_on_a_cpu_a_block_is_read_where_it_lies():
    made = pool()
    parts = made.block_bytes(2)
    assert len(parts) == 2 * LAYERS and all(part.shape == (BLOCK, HEADS * WIDTH * 4) for part in parts)
    parts[0][:] = 0
    assert not made.read(torch.arange(10, 15))["0.k"].any() and made.read(torch.arange(15, 20))["0.k"].any()


def test_on_a_cpu_all_layers_lie_in_one_stretch():
    """30 slots of 3 heads of 4 numbers of 4 bytes, from one beginning of a cache line to the next."""
    addresses = [tensor.data_ptr() for layer in pool().layers for tensor in layer.tensors]
    size = -(-30 * HEADS * WIDTH * 4 // 64) * 64
    assert [address - addresses[0] for address in addresses] == [number * size for number in range(2 * LAYERS)]
