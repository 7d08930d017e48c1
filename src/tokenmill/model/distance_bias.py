"""A number that is added to a score by the distance of its key from its query, as data: learned for buckets of
distances (MPNet), or the distance times a slope (ALiBi).

Every layer adds the same. distance_bias_module.py computes the numbers.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class DistanceBias:
    """num_buckets: the rows of a learned table, which has a number of each head for each bucket of distances, one half
    for keys up to the query, the other for keys behind it (T5). Half of a half are of one distance each; the others
    grow with the logarithm, up to max_distance. 0 for ALiBi: slope times distance is subtracted, in both directions.
    """

    num_heads: int
    num_buckets: int = 0
    max_distance: int = 0

    name = "distance_bias"

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name its parameters in the decoder, with their shapes."""
        return {f"{self.name}.weight": (self.num_buckets, self.num_heads)} if self.num_buckets else {}
