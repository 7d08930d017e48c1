"""The cache of a model as another model reads it, such as an assistant, which has no rows of its own."""

from collections.abc import Sequence

from tokenmill.cache.pool import Pool


class LentPool(Pool):
    """The cache of a model, of which another reads the layers of these numbers."""

    def __init__(self, pool: Pool, numbers: Sequence[int]) -> None:
        vars(self).update(vars(pool))
        self.layers = [pool.layers[number] for number in numbers]

    @property
    def num_bytes(self) -> int:
        """Count nothing, since the model counts it."""
        return 0
