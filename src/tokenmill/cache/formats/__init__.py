"""Cache formats: how one token's K or V row is stored, as facts that need no tensor.

A format is a file of such facts, a file of the tensors, and a line of FORMATS in the registry, which names both.
"""

from typing import Protocol

from tokenmill.registry import FORMATS, lookup

__all__ = ["Format", "find_format"]


class Format(Protocol):
    """The facts of one format."""

    @staticmethod
    def row_bytes(num_kv_heads: int, head_dim: int, dtype: str) -> int:
        """Count the bytes of one token's K, or V."""


def find_format(name: str) -> type[Format]:
    found: type[Format] = lookup(FORMATS, name, "cache_format")
    return found
