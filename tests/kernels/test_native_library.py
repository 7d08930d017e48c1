"""The library is opened only if its structs are those that Python fills."""

from ctypes import Structure, c_int32, c_int64

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
            "TmSpan 0 40 where TmSpan 0 32",
        ),
        ([(name, c_int32) for name in ("first", "count", "start", "base", "slots")], "TmSpan 0 40 where TmSpan 0 20"),
        (
            [(name, c_int64) for name in ("count", "first", "start", "base", "slots")],
            "TmSpan.first 0 8 where TmSpan.count",
        ),
    ],
    ids=["a field less", "another type", "another order"],
)
def test_another_struct_is_named(monkeypatch, fields, difference):
    monkeypatch.setattr(native_structs, "Span", type("Span", (Structure,), {"_fields_": fields}))
    assert difference in native_library.why_not()


def test_another_abi_is_named(monkeypatch):
    monkeypatch.setattr(native_library, "ABI", native_library.ABI + 1)
    assert "was built from other sources" in native_library.why_not()
