"""The library is opened only if its structs are those that Python fills."""

import hashlib
import re
from ctypes import Structure, c_char_p, c_int, c_int32, c_int64, c_void_p
from pathlib import Path

import pytest

from tokenmill.kernels import native_library, native_structs

pytestmark = pytest.mark.skipif(not native_library.FILE.exists(), reason="the library was not built")


def test_the_compiler_has_put_each_field_where_python_has_it():
    built = bytes(native_library.library().tm_layout()).decode()
    assert built == native_structs.layout()
    assert "TmUnit 0 32\nTmUnit.data 0 8\n" in built and "TmOp.from 16 4\n" in built


@pytest.mark.parametrize(
    ("fields", "difference"),
    [
        (
            [("first", c_int64), ("count", c_int64), ("start", c_int64), ("base", c_int64)],
            "TmSpan 0 72 where TmSpan 0 32",
        ),
        ([(name, c_int32) for name in ("first", "count", "start", "base", "slots")], "TmSpan 0 72 where TmSpan 0 20"),
        (
            [
                (name, c_int64)
                for name in ("count", "first", "start", "base", "slots", "state", "first_save", "num_saves", "adapter")
            ],
            "TmSpan.first 0 8 where TmSpan.count",
        ),
    ],
    ids=["a field less", "another type", "another order"],
)
def test_another_struct_is_named(monkeypatch, fields, difference):
    monkeypatch.setattr(native_structs, "TmSpan", type("TmSpan", (Structure,), {"_fields_": fields}))
    assert difference in native_library.why_not()


def test_another_abi_is_named(monkeypatch):
    monkeypatch.setattr(native_library, "ABI", native_library.ABI + 1)
    assert "was built from other sources" in native_library.why_not()


C_TYPES = {"int": c_int, "int64_t": c_int64}


def declared():
    """Result and parameters of each function of abi.h, as ctypes has them: a text is `const char*`, not `char*`."""
    header = (Path(__file__).parents[2] / "native" / "abi.h").read_text()
    for kind, name, given in re.findall(r"^((?:const )?\w+\*?) (tm_\w+)\(([^)]*)\);", header, re.MULTILINE):
        types = [words.rsplit(" ", 1)[0] for words in given.replace("\n", " ").split(",") if words.strip() != "void"]
        yield name, kind, [text.strip() for text in types]


def as_ctypes(text):
    if text == "const char*":
        return {c_char_p}
    return {c_char_p, c_void_p} if text.endswith("*") else {C_TYPES[text]}


def test_each_function_is_called_as_it_is_declared():
    library, seen = native_library.library.__wrapped__(), []
    for name, result, parameters in declared():
        function = getattr(library, name)
        if result != "void":  # else ctypes reads an int that nobody asks for
            assert function.restype in as_ctypes(result), name
        if parameters:
            assert len(function.argtypes) == len(parameters), name
            for given, text in zip(function.argtypes, parameters):
                assert given in as_ctypes(text), name
        seen.append(name)
    assert {"tm_make", "tm_run", "tm_argmax", "tm_fit_grid", "tm_round_group", "tm_tile_bytes"} <= set(seen)


def test_the_library_that_is_there_can_be_used():
    assert native_library.why_not() is None and native_library.is_usable() is True
    assert native_library.best_build() in native_library.BUILDS


def test_its_digest_is_that_of_its_file():
    content = native_library.FILE.read_bytes()
    assert native_library.library_digest() == hashlib.blake2b(content, digest_size=8).hexdigest()


def test_the_lanes_are_those_of_its_vectors():
    portable = (Path(__file__).parents[2] / "native" / "vector" / "portable.h").read_text()
    assert f"float v[{native_library.LANES}];" in portable


def test_a_library_that_is_missing_or_broken_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(native_library, "FILE", tmp_path / "none.so")
    assert native_library.why_not() == (
        "was not built when tokenmill was installed: install a C++ compiler (gcc 12, clang), then tokenmill again"
    )
    (tmp_path / "none.so").write_bytes(b"no library")
    monkeypatch.setattr(native_library, "library", native_library.library.__wrapped__)
    assert re.fullmatch(r"does not load: .*none\.so.*", native_library.why_not())


def test_a_library_with_fewer_or_more_fields_is_named(monkeypatch):
    built = native_library.layout()
    monkeypatch.setattr(native_library, "layout", lambda: built + "TmX 0 8\n")
    assert native_library.why_not() == "has other structs (nothing where TmX 0 8 is needed): install tokenmill again"
    last = built.splitlines()[-1]
    monkeypatch.setattr(native_library, "layout", lambda: built.removesuffix(f"{last}\n"))
    assert native_library.why_not() == f"has other structs ({last} where nothing is needed): install tokenmill again"
