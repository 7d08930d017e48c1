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

from tokenmill.errors import ConfigError
from tokenmill.kernels.native_structs import layout

ABI = 29
LANES = 16  # of its vectors
X86 = ("amx", "avx512", "avx512_vnni", "avx512_core", "avx2_vnni", "avx2", "portable")
BUILDS = ("dotprod", "portable") if platform.machine() in ("aarch64", "arm64") else X86
"""Its kernels by instruction set, the best first. A library may lack some."""
FILE = Path(os.environ.get("TOKENMILL_NATIVE_LIBRARY") or Path(__file__).parent / "libtokenmill.so")
"""The variable may name another library, such as the library of `make test-sanitized`."""
WANTED_BUILD = os.environ.get("TOKENMILL_NATIVE_BUILD", "")
"""One of BUILDS that models take instead of the best."""
WHY_BYTES = 500


@cache
def library() -> ctypes.CDLL:
    """Load the library. OSError when there is none or it does not load, ConfigError if WANTED_BUILD does not run."""
    loaded = ctypes.CDLL(os.fspath(FILE))
    loaded.tm_best_build.restype = loaded.tm_features.restype = c_char_p
    loaded.tm_builds.restype = None
    loaded.tm_builds.argtypes = [c_char_p, c_char_p, c_int]
    loaded.tm_choose_build.argtypes = [c_char_p, c_char_p, c_int]
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
    loaded.tm_score.argtypes = [c_void_p, c_int64, c_int64, c_void_p, c_int64, c_void_p]
    loaded.tm_fit_grid.argtypes = [c_char_p, c_void_p, c_int64, c_int, c_int, c_int, *[c_void_p] * 4]
    loaded.tm_round_group.argtypes = [c_char_p, c_void_p, c_int64, c_int, c_int, *[c_void_p] * 6]
    loaded.tm_tile_bytes.restype = c_int64
    loaded.tm_tile_bytes.argtypes = [c_int, c_int]
    why = ctypes.create_string_buffer(WHY_BYTES)
    if WANTED_BUILD and loaded.tm_choose_build(WANTED_BUILD.encode(), why, WHY_BYTES):
        raise ConfigError("TOKENMILL_NATIVE_BUILD", WANTED_BUILD, why.value.decode(), "the environment")
    return loaded


def why_not() -> str | None:
    """Say why the library cannot be used; None where it can."""
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
    """Find the first difference of the library's structs from Python's. A line says name, offset, size."""
    for theirs, ours in zip_longest(built.splitlines(), needed.splitlines(), fillvalue="nothing"):
        if theirs != ours:
            return f"has other structs ({theirs} where {ours} is needed): install tokenmill again"
    return None


@cache
def is_usable() -> bool:
    return why_not() is None


@cache
def library_digest() -> str:
    """Compute the digest of the library file: each change of the sources may change its arithmetic."""
    return blake2b(FILE.read_bytes(), digest_size=8).hexdigest()


def built_from() -> str:
    """Read the digest of its sources and the name of its compiler, which hatch_build.py has written into the file."""
    found = re.search(rb"tokenmill's library was built from ([^\0]+)\0", FILE.read_bytes())
    return found[1].decode(errors="replace") if found else "unknown sources"


def best_build() -> str:
    """Name the build that models take: of the best instruction set that this processor has, or WANTED_BUILD."""
    return bytes(library().tm_best_build()).decode()


def usable_build() -> str | None:
    """Name the build that models take; None where the library cannot be used."""
    return best_build() if is_usable() else None


def builds(features: str | None = None) -> tuple[str, ...]:
    """List the builds in the library that this processor runs, or a processor with other features, the best first.

    features: names as Linux has them in /proc/cpuinfo, with spaces between.
    """
    names = ctypes.create_string_buffer(WHY_BYTES)
    library().tm_builds(None if features is None else features.encode(), names, WHY_BYTES)
    return tuple(names.value.decode().split())
