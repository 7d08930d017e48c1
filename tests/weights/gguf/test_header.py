"""Headers of GGUF files, byte by byte: what the format's description says is written here by struct alone."""

import struct

import gguf
import pytest

from tokenmill.errors import CheckpointError
from tokenmill.weights.gguf.header import Header, TensorInfo, read_header

Kind = gguf.GGMLQuantizationType
LONGEST = 1 << 24


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def array(inner: int, count: int, entries: bytes = b"") -> bytes:
    return struct.pack("<IQ", inner, count) + entries


def tensor(name: str, dims: list[int], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def front(num_tensors: int, num_pairs: int, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_pairs)


def parsed(folder, data: bytes) -> Header:
    (folder / "x.gguf").write_bytes(data)
    return read_header(folder / "x.gguf")


def refused(folder, data: bytes) -> str:
    """The message, a short line, without the path that it begins with."""
    with pytest.raises(CheckpointError) as raised:
        parsed(folder, data)
    message, path = str(raised.value), f"{folder / 'x.gguf'} "
    assert message.startswith(path) and "\n" not in message and len(message) < 1000
    return message.removeprefix(path)


def one_value(folder, kind: int, value: bytes):
    """The value of a file's only key, which ends with the file."""
    return parsed(folder, front(0, 1) + pair("a", kind, value)).metadata["a"]


def one_tensor(folder, dims: list[int], kind: int = 0, offset: int = 0, num_bytes: int = 4, pairs: bytes = b""):
    head = front(1, 1 if pairs else 0) + pairs + tensor("t", dims, kind, offset)
    return parsed(folder, head + bytes(-len(head) % 32 + offset + num_bytes)).tensors["t"]


def test_a_header_and_nothing_else_is_a_file(tmp_path):
    assert parsed(tmp_path, front(0, 0)) == Header({}, {}, 32)
    assert refused(tmp_path, front(0, 0)[:-1]) == "is no GGUF file: it is shorter than a header of 24 bytes"


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (0, "is GGUF version 0: only 2 and 3 can be read; convert it anew"),
        (1, "is GGUF version 1: only 2 and 3 can be read; convert it anew"),
        (4, "is GGUF version 4: only 2 and 3 can be read; convert it anew"),
        (3 << 24, "is a big-endian GGUF file: convert it to little-endian"),
        (1 << 16, "is a big-endian GGUF file: convert it to little-endian"),
        ((1 << 16) + 3, "is GGUF version 65539: only 2 and 3 can be read; convert it anew"),
    ],
)
def test_versions(tmp_path, version, message):
    assert refused(tmp_path, front(0, 0, version)) == message
    assert parsed(tmp_path, front(0, 0, 2)) == parsed(tmp_path, front(0, 0, 3))


NUMBERS = [(0, "B", 255), (1, "b", -128), (2, "H", 65535), (3, "h", -32768), (4, "I", (1 << 32) - 1), (5, "i", -5)]
NUMBERS += [(6, "f", -0.15625), (10, "Q", (1 << 64) - 1), (11, "q", -(1 << 63)), (12, "d", 0.1), (7, "?", True)]


@pytest.mark.parametrize(("kind", "letter", "value"), NUMBERS)
def test_every_type_of_number(tmp_path, kind, letter, value):
    """https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, gguf_metadata_value_type."""
    found = one_value(tmp_path, kind, struct.pack(f"<{letter}", value))
    assert (found, type(found)) == (value, type(value))
    rows = one_value(tmp_path, 9, array(kind, 3, struct.pack(f"<3{letter}", value, 0, value)))
    assert rows == [value, 0, value]


def test_texts_and_arrays(tmp_path):
    assert one_value(tmp_path, 8, text("grüße")) == "grüße"
    assert one_value(tmp_path, 9, array(8, 2, text("") + text(""))) == ["", ""]
    assert one_value(tmp_path, 9, array(9, 1, array(4, 0))) == [[]]
    assert one_value(tmp_path, 9, array(7, 2, b"\0\1")) == [False, True]


