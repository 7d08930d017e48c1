"""Embeddings of a table: the vector of one of each row's columns, in new columns beside them."""

from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import asdict, dataclass, field
from typing import Any

from tokenmill.batches.formats.table_format import cell
from tokenmill.batches.row import Columns, Json, TableRow
from tokenmill.batches.task import Key, RowWork
from tokenmill.batches.template import ERROR, KEY, NewColumns, value_in
from tokenmill.engine.core import Core
from tokenmill.engine.embedding import Pooling, check_finite, pooled, settled
from tokenmill.engine.outputs import Completion
from tokenmill.engine.requests import Request
from tokenmill.errors import RequestError

VECTOR = "embedding"


@dataclass(eq=False)
class EmbedTask(NewColumns):
    """A task for the column of a table. asked: pooling, dimensions, normalize, prompt_name and truncate, see
    engine/embedding.embed. prefix: of the names of new columns.
    """

    column: str
    asked: Json
    prefix: str = ""
    how: Pooling = field(init=False)
    _encoded: Callable[[Any], list[int]] = field(init=False)

    @property
    def needed(self) -> list[str]:
        return [self.column]

    def new_columns(self) -> Columns:
        return {VECTOR: "list of float", "num_tokens": "int", KEY: "text", ERROR: "text"}

    def begin(self, core: Core) -> None:
        self.how, self._encoded = settled(core, **self.asked)

    def facts(self, core: Core) -> Json:
        how = {name: value for name, value in asdict(self.how).items() if name != "steps"}
        return {"kind": "embeddings", "column": self.column, "output_prefix": self.prefix, **self.asked, **how}

    def prepare(self, core: Core, row: TableRow, key: Key) -> RowWork:
        if row.values is None:
            raise RequestError(row.problem)
        value = value_in(row.values, self.column)
        tokens = self._encoded(value if isinstance(value, list) else cell(value))
        sequence, text = pooled(core, tokens, self.how, b"", None)

        def answer(completions: List[Completion]) -> Json:
            vector = text.vector(self.how)
            check_finite(core, vector)
            return {VECTOR: vector.tolist(), "num_tokens": len(tokens)}

        return RowWork(Request([]), tokens, answer, [sequence])
