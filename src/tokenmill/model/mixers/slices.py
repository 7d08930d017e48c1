"""The shape in which the state of linear attention is stored.

The columns of a head's state [key, value], one for each number of the value, do not depend on each other. So a state is
stored in slices of columns, and all tokens of a chunk run through one slice before the next.
"""

COLUMNS = 32
"""Columns of a slice: with keys of 128 it has 16 KiB in float32, half of a first cache of 32 KiB."""


def state_shape(num_heads: int, key_dim: int, value_dim: int) -> tuple[int, int, int, int]:
    """Return [heads, slices, key, columns]: slices of COLUMNS where these divide a value, else one slice."""
    columns = COLUMNS if value_dim % COLUMNS == 0 else value_dim
    return num_heads, value_dim // columns, key_dim, columns
