"""The shared library of the native program, and the structs that it is called with: TmOp is Op here, and so on."""

import ctypes
import os
from ctypes import POINTER, Structure, c_char_p, c_float, c_int, c_int32, c_int64, c_void_p
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

__all__ = ["BUILDS", "Model", "Op", "Step", "Unit", "best_build", "library", "library_digest", "why_not"]

ABI = 8
BUILDS = ("amx", "avx512", "avx2", "portable")
FILE = Path(os.environ.get("TOKENMILL_NATIVE_LIBRARY") or Path(__file__).parent / "libtokenmill.so")
"""The variable names another build of it, such as the one that `make test-sanitized` makes."""


def _fields(*groups: tuple[Any, str]) -> list[tuple[str, Any]]:
    """The fields of a struct, from (type, names) in the order of abi.h."""
    return [(name, kind) for kind, names in groups for name in names.split()]


class Unit(Structure):
    """Rows of a matrix that are computed together."""

    _fields_ = _fields((c_void_p, "data gate"), (c_int32, "scheme gate_scheme first count"))


class Op(Structure):
    _fields_ = _fields(
        (c_int32, "kind epilogue activation centred from_ to inputs outputs num_units scheme"),
        (POINTER(Unit), "units"),
        (c_void_p, "weight bias q_norm k_norm table positions k_rows v_rows k_scales v_scales"),
        (c_float, "eps scale softcap"),
        (c_int32, "window experts chosen normalise"),
    )


class Model(Structure):
    _fields_ = _fields(
        (c_int32, "hidden num_heads num_kv_heads head_dim intermediate vocab rotary cache_format"),
        (c_void_p, "cosines sines"),
        (POINTER(Op), "ops"),
        (c_int32, "num_ops num_threads"),
        (c_char_p, "build"),
        (c_int64, "num_positions num_slots"),
    )


class Step(Structure):
    _fields_ = _fields(
        (c_int32, "num_tokens num_spans num_rows num_stops"),
        (c_void_p, "tokens positions slots rows spans stops logits"),
    )


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
    return bytes(library().tm_best_build()).decode()
