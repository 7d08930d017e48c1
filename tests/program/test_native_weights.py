"""Weights of the native program: layouts by hand against the library's sizes, and descriptions that are damaged."""

from dataclasses import replace

import pytest
import torch

from tests import gguf_files
from tests.marks import needs_native
from tests.tiny_models import prompt, save
from tokenmill.engine.load import load
from tokenmill.errors import CheckpointError, ConfigError, PackedModelError
from tokenmill.kernels import native_library
from tokenmill.loader.pack import save_packed_model
from tokenmill.parallel.division import Rank
from tokenmill.program.native import weights
from tokenmill.program.native.layouts import INTEGER, LAYOUTS, SUPERBLOCKS, WIDE
from tokenmill.program.native.pack import layout_of, pack
from tokenmill.program.native.units import Linear, Part, Place, Run, pieces_of
from tokenmill.program.native.weights import LAYOUT, Packed, Packing, SmallTensor, _are_ints
from tokenmill.quant.rtn import round_to_nearest
from tokenmill.quant.stored import Stored
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.gguf import tensors

pytestmark = needs_native

LONG = prompt(40, seed=5)


def rounded(num_inputs, bits, **how):
    numbers = torch.randn(40, num_inputs, generator=torch.Generator().manual_seed(num_inputs))
    return round_to_nearest(numbers, bits, **how)


def halved(stored):
    """The same codes, two in a byte, as files have them."""
    groups = stored.codes.view(stored.num_rows, -1, 2, 16)
    return replace(stored, codes=None, halves=(groups[:, :, 0] | groups[:, :, 1] << 4).flatten(1))


