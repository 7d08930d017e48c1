"""The shared library of the native program and the C structs that it is called with: abi.h in Python's words."""

import ctypes
import os
from ctypes import POINTER, Structure, c_char_p, c_float, c_int, c_int32, c_int64, c_void_p
from functools import cache
from hashlib import blake2b
from pathlib import Path

__all__ = ["BUILDS", "Model", "Op", "Step", "Unit", "best_build", "library", "library_digest", "why_not"]

ABI = 7
BUILDS = ("amx", "avx512", "avx2", "portable")
FILE = Path(os.environ.get("TOKENMILL_NATIVE_LIBRARY") or Path(__file__).parent / "libtokenmill.so")
"""The variable names another build of it, such as the one that `make test-sanitized` makes."""


class Unit(Structure):
    """TmUnit: rows of a matrix that are finished together."""

    _fields_ = [
        ("data", c_void_p),
        ("gate", c_void_p),
        ("scheme", c_int32),
        ("gate_scheme", c_int32),
        ("first", c_int32),
        ("count", c_int32),
    ]


class Op(Structure):
    """TmOp."""

    _fields_ = [
        *(
            (name, c_int32)
            for name in "kind epilogue activation centred from_ to inputs outputs num_units scheme".split()
        ),
        ("units", POINTER(Unit)),
        *(
            (name, c_void_p)
            for name in "weight bias q_norm k_norm table positions k_rows v_rows k_scales v_scales".split()
        ),
        *((name, c_float) for name in "eps scale softcap".split()),
        *((name, c_int32) for name in "window experts chosen normalise".split()),
    ]


class Model(Structure):
    """TmModel."""

    _fields_ = [
        *(
            (name, c_int32)
            for name in "hidden num_heads num_kv_heads head_dim intermediate vocab rotary cache_format".split()
        ),
        ("cosines", c_void_p),
        ("sines", c_void_p),
        ("ops", POINTER(Op)),
        ("num_ops", c_int32),
        ("num_threads", c_int32),
        ("build", c_char_p),
        ("num_positions", c_int64),
        ("num_slots", c_int64),
    ]


class Step(Structure):
    """TmStep."""

    _fields_ = [
        ("num_tokens", c_int32),
        ("num_spans", c_int32),
        ("num_rows", c_int32),
        ("num_stops", c_int32),
        ("tokens", c_void_p),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("rows", c_void_p),
        ("spans", c_void_p),
        ("stops", c_void_p),
        ("logits", c_void_p),
    ]


@cache
def library() -> ctypes.CDLL:
    """The loaded library. OSError when there is none or it does not load."""
    loaded = ctypes.CDLL(os.fspath(FILE))
    loaded.tm_best_build.restype = c_char_p
    loaded.tm_make.restype = c_void_p
    loaded.tm_make.argtypes = [POINTER(Model), c_char_p, c_int]
    loaded.tm_run.argtypes = [c_void_p, POINTER(Step), c_char_p, c_int]
    loaded.tm_free.argtypes = [c_void_p]
    loaded.tm_argmax.restype = None
    loaded.tm_argmax.argtypes = [c_void_p, c_int64, c_int64, c_void_p, c_void_p]
    loaded.tm_tile_bytes.restype = c_int64
    loaded.tm_tile_bytes.argtypes = [c_int, c_int]
    return loaded


def why_not() -> str | None:
    """Why the library cannot be used, or None."""
    if not FILE.exists():
        return (
            "was not built when tokenmill was installed: install a C++ compiler (gcc 12, clang), then tokenmill again"
        )
    try:
        abi = library().tm_abi()
    except (OSError, AttributeError) as error:
        return f"does not load: {error}"
    return None if abi == ABI else f"was built from other sources (ABI {abi}, needed is {ABI}): install tokenmill again"


@cache
def library_digest() -> str:
    """Of the library file: its arithmetic may be another after each change of the sources."""
    return blake2b(FILE.read_bytes(), digest_size=8).hexdigest()


def best_build() -> str:
    """The build for the best instruction set that this processor has."""
    name: bytes = library().tm_best_build()
    return name.decode()
