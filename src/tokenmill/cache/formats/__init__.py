"""Cache formats: how one token's K or V row is stored. Here is what is known of a format without a tensor.

A format is a line in FORMATS, with a file of such facts, and a line in LAYERS (layer.py), with a file of the tensors.
"""

from typing import Protocol

from tokenmill.registry import lookup

__all__ = ["FORMATS", "Format", "find_format"]

FORMATS = {
    "dense": "tokenmill.cache.formats.dense:Dense",
    "int8": "tokenmill.cache.formats.int8:Int8",
}


class Format(Protocol):
    """The facts of one format."""

    @staticmethod
    def row_bytes(num_kv_heads: int, head_dim: int, dtype: str) -> int:
        """Bytes of one token's K, or V."""


def find_format(name: str) -> type[Format]:
    found: type[Format] = lookup(FORMATS, name, "cache_format")
    return found
