"""Format dense as facts: a row is in the dtype of the cache."""

from tokenmill.settings.engine_config import DTYPES


class Dense:
    @staticmethod
    def row_bytes(num_kv_heads: int, head_dim: int, dtype: str) -> int:
        return num_kv_heads * head_dim * DTYPES[dtype]
