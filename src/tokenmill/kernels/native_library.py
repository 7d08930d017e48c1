"""The shared library of `native/`: opened, or the reason why there is none."""

import ctypes
import os
import platform
import re
from ctypes import c_char_p, c_int, c_int64, c_void_p
from functools import cache
from hashlib import blake2b
from itertools import zip_longest
from pathlib import Path

from tokenmill.kernels.native_structs import layout

ABI = 16
LANES = 16  # of its vectors
BUILDS = (
    ("dotprod", "portable") if platform.machine() in ("aarch64", "arm64") else ("amx", "avx512", "avx2", "portable")
)
FILE = Path(os.environ.get("TOKENMILL_NATIVE_LIBRARY") or Path(__file__).parent / "libtokenmill.so")
"""The variable names another build of it, such as the one that `make test-sanitized` makes."""


@cache
def library() -> ctypes.CDLL:
    """The loaded library. OSError when there is none or it does not load."""
    loaded = ctypes.CDLL(os.fspath(FILE))
    loaded.tm_best_build.restype = c_char_p
    loaded.tm_layout.restype = c_char_p
    loaded.tm_make.restype = c_void_p
    loaded.tm_make.argtypes = [c_void_p, c_char_p, c_int]
    loaded.tm_run.argtypes = [c_void_p, c_void_p, c_char_p, c_int]
    loaded.tm_free.argtypes = [c_void_p]
    loaded.tm_shared_bytes.restype = c_int64
    loaded.tm_shared_bytes.argtypes = [c_void_p]
    loaded.tm_follow.argtypes = [c_void_p, c_char_p, c_int]
    loaded.tm_lose.restype = None
    loaded.tm_lose.argtypes = [c_void_p]
    loaded.tm_argmax.restype = None
    loaded.tm_argmax.argtypes = [c_void_p, c_int64, c_int64, c_void_p, c_void_p]
    loaded.tm_sample.argtypes = [c_void_p, c_int64, c_int64, c_void_p]
    loaded.tm_fit_grid.argtypes = [c_char_p, c_void_p, c_int64, c_int, c_int, c_int, *[c_void_p] * 4]
    loaded.tm_round_group.argtypes = [c_char_p, c_void_p, c_int64, c_int, c_int, *[c_void_p] * 6]
    loaded.tm_tile_bytes.restype = c_int64
    loaded.tm_tile_bytes.argtypes = [c_int, c_int]
    return loaded


def why_not() -> str | None:
    """The reason why the library cannot be used, or None."""
    if not FILE.exists():
        return (
            "was not built when tokenmill was installed: install a C++ compiler (gcc 12, clang), then tokenmill again"
        )
    try:
        abi = library().tm_abi()
    except (OSError, AttributeError) as error:
        return f"does not load: {error}"
    if abi != ABI:
        return f"was built from other sources (ABI {abi}, needed is {ABI}): install tokenmill again"
    return _first_difference(bytes(library().tm_layout()).decode(), layout())


def _first_difference(built: str, needed: str) -> str | None:
    """The first difference of the library's structs from those that Python fills. A line says name, offset, size."""
    for theirs, ours in zip_longest(built.splitlines(), needed.splitlines(), fillvalue="nothing"):
        if theirs != ours:
            return f"has other structs ({theirs} where {ours} is needed): install tokenmill again"
    return None


@cache
def is_usable() -> bool:
    return why_not() is None


@cache
def library_digest() -> str:
    """The digest of the library file: its arithmetic may be another after each change of the sources."""
    return blake2b(FILE.read_bytes(), digest_size=8).hexdigest()


def built_from() -> str:
    """Digest of its sources and name of its compiler, as hatch_build.py has written them into the file."""
    found = re.search(rb"tokenmill's library was built from ([^\0]+)\0", FILE.read_bytes())
    return found[1].decode(errors="replace") if found else "unknown sources"


def best_build() -> str:
    """The build for the best instruction set that this processor has."""
    return bytes(library().tm_best_build()).decode()
