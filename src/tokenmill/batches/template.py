"""Tables: a prompt is made of the columns of each row, and the answer stands in new columns beside them."""

import string
from abc import abstractmethod
from collections.abc import Callable, Collection
from collections.abc import Sequence as List
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tokenmill.batches.formats.table_format import cell
from tokenmill.batches.row import Columns, Json, TableRow
from tokenmill.batches.task import Key, RowWork, Task
from tokenmill.engine.core import Core
from tokenmill.engine.outputs import Completion
from tokenmill.errors import ConfigError, RequestError, TokenmillError
from tokenmill.settings.sampling_params import SamplingParams
from tokenmill.value_reader import brief

TEXT = "generated_text"
OF_EACH = {TEXT: "text", "finish_reason": "text", "completion_tokens": "int"}  # of each of n continuations
KEY, ERROR = "row_key", "error"
OF_ROW = {"prompt_tokens": "int", "seed": "int", KEY: "text", ERROR: "text"}


class Template:
    """Text with the names of columns in braces: 'Translate: {text}'. Braces that are meant are doubled."""

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            self._parts = list(string.Formatter().parse(text))
        except ValueError as error:
            raise ConfigError(
                "prompt", text, f"names of columns in braces, and other braces doubled ({error})"
            ) from None
        for _, name, form, conversion in self._parts:
            if name is not None and (form or conversion or not name):
                raise ConfigError("prompt", text, "names of columns alone in braces, as {text}")
        self.names = list(dict.fromkeys(name for _, name, *_ in self._parts if name is not None))
        if not self.names:
            raise ConfigError("prompt", text, "a text with at least one column in braces, or all rows say the same")

    def filled(self, values: Json) -> str:
        """Fill in the values of a row."""
        return "".join(part + ("" if name is None else cell(value_in(values, name))) for part, name, *_ in self._parts)


class NewColumns(Task):
    """A task whose answers stand in new columns of the table. prefix: stands before the name of each new column."""

    prefix: str

    @property
    @abstractmethod
    def needed(self) -> list[str]:
        """The columns that the input must have."""

    @abstractmethod
    def new_columns(self) -> Columns:
        """Return the new columns, without the prefix."""

    def check(self, columns: Columns) -> None:
        there = ", ".join(map(brief, columns)) or "none"
        if missing := [name for name in self.needed if name not in columns]:
            raise RequestError(f"the input has no column {missing[0]!r}; its columns are {there}")
        if taken := [name for name in map(self._named, self._reserved()) if name in columns]:
            raise RequestError(
                f"the input has a column {taken[0]!r}, which is one of the new ones: give these another prefix "
                "(output_prefix), as in judge_"
            )

    def _reserved(self) -> Collection[str]:
        """Return the names that new columns may have, known before the model is."""
        return self.new_columns()

    def _named(self, name: str) -> str:
        return self.prefix + name

    def columns(self, columns: Columns) -> Columns:
        """Return the new columns too."""
        return columns | {self._named(name): kind for name, kind in self.new_columns().items()}

    def refusal(self, row: TableRow, key: Key, error: Exception) -> Any:
        if not isinstance(error, TokenmillError):
            raise error
        return {ERROR: str(error)}

    def output(self, row: TableRow, key: Key, answer: Any) -> Json:
        names = self.columns({})
        new = {self.prefix + name: value for name, value in answer.items()}
        return {**(row.values or {}), **dict.fromkeys(names), **new, self._named(KEY): key.text}

    def key_of(self, written: Json) -> object:
        return written.get(self._named(KEY))

    def has_failed(self, answer: Any) -> bool:
        return ERROR in answer


@dataclass(eq=False)
class TableTask(NewColumns):
    """A task for tables. template or column: what a row's prompt is. as_chat: whether it is asked through the chat
    template, after `system`.

    params: of every row, without its seed. settings: makes these once the model is loaded, since its files may
    recommend some. prefix: of the names of new columns.
    """

    settings: Callable[[Core], SamplingParams]
    template: Template | None = None
    column: str | None = None
    as_chat: bool = False
    system: str | None = None
    prefix: str = ""
    params: SamplingParams = field(default_factory=SamplingParams, init=False)

    @property
    def needed(self) -> list[str]:
        return [self.column] if self.column is not None else self.template.names if self.template else []

    def _reserved(self) -> Collection[str]:
        return (*OF_EACH, "logprobs", *OF_ROW)

    def begin(self, core: Core) -> None:
        self.params = self.settings(core)

    def facts(self, core: Core) -> Json:
        params = asdict(self.params)
        params["logit_bias"] = {str(token): value for token, value in params["logit_bias"].items()}
        prompt = self.template.text if self.template else None
        asked = {"prompt": prompt, "column": self.column, "chat": self.as_chat, "system": self.system}
        return {"kind": "table", **asked, "output_prefix": self.prefix, **params}

    def new_columns(self) -> Columns:
        """Return the new columns. With several continuations some hold lists."""
        params = self.params
        listed = "list of " if params.n > 1 else ""
        new = {name: listed + kind for name, kind in OF_EACH.items()}
        new |= {"logprobs": "json"} if params.logprobs is not None else {}
        return new | OF_ROW

    def prepare(self, core: Core, row: TableRow, key: Key) -> RowWork:
        if row.values is None:
            raise RequestError(row.problem)
        params = self.params
        seed = key.seed if params.seed is None else params.seed
        tokens = self._tokens(core, row.values)
        request = core.request(tokens, replace(params, seed=seed))
        return RowWork(request, tokens, lambda completions: self._answer(completions, params, len(tokens), seed))

    def _tokens(self, core: Core, values: Json) -> list[int]:
        prompt: Any = self.template.filled(values) if self.template else value_in(values, str(self.column))
        if isinstance(prompt, str) or not isinstance(prompt, list):
            prompt = cell(prompt)
            if not self.as_chat:
                return core.inputs.encode(prompt)
            prompt = [{"role": "user", "content": prompt}]
        if not self.as_chat:
            return core.inputs.encode(prompt)
        first = [] if self.system is None else [{"role": "system", "content": self.system}]
        return core.inputs.chat_prompt([*first, *prompt])

    def _answer(self, completions: List[Completion], params: SamplingParams, num_prompt: int, seed: int) -> Json:
        found: Json = {
            TEXT: [done.text for done in completions],
            "finish_reason": [done.finish_reason for done in completions],
            "completion_tokens": [len(done.tokens) for done in completions],
        }
        if params.logprobs is not None:
            found["logprobs"] = [_entries(done) for done in completions]
        if params.n == 1:
            found = {name: values[0] for name, values in found.items()}
        return found | {"prompt_tokens": num_prompt, "seed": seed}


def _entries(done: Completion) -> list[Json]:
    """Return for each token its id, its log-probability and rank, and the likeliest (id, log-probability) there."""
    return [
        {"token": token, "logprob": each.logprob, "rank": each.rank, "top": [list(pair) for pair in each.top]}
        for token, each in zip(done.tokens, done.logprobs or ())
    ]


def value_in(values: Json, name: str) -> Any:
    """Return the value of a row in a column; RequestError where there is none."""
    if (value := values.get(name)) is None:
        raise RequestError(f"the row has no value in column {name!r}")
    return value
