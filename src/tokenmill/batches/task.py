"""Task: what is done with a row, and RowWork: a row as a request of the core."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from typing import Any

from tokenmill.batches.row import Columns, Json, TableRow
from tokenmill.engine.core import Core
from tokenmill.engine.outputs import Completion
from tokenmill.engine.requests import Request
from tokenmill.schedule.sequence import Sequence


@dataclass(frozen=True)
class Key:
    """A key of a row under the settings of a run. digest: of the row. run: 8 hexadecimal digits for the settings."""

    digest: int
    run: str

    @property
    def text(self) -> str:
        """24 hexadecimal digits."""
        return f"{self.digest:016x}{self.run}"

    @property
    def seed(self) -> int:
        """The seed of a row that names none: 32 bits that depend on the row alone."""
        return self.digest >> 32


def digest_in(text: object) -> int | None:
    """Return the digest of a row, out of its key; None for another text or value."""
    try:
        return int(text[:16], 16) if isinstance(text, str) and len(text) == 24 else None
    except ValueError:
        return None


@dataclass(eq=False)
class RowWork:
    """A row that can be computed. tokens: of its prompt; rows are sorted by them. scored: sequences that run before
    the request without new tokens. answer: makes the JSON to keep of the completions.
    """

    request: Request
    tokens: List[int]
    answer: Callable[[List[Completion]], Any]
    scored: list[Sequence] = field(default_factory=list)


class Task(ABC):
    """The work of a batch on its rows. Nothing of it depends on other rows or on how they are computed.

    id_field: a column whose values must differ.
    """

    id_field: str | None = None

    @abstractmethod
    def check(self, columns: Columns) -> None:
        """Raise RequestError for an input without the columns that are needed; before a model is loaded."""

    def begin(self, core: Core) -> None:  # noqa: B027  (not every task has something to do then)
        """Begin with a model that is loaded: called before everything below."""

    @abstractmethod
    def facts(self, core: Core) -> Json:
        """Return what the answers depend on beside rows and model."""

    @abstractmethod
    def columns(self, columns: Columns) -> Columns:
        """Return the columns of the output."""

    @abstractmethod
    def prepare(self, core: Core, row: TableRow, key: Key) -> RowWork:
        """Prepare a row to be computed. An exception is the row's own error, which `refusal` makes an answer of."""

    @abstractmethod
    def refusal(self, row: TableRow, key: Key, error: Exception) -> Any:
        """Make the answer of a row that is refused, or has failed. Any other error is raised again."""

    @abstractmethod
    def output(self, row: TableRow, key: Key, answer: Any) -> Json:
        """Make the row of the output."""

    @abstractmethod
    def key_of(self, written: Json) -> object:
        """Return the key that a row of the output holds, if it is of this task."""

    @abstractmethod
    def has_failed(self, answer: Any) -> bool:
        """Tell whether an answer is an error."""