def test_the_smallest_pair_may_be_the_end_of_a_file(tmp_path):
    assert one_value(tmp_path, 0, b"\7") == 7
    assert refused(tmp_path, front(0, 2) + pair("a", 0, b"\7")) == (
        "is damaged or cut short (byte 24 of 38): 2 times 14 bytes are claimed for every metadata key, 14 are left"
    )


@pytest.mark.parametrize("depth", [4, 5])
def test_arrays_in_arrays(tmp_path, depth):
    value = array(9, 1) * (depth - 1) + array(0, 1, b"\7")
    if depth == 4:
        assert one_value(tmp_path, 9, value) == [[[[7]]]]
    else:
        assert refused(tmp_path, front(0, 1) + pair("a", 9, value)).endswith("nests arrays more than 4 deep")


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (
            9,
            array(0, LONGEST),
            f"(byte 49 of 49): {LONGEST} times 1 bytes are claimed for the value of 'a', 0 are left",
        ),
        (9, array(0, LONGEST + 1), f"the value of 'a' claims {LONGEST + 1} entries, at most {LONGEST} are allowed"),
        (9, array(9, 2, array(0, 0)), "2 times 12 bytes are claimed for arrays in the value of 'a', 12 are left"),
        (9, array(8, 2, text("")), "2 times 8 bytes are claimed for the value of 'a', 8 are left"),
        (8, struct.pack("<Q", 5) + b"four", "claims a text of 5 bytes, at most 16777216 are allowed"),
        (8, text("")[:-1], "1 times 8 bytes are claimed for the value of 'a', 7 are left"),
        (7, b"\2", "the value of 'a' is a truth value that is neither 0 nor 1"),
        (13, bytes(8), "the value of 'a' has the unknown type 13"),
    ],
)
def test_values_that_a_file_cannot_hold(tmp_path, kind, value, message):
    assert refused(tmp_path, front(0, 1) + pair("a", kind, value)).endswith(message)


def test_names_have_up_to_255_bytes(tmp_path):
    assert list(parsed(tmp_path, front(0, 1) + pair("k" * 255, 0, b"\1")).metadata) == ["k" * 255]
    message = refused(tmp_path, front(0, 1) + pair("k" * 256, 0, b"\1"))
    assert message.endswith("metadata key 0 claims a text of 256 bytes, at most 255 are allowed")


@pytest.mark.parametrize("alignment", [1, 2, 32, 64])
def test_the_data_begin_at_a_multiple_of_the_alignment(tmp_path, alignment):
    head = front(1, 1) + pair("general.alignment", 4, struct.pack("<I", alignment)) + tensor("t", [1])
    assert len(head) == 24 + 33 + 33
    begin = {1: 90, 2: 90, 32: 96, 64: 128}[alignment]
    found = parsed(tmp_path, head + bytes(begin - 90 + 4))
    assert found.data_offset == begin
    assert refused(tmp_path, head + bytes(begin - 90 + 3)).endswith(f"'t' needs bytes {begin} to {begin + 4}")


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [(4, struct.pack("<I", 0), "0"), (4, struct.pack("<I", 24), "24"), (7, b"\1", "True"), (5, b"\xff" * 4, "-1")],
)
def test_alignments_that_are_none(tmp_path, kind, value, said):
    message = refused(tmp_path, front(0, 1) + pair("general.alignment", kind, value))
    assert message.endswith(f"general.alignment is {said}, a power of two is needed")