def five_or_six(bits, num_inputs, half=False):
    """Codes of 5 bits with minimums, or of 6 bits with factors, as GGUF has them."""
    generator = torch.Generator().manual_seed(bits)
    codes = torch.randint(0, 1 << bits, (40, num_inputs), dtype=torch.uint8, generator=generator)
    scales, minimums = torch.randn(2, 40, num_inputs // 32, generator=generator)
    scales, minimums = (scales.half().float(), minimums.half().float()) if half else (scales, minimums)
    if bits == 5:
        return Stored(5, codes=codes, scales=scales, minimums=minimums)
    factors = torch.randint(-128, 128, (40, num_inputs // 16), dtype=torch.int8, generator=generator)
    return Stored(6, codes=codes, scales=scales.half().float(), factors=factors)


def in_blocks(bits, num_inputs, block):
    """Codes whose scales (and minimums or factors) are integers times numbers of `block` inputs, as GGUF's K-quants."""
    generator = torch.Generator().manual_seed(bits)
    codes = torch.randint(0, 1 << bits, (40, num_inputs), dtype=torch.uint8, generator=generator)
    steps = torch.randn(40, num_inputs // block, 2, generator=generator).half().repeat_interleave(block // 32, 1)
    if bits == 6:
        factors = torch.randint(-128, 128, (40, num_inputs // 16), dtype=torch.int8, generator=generator)
        return Stored(6, codes=codes, scales=steps[..., 0].float(), factors=factors)
    integers = torch.randint(0, 64, steps.shape, generator=generator)
    scales, minimums = (steps.float() * integers).unbind(-1)
    return Stored(bits, codes=codes, scales=scales, minimums=-minimums, steps=steps.flatten(1))


def test_the_layout_that_holds_rows_exactly():
    names = {number: name for name, number in LAYOUTS.items()}
    four, wide = rounded(64, 4), rounded(64, 4, grid="zero_point")
    symmetric = rounded(64, 4, grid="symmetric")
    odd_scale = Stored(4, None, four.codes, four.scales + 1e-6, None)
    alike = Stored(4, None, four.codes, torch.ones(40, 2), four.minimums)
    both = Stored(4, None, four.codes, torch.ones(40, 2), torch.ones(40, 2))
    last = Stored(4, None, rounded(96, 4).codes, torch.tensor([[1.0, 1.0, 2.0]] * 40), torch.ones(40, 3))
    cases = [
        (Stored.plain(torch.ones(2, 3)), "float32"),
        (Stored.plain(torch.ones(2, 3).bfloat16()), "bfloat16"),
        (Stored.plain(torch.ones(2, 3).half()), "float16"),
        (rounded(64, 8), "8 bits"),
        (symmetric, "4 bits"),
        (four, "4 bits with minimums"),
        (wide, "4 bits with wide scales"),
        (odd_scale, "4 bits with wide scales"),
        (alike, "4 bits with minimums"),
        (both, "4 bits in pairs"),
        (rounded(128, 4, group=64), "4 bits in pairs"),
        (last, "4 bits in pairs"),
        (Stored(8, codes=rounded(64, 8).codes, scales=torch.full((40, 2), 1 / 3)), "8 bits with wide scales"),
        (Stored(8, codes=rounded(64, 8).codes, scales=torch.full((40, 2), 2.0**-30)), "8 bits with wide scales"),
        (five_or_six(5, 64), "5 bits with wide scales"),
        (five_or_six(5, 64, half=True), "5 bits with minimums"),
        (five_or_six(6, 64), "6 bits in halves"),
        (in_blocks(4, 512, 64), "4 bits with integer scales"),
        (in_blocks(5, 192, 64), "5 bits with integer scales"),
        (in_blocks(4, 512, 256), "4 bits in superblocks"),
        (in_blocks(5, 256, 256), "5 bits in superblocks"),
        (in_blocks(6, 256, 256), "6 bits in superblocks"),
        (in_blocks(6, 256, 128), "6 bits in halves"),
        (in_blocks(4, 128, 128), "4 bits with integer scales"),  # half a superblock
        (in_blocks(6, 128, 128), "6 bits in halves"),
    ]
    assert [names[layout_of(stored)] for stored, _ in cases] == [name for _, name in cases]


def bits_of(layout):
    return next(int(name[0]) for name, number in LAYOUTS.items() if number == layout)


def blocks_of(tile, layout, num_inputs):
    """The blocks of 64 inputs, each behind its head where it has one."""
    if layout not in SUPERBLOCKS:
        return tile.view(-(-num_inputs // 64), -1)
    whole = tile.view(num_inputs // 256, -1)
    heads = whole[:, :64].repeat_interleave(4, 0)
    return torch.cat([heads, whole[:, 64:].reshape(len(heads), -1)], 1)


def scales_of(block, layout):
    """The scales and minimums of a block, [2 groups, 16 rows] each, and the byte behind them."""
    wide, pairs = layout in WIDE, layout == LAYOUTS["4 bits in pairs"]
    count, number = 1 if pairs else 2, torch.float32 if wide else torch.half
    size, bits = count * 16 * number.itemsize, bits_of(layout)
    scales = block[:size].view(number).view(count, 16).float().expand(2, 16)
    if layout in INTEGER:
        integers = block[64:128].view(torch.int8).view(2, 2, 16).float()
        return *(scales[:, None] * integers.transpose(0, 1)), 128
    if layout == LAYOUTS["4 bits with minimums"] or pairs or bits == 5 or (wide and bits == 4):
        return scales, block[size : 2 * size].view(number).view(count, 16).float().expand(2, 16), 2 * size
    return scales, None, size


def read_back(tile, layout, num_inputs):
    """The values [16, K] of one tile, as pack.py's first lines describe it."""
    if layout == LAYOUTS["float32"]:
        return tile.view(torch.float32).view(-1, 16).t()
    if layout == LAYOUTS["float16"]:
        return tile.view(torch.float16).view(-1, 16).t().float()
    if layout == LAYOUTS["bfloat16"]:
        return tile.view(torch.bfloat16).view(-1, 16, 2).permute(1, 0, 2).reshape(16, -1).float()
    bits, found = bits_of(layout), []
    for block in blocks_of(tile, layout, num_inputs):
        scales, minimums, at = scales_of(block, layout)
        if bits == 6:
            factors, at = block[at : at + 64].view(torch.int8).view(2, 2, 16).permute(2, 0, 1).float(), at + 64
        if bits == 8:
            codes = block[at:].view(2, 8, 16, 4).permute(2, 0, 1, 3).reshape(16, 2, 32).float() - 128
        else:
            lines = block[at:].view(2, bits, 16, 4).permute(2, 0, 1, 3)
            bytes_ = lines[:, :, bits - 4 :].reshape(16, 2, 16)
            codes = torch.cat([bytes_ & 15, bytes_ >> 4], -1)
            for line in range(bits - 4):  # the high bits of 4 or of 2 quads of both halves
                count_of = 4 // (bits - 4)
                for quad in range(count_of):
                    for half in range(2):
                        high = lines[:, :, line] >> quad * (bits - 4) + 4 * half & (1 << bits - 4) - 1
                        first = 16 * half + 4 * (line * count_of + quad)
                        codes[:, :, first : first + 4] |= high << 4
            codes = codes.float() if minimums is not None else codes.float() - (1 << bits - 1)
        if bits == 6:
            codes = codes * factors.repeat_interleave(16, 2)
        values = codes * scales.t()[..., None]
        found.append((values if minimums is None else values + minimums.t()[..., None]).flatten(1))
    return torch.cat(found, 1)


@pytest.mark.parametrize("num_inputs", [64, 96, 128, 512])
@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize(
    ("bits", "how"),
    [
        *((8, {}), (4, {}), (4, {"grid": "symmetric"}), (4, {"grid": "zero_point"}), (4, {"group": 64})),
        *((5, {}), (5, {"half": True}), (6, {}), (32, "float32"), (16, "bfloat16"), (16, "float16")),
        *((bits, {"block": block}) for bits in (4, 5, 6) for block in (64, 256)),
    ],
)
def test_a_tile_has_its_rows_as_they_are_described(bits, how, halves, num_inputs):
    """Two tiles: rows 3 to 18 as they lie, and rows in any order with one that is missing."""
    if bits > 8:
        numbers = torch.randn(40, num_inputs).to(getattr(torch, how))
        stored, values = Stored.plain(numbers), numbers.float()
    else:
        if num_inputs % how.get("block", 32):
            pytest.skip("no whole number of blocks")
        make = in_blocks if "block" in how else five_or_six if bits in (5, 6) else None
        stored = rounded(num_inputs, bits, **how) if make is None else make(bits, num_inputs, **how)
        values = stored.values()
    if halves:
        if bits != 4:
            pytest.skip("only codes of 4 bits lie two in a byte")
        stored = halved(stored)
    layout = layout_of(stored)
    size = native_library.library().tm_tile_bytes(layout, num_inputs)
    for rows in (list(range(3, 19)), [*range(20, 35), -1]):
        out = torch.full((1, size), 77, dtype=torch.uint8)
        pack(stored, torch.tensor(rows), layout, num_inputs, out)
        found = read_back(out[0], layout, num_inputs)[:, :num_inputs]
        real = [row for row in rows if row >= 0]
        torch.testing.assert_close(found[: len(real)], values[real, :num_inputs], rtol=1e-6, atol=1e-6)
        if bits > 8:
            assert not found[len(real) :].any()


def linear(**how):
    given = {"op": None, "matrices": [(0, "x")], "parts": [48], "count": 16, "firsts": [], "gates": [], "whole": False}
    return Linear(**{**given, **how})


def test_a_unit_that_is_not_full_ends_with_its_part():
    """Units of 20 rows in two tiles each; the last one of a part of 50 rows has 10."""
    part = Stored.plain(torch.zeros(50, 4))
    (piece,) = pieces_of(linear(count=20), [Part(0, part)], [0, 20, 40])
    rows = piece.rows.view(3, 32)
    assert rows[0].tolist() == [*range(20), *[-1] * 12] and rows[1, :20].tolist() == list(range(20, 40))
    assert rows[2].tolist() == [*range(40, 50), *[-1] * 22]
    assert piece.firsts == [0, 20, 40] and piece.layout == LAYOUTS["float32"]


def test_units_of_several_parts():
    parts = [
        Part(0, Stored.plain(torch.zeros(32, 4))),
        Part(32, Stored.plain(torch.zeros(16, 4).bfloat16())),
        Part(48, Stored.plain(torch.zeros(8, 4))),
    ]
    pieces = list(pieces_of(linear(count=16), parts[:2], [0, 16, 32]))
    assert [(piece.layout, piece.firsts) for piece in pieces] == [(0, [0, 16]), (1, [32])]
    assert pieces[1].rows.tolist() == list(range(16))
    (only,) = pieces_of(linear(count=8), parts, [48])
    assert only.rows.tolist() == [*range(8), *[-1] * 8]
    whole = list(pieces_of(linear(count=16, whole=True), [Part(0, parts[2].stored)], [0]))
    assert whole[0].rows.tolist() == list(range(16))
    with pytest.raises(AssertionError, match="within one part"):
        list(pieces_of(linear(), parts, [0, 56]))


def test_a_rank_has_the_rows_of_its_units():
    """q of 32 rows and k of 16 in units of 16, and an MLP whose gates are the first 40 of 80 rows."""
    qkv = linear(parts=[32, 16], firsts=[0, 16, 32], whole=True)
    assert [qkv.own_rows(Rank(number, 2)) for number in (0, 1)] == [[range(16)], [range(16, 48)]]
    mlp = linear(parts=[40, 40], count=32, firsts=[40, 72], gates=[0, 32])
    assert mlp.own_rows(Rank(0, 2)) == [range(32), range(40, 72)]
    assert mlp.own_rows(Rank(1, 2)) == [range(32, 40), range(72, 80)]
    experts = linear(matrices=[(0, "a"), (0, "b")], firsts=[0, 16, 32])
    assert [experts.own_units(Rank(number, 2)) for number in (0, 1)] == [[0, 3], [1, 2, 4, 5]]


def test_whole_numbers_in_lists():
    assert _are_ints(5) and _are_ints(-(1 << 62) + 1) and not _are_ints(1 << 62) and not _are_ints(-(1 << 62))
    assert not _are_ints(True) and not _are_ints(1.0) and not _are_ints("1") and not _are_ints(None)
    assert _are_ints([[1, 2], [3, 4]], None, 2) and _are_ints([], None, 2)
    assert not _are_ints([[1, 2], [3]], None, 2) and not _are_ints([1, 2], None, 2) and not _are_ints(5, None)
    assert _are_ints([1, 2], 2) and not _are_ints([1, 2], 3) and not _are_ints([[1]], 1)


class Op:
    inputs = 64


def described(kept=(), placed=(), floats=(), **how):
    told = {"kept": list(kept), "floats": list(floats)}
    return {"layout": LAYOUT, "placed": list(placed), "dtypes": {"float32": told}, **how}


def packed(*rank, **how):
    return Packed(PAYLOAD, described(**how), "float32", *rank)


PAYLOAD = torch.zeros(3 * 4096, dtype=torch.uint8)  # of three tiles of 64 inputs in float32


def test_another_layout_is_refused():
    with pytest.raises(PackedModelError, match=f"has layout 5, and this tokenmill packs {LAYOUT}: make it again"):
        packed(layout=5)


def test_a_description_of_one_dtype_is_read():
    units = linear(op=Op, firsts=[0, 16, 32])
    old = {"layout": 10, "kept": [[8, 16]], "placed": [FULL], "matrix_bytes": 12288, "num_bytes": 12304}
    some = Packed(PAYLOAD, old, "float32")
    assert some.keep(SmallTensor("x.weight", (4,))) == PAYLOAD.data_ptr() + 8
    assert some.place([units]) == packed(placed=[FULL]).place([units])
    assert (some.num_bytes, some.num_matrix_bytes) == (12304, 12288)


@pytest.mark.parametrize(
    "damage",
    [
        {"kept": [[1]]},
        {"placed": [[[0, 1, 0]]]},
        {"floats": [[[0, 1, 0]]]},
        {"dtypes": None},
        {"dtypes": {}},
        {"dtypes": {"float32": None}},
        {"dtypes": {"float32": {"kept": []}}},
        {"dtypes": {"bfloat16": {"kept": [], "floats": []}}},
    ],
)
def test_a_description_that_is_none_is_refused(damage):
    with pytest.raises(PackedModelError, match="its description of the weights cannot be read; make it again"):
        packed(**damage)


def test_a_dtype_that_does_not_hold_the_numbers_says_so():
    with pytest.raises(CheckpointError, match=r"^x holds 70000$") as raised:
        packed(dtypes={"float32": "x holds 70000"})
    assert not isinstance(raised.value, PackedModelError), "the packed model is right"


def test_what_was_kept_is_given_again_in_its_order():
    end = len(PAYLOAD)
    some = packed(kept=[[8, 16], [end - 4, 4], [end - 3, 4], [-1, 4], [0, 8]])
    assert (some.num_bytes, some.num_matrix_bytes) == (36, 0)
    base = PAYLOAD.data_ptr()
    keep = lambda kept, count: kept.keep(SmallTensor("x.weight", (count,)))  # noqa: E731
    assert keep(some, 4) == base + 8 and keep(some, 1) == base + end - 4
    for wanted, held in ((1, 4), (1, 4), (1, 8), (1, -1)):
        with pytest.raises(PackedModelError, match=f"holds {held} bytes where its config wants {4 * wanted}: make it"):
            keep(some, wanted)
    assert keep(packed(kept=[[0, 0]]), 0) == base


@pytest.mark.parametrize(("dtype", "sizes"), [("float32", (4, 4)), ("bfloat16", (4, 2)), ("float16", (4, 2))])
def test_what_is_kept_in_float32_or_in_the_dtype_of_the_model(dtype, sizes):
    kept = [[0, 3 * sizes[0]], [64, 3 * sizes[1]]]
    some = Packed(PAYLOAD, described(dtypes={dtype: {"kept": kept, "floats": []}}), dtype)
    assert some.keep(SmallTensor("x.weight", (3,))) == PAYLOAD.data_ptr()
    assert some.keep_table(SmallTensor("x.weight", (3,), in_float32=False)) == PAYLOAD.data_ptr() + 64


FULL = [[0, 1, 0, -1], [4096, 2, 0, -1]]


@pytest.mark.parametrize(
    "runs",
    [
        [FULL[0]],
        [*FULL, [0, 1, 0, -1]],
        [[0, 1, 0, -1], [4097, 2, 0, -1]],
        [[-1, 1, 0, -1], FULL[1]],
        [[0, 1, len(LAYOUTS), -1], FULL[1]],
        [[0, 1, 0, 0], FULL[1]],
        [[0, 0, 0, -1], [0, 3, 0, -1]],
        [[0, -1, 0, -1], [0, 4, 0, -1]],
    ],
)
def test_runs_that_do_not_fit_are_refused(runs):
    """Three units of a tile: too few, too many, beyond the end, before the start, of no layout, gated, or empty."""
    units = linear(op=Op, firsts=[0, 16, 32])
    assert units.unit_bytes(0) == 4096 and units.unit_bytes(-1) == 0
    base = PAYLOAD.data_ptr()
    good = packed(placed=[FULL]).place([units])
    assert good == [{unit: Place(base + 4096 * unit, 0, 0, -1) for unit in range(3)}]
    second = packed(Rank(1, 2), placed=[FULL]).place([units])
    assert second == [{unit: good[0][unit] for unit in (1, 2)}]
    for wrong in ({"placed": [runs]}, {"placed": [[]], "floats": [runs]}):
        with pytest.raises(PackedModelError, match="matrices are not those of its config: make it again"):
            packed(**wrong).place([units])
    with pytest.raises(PackedModelError, match="matrices are not those"):
        packed(placed=[FULL]).place([])


def test_matrices_that_are_told_by_dtype_stand_where_none_is_told():
    """And all of them count as what a token reads, but the table that tokens are looked up in."""
    first, second = linear(op=Op, firsts=[0]), linear(op=Op, firsts=[0, 16])
    table = linear(op=Op, firsts=[0], matrices=[(None, "embedding")])
    run = lambda at, count: [[at, count, 0, -1]]  # noqa: E731
    some = packed(kept=[[0, 8]], placed=[[], run(4096, 2), []], floats=[run(0, 1), run(8192, 1)])
    begins = [
        [place.address - PAYLOAD.data_ptr() for place in each.values()] for each in some.place([first, second, table])
    ]
    assert begins == [[0], [4096, 8192], [8192]]
    assert (some.num_bytes, some.num_matrix_bytes) == (4 * 4096 + 8, 3 * 4096)
    with pytest.raises(PackedModelError, match="matrices are not those"):
        packed(placed=[[], run(0, 2)], floats=[]).place([first, second])


def test_a_gate_lies_behind_its_unit():
    units = linear(op=Op, firsts=[16], gates=[0])
    assert units.stride(Run(0, 1, 0, 2)) == 4096 + native_library.library().tm_tile_bytes(2, 64)
    (places,) = packed(placed=[[[0, 1, 0, 0]]]).place([units])
    assert places == {0: Place(PAYLOAD.data_ptr(), 0, PAYLOAD.data_ptr() + 4096, 0)}
    with pytest.raises(PackedModelError):
        packed(placed=[[[0, 1, 0, -1]]]).place([units])
    with pytest.raises(PackedModelError):
        packed(placed=[[[4096 + 1, 1, 0, 0]]]).place([units])


@pytest.mark.parametrize("family", ["llama-mha-tied", "mixtral"])
@pytest.mark.parametrize("scheme", ["dense", "q4"])
def test_a_packed_model_has_the_bits_and_the_bytes_of_its_model(family, scheme, tmp_path):
    path, target = save(family, tmp_path), tmp_path / "x.packed"
    config = EngineConfig(program="native", scheme=scheme, dtype="bfloat16")
    save_packed_model(open_checkpoint(path), config, target, lambda *_: None)
    ours, model = load(target), load(path, program="native", dtype="bfloat16", scheme=scheme, packed_cache=False)
    assert torch.equal(ours.logits(LONG), model.logits(LONG)) and ours.memory == model.memory
    program = ours.core.loaded.program
    with pytest.raises(ConfigError, match="the model itself: it is packed already"):
        program.packed_weights()
    described = model.core.loaded.program
    assert isinstance(described._weights, Packing)
    assert described.num_weight_bytes > described.num_matrix_bytes > 0


@pytest.mark.parametrize(
    "name", ["llama-wide-tied", "mixtral-wide", pytest.param("llama-wide", marks=pytest.mark.long)]
)
def test_matrices_are_read_and_packed_in_bands(name, tmp_path, monkeypatch):
    """A matrix of 262 million codes, as a head is, would otherwise take six times its bytes for a moment. The bands
    are small here: a band is a row, or a unit.
    """
    kinds = "Q4_K Q6_K Q5_K Q3_K Q8_0 IQ4_XS BF16".split()
    path = gguf_files.write_codes(tmp_path / "x.gguf", name, [gguf_files.KIND[kind] for kind in kinds])

    def packed(target):
        save_packed_model(open_checkpoint(path), EngineConfig(program="native"), target, lambda *_: None)
        return target.read_bytes()

    whole = packed(tmp_path / "whole.packed")
    monkeypatch.setattr(weights, "BAND", 1)
    monkeypatch.setattr(tensors, "BAND", 1)
    calls = []
    monkeypatch.setattr(weights, "pack", lambda *given: calls.append(len(given[-1])) or pack(*given))
    assert packed(tmp_path / "bands.packed") == whole and set(calls) == {1}
