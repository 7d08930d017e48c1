"""Shards: the rows of an input divided among several runs, each of which writes a file of its own.

Row r, counted from 0, belongs to shard r mod n + 1, whatever the rows are and however many there are. `join.py` makes
one file of them, in which the rows stand in the order of the input.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from tokenmill.errors import ConfigError

MOST = 10_000


@dataclass(frozen=True)
class Shard:
    """number: from 1 on, of `count` shards. The one of one is all rows."""

    number: int = 1
    count: int = 1

    def has(self, row: int) -> bool:
        """Whether a row, by its number, belongs to it."""
        return row % self.count == self.number - 1

    def path(self, target: Path) -> Path:
        """The file of this shard of an output: out-2-of-4.jsonl."""
        return target if self.count == 1 else target.with_stem(f"{target.stem}-{self.number}-of-{self.count}")


def parse_shard(text: str) -> Shard:
    """A shard as people write it, 2/4 for the second of four."""
    found = re.fullmatch(r"(\d{1,5})/(\d{1,5})", text)
    number, count = map(int, found.groups()) if found else (0, 0)
    if not 1 <= number <= count <= MOST:
        raise ConfigError("shard", text, f"i/n with i from 1 to n, as 2/4 for the second of four, and n at most {MOST}")
    return Shard(number, count)