def test_the_shape_is_outermost_first_and_rows_are_whole_blocks(tmp_path):
    assert one_tensor(tmp_path, [1]) == TensorInfo("t", (1,), Kind.F32, 0, 4)
    assert one_tensor(tmp_path, [5, 3, 2, 2], num_bytes=240).shape == (2, 2, 3, 5)
    q8 = one_tensor(tmp_path, [64, 33], kind=8, offset=32, num_bytes=2244)
    assert q8 == TensorInfo("t", (33, 64), Kind.Q8_0, 32, 33 * 2 * 34)
    message = refused(tmp_path, front(1, 0) + tensor("t", [33, 64], kind=8) + bytes(9999))
    assert message.endswith("tensor 't' is [64, 33], but Q8_0 needs rows of 32 · n entries")


@pytest.mark.parametrize(("dims", "said"), [([], "0"), ([1] * 5, "5")])
def test_the_number_of_dimensions(tmp_path, dims, said):
    message = refused(tmp_path, front(1, 0) + tensor("t", dims) + bytes(64))
    assert message.endswith(f"the record of tensor 't' claims {said} dimensions, 1 to 4 are allowed")


def test_what_is_left_is_compared_with_the_smallest_record(tmp_path):
    message = refused(tmp_path, front(2, 0) + tensor("t", [1]) + bytes(4))
    assert message == (
        "is damaged or cut short (byte 24 of 61): 2 times 33 bytes are claimed for every tensor, 37 are left"
    )


def places(folder, *offsets: int, num_bytes: int = 96):
    head = front(len(offsets), 0) + b"".join(tensor("abc"[i], [8], 0, offset) for i, offset in enumerate(offsets))
    return parsed(folder, head + bytes(-len(head) % 32 + num_bytes))


def test_tensors_may_lie_in_any_order_but_not_on_each_other(tmp_path):
    found = places(tmp_path, 64, 0, 32)
    assert [(info.offset, info.num_bytes) for info in found.tensors.values()] == [(64, 32), (0, 32), (32, 32)]
    assert found.data_offset == 128
    with pytest.raises(CheckpointError, match=r"tensor 'b' at byte 128 overlaps the one before it"):
        places(tmp_path, 0, 0, 32)
    with pytest.raises(CheckpointError, match=r"tensor 'c' needs bytes 192 to 224$"):
        places(tmp_path, 0, 32, 64, num_bytes=95)
    with pytest.raises(CheckpointError, match=r"tensor 'b' begins at byte 144, which is not aligned to 32"):
        places(tmp_path, 64, 16, 96)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"PK" + bytes(40), "is no GGUF file: it begins with b'PK"),
        (front(0, 1) + pair("a", 8, struct.pack("<Q", 2) + b"\xff\xff"), "not UTF-8"),
        (front(0, 2) + pair("a", 0, b"\1") * 2, "'a' is there twice"),
        (front(0, 1) + pair("a\nb", 0, b"\1"), "'a\\nb', which holds control characters"),
        (front(2, 0) + tensor("t", [8]) + tensor("t", [8], offset=32) + bytes(96), "'t' is there twice"),
        (front(1, 0) + tensor("t", [8, 0]) + bytes(64), "is [0, 8]"),
        (front(1, 0) + tensor("t", [1 << 40] * 4) + bytes(64), "needs bytes"),
        (front(1, 0) + tensor("t", [8], offset=1 << 62) + bytes(64), "needs bytes"),
        (front(1, 0) + tensor("t", [8], kind=31) + bytes(64), "type 31, which GGUF does not define"),
    ],
)
def test_other_headers_that_are_refused(tmp_path, data, message):
    assert message in refused(tmp_path, data)


@pytest.mark.parametrize("inner", range(15))
def test_the_file_of_49_bytes(tmp_path, inner):
    """One array that claims more entries than could ever be: the gguf package's reader walks them all."""
    data = front(0, 1) + pair("a", 9, array(inner, (1 << 64) - 1))
    assert len(data) == 49
    refused(tmp_path, data)


def test_what_is_no_file(tmp_path):
    for path in (tmp_path, tmp_path / "absent.gguf"):
        with pytest.raises(CheckpointError, match="cannot be read"):
            read_header(path)
