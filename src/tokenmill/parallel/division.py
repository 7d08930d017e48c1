"""Which rank has which part of what is divided. Only counts are divided here, so that every rank finds the same."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rank:
    """One of `count` processes, by its number. Rank 0 has the scheduler; it is the process that a user began."""

    number: int = 0
    count: int = 1

    def share(self, total: int) -> range:
        """Choose this rank's part of so many things that follow each other: as many as the others have, or one less."""
        return range(total * self.number // self.count, total * (self.number + 1) // self.count)


ALONE = Rank()
