"""Mapped memory: how the system is asked for it, and files that are read where they lie."""

import ctypes
import mmap
import sys

import pytest

from tokenmill.memory import pages
from tokenmill.memory.pages import HUGE_PAGE, map_file, map_pages, touch

linux = pytest.mark.skipif(sys.platform != "linux", reason="the numbers are those of Linux")


def test_the_memory_is_zero_and_can_be_written():
    mapped = map_pages(5000)
    assert len(mapped) == 5000 and mapped[:] == bytes(5000)
    mapped[4999] = 7
    assert mapped[4999] == 7


def test_nothing_is_at_least_a_byte():
    assert len(map_pages(0)) == 1
    assert len(map_pages(1)) == 1


class Asked(mmap.mmap):
    """Notes how it is asked for and advised."""

    calls: list = []  # noqa: RUF012  (emptied by each test)

    def __new__(cls, *given, **more):
        cls.calls.append((*given, more))
        return super().__new__(cls, *given, **more)

    def madvise(self, *given):
        self.calls.append(("madvise", *given))
        return super().madvise(*given)


@linux
def test_how_the_system_is_asked(monkeypatch):
    """MAP_PRIVATE 2, MAP_ANONYMOUS 0x20, MAP_NORESERVE 0x4000, MADV_HUGEPAGE 14: include/uapi of Linux."""
    Asked.calls.clear()
    monkeypatch.setattr(pages.mmap, "mmap", Asked)
    map_pages(10)
    map_pages(10, reserved=False)
    assert Asked.calls == [
        (-1, 10, {"flags": 0x22}), ("madvise", 14),
        (-1, 10, {"flags": 0x4022}), ("madvise", 14),
    ]  # fmt: skip
    assert HUGE_PAGE == 2 * 1024 * 1024  # of x86-64


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"a" * mmap.ALLOCATIONGRANULARITY + b"bcd")
    return path


def test_bytes_of_a_file_are_mapped_at_their_offset(file):
    with file.open("rb") as opened:
        mapped = map_file(opened, mmap.ALLOCATIONGRANULARITY, 2)
        assert mapped[:] == b"bc"
        mapped[0] = ord("x")  # for ourselves
    assert file.read_bytes()[-3:] == b"bcd"


@linux
def test_a_mapped_file_is_read_in_by_one_call(file, monkeypatch):
    """MADV_POPULATE_READ is 22: include/uapi/asm-generic/mman-common.h of Linux 5.14."""
    calls = []

    class Library:
        def madvise(self, address, length, advice):
            calls.append((address.value, length.value, advice))

    with file.open("rb") as opened:
        mapped = map_file(opened, 0, 100)
    monkeypatch.setattr(pages.ctypes, "CDLL", lambda name: Library() if name is None else None)
    touch(mapped)
    assert calls == [(ctypes.addressof(ctypes.c_char.from_buffer(mapped)), 100, 22)]


def test_touching_changes_nothing(file):
    with file.open("rb") as opened:
        mapped = map_file(opened, 0, mmap.ALLOCATIONGRANULARITY + 3)
    touch(mapped)
    assert mapped[-3:] == b"bcd"
