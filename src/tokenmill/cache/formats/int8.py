"""Format int8 as facts: a row has 8 bits for each entry, and a float32 scale for each head."""


class Int8:
    @staticmethod
    def row_bytes(num_kv_heads: int, head_dim: int, dtype: str) -> int:
        return num_kv_heads * (head_dim + 4)
