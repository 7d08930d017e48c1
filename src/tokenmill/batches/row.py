"""TableRow: one row of an input file, and the digest that stands for it; the columns of a file."""

import json
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from math import isfinite
from typing import Any

from tokenmill.text.json_lines import one_line

Json = dict[str, Any]
Columns = dict[str, Any]
"""The columns of a file in their order, and what each holds: one of KINDS, or a data type of pyarrow."""
KINDS = ("int", "long", "float", "bool", "text", "json")
"""long: a whole number that no float stands for."""

JOINT = {frozenset(("int", "float")): "float", frozenset(("int", "long")): "long"}
MOST_EXACT, LONG = 2**53, 2**63


@dataclass(frozen=True)
class TableRow:
    """A row. number: from 0 on. line: of the file, from 1 on. values: by column; None for a line that is no row.

    problem: what is wrong with a line that is no row, with its number.
    """

    number: int
    line: int
    values: Json | None
    problem: str = ""

    @cached_property
    def digest(self) -> int:
        """64 bits that depend on the values alone, not on the row's place; of a broken line on its number."""
        content = self.problem if self.values is None else self.values
        data = json.dumps(content, ensure_ascii=False, separators=(",", ":"), default=repr).encode()
        return int.from_bytes(blake2b(data, digest_size=8).digest())


def dumps(value: Any, **how: Any) -> str:
    """Write a value as JSON in one line, as the server writes its answers."""
    return one_line(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), **how))


def dumps_cell(value: Any) -> str:
    """Write a value of a table as JSON, with dates, NaN, Infinity and -Infinity as texts."""
    try:
        return dumps(value, default=str)
    except ValueError:  # which stands for such numbers, of Parquet alone
        return dumps(_finite(value), default=str)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return json.dumps(value) if isinstance(value, float) and not isfinite(value) else value


def kind_of(value: Any) -> str:
    """Return the kind of column that a value of JSON wants; empty for null, which goes into any."""
    if value is None:
        return ""
    if type(value) is int and abs(value) > MOST_EXACT:
        return "long" if -LONG <= value < LONG else "json"
    kinds = {bool: "bool", int: "int", float: "float", str: "text"}
    return kinds.get(type(value), "json")


def joint(one: str, other: str) -> str:
    """Return the kind of a column that holds values of two kinds."""
    if one == other or not one or not other:
        return one or other
    return JOINT.get(frozenset((one, other)), "json")
