"""Embeddings: a vector for each text, pooled from the rows that the model's head reads of its tokens.

Rows are added up one by one in float64, in the order of the tokens, so a vector does not depend on the chunks and
batches in which the rows were computed. The pooling is by the model's own files, see weights/pooling.py.
"""

from collections.abc import Callable, Sized
from collections.abc import Sequence as List
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tokenmill.engine.core import Core, Held
from tokenmill.engine.mtp import refuse_rows
from tokenmill.engine.requests import Prompt, batch_of, for_each
from tokenmill.errors import CheckpointError, ConfigError, RequestError, overflow_remedy
from tokenmill.hub.names import locate
from tokenmill.program.hidden_rows import HiddenRows, RowsRunner
from tokenmill.schedule.sequence import Plan, Sequence
from tokenmill.value_reader import brief
from tokenmill.weights.dense_step import DenseStep, Floats, dense_step
from tokenmill.weights.pooling import POOLINGS, TextPooling, pooling_of

_FILES: WeakKeyDictionary[Core, TextPooling] = WeakKeyDictionary()
_STEPS: WeakKeyDictionary[Core, tuple[Callable[[Floats], Floats], ...]] = WeakKeyDictionary()


class TextVectors(NamedTuple):
    """Vectors [N, D] float32 on the CPU, and the number of tokens of each text."""

    vectors: Tensor
    num_tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pooling:
    """How vectors are made. row_steps: what is computed of each row before it is pooled, in float32, a row by itself;
    steps: what is computed of each pooled row. dimensions: the first so many numbers are kept
    then; normalize: to length 1, after that.
    """

    pooling: str
    normalize: bool
    dimensions: int
    steps: tuple[Callable[[Floats], Floats], ...] = ()
    row_steps: tuple[Callable[[Floats], Floats], ...] = ()


class PooledText:
    """The rows of one text: their weighted sum, or one of them."""

    def __init__(self, how: Pooling, num_tokens: int) -> None:
        self._pooling, self._row_steps, self._num_tokens, self._end = how.pooling, how.row_steps, num_tokens, 0
        self._sum: NDArray[np.float64] | None = None

    def add(self, start: int, rows_TD: Tensor) -> None:
        """Add the rows of tokens from `start` on. Rows that came before a preemption come again."""
        first, last = self._num_tokens - 1, self._num_tokens
        if self._pooling != "last":
            first, last = self._end, 1 if self._pooling == "cls" else last
        rows_TD = rows_TD[max(first - start, 0) : max(last - start, 0)]
        if not len(rows_TD):
            return
        begin, rows = max(first, start), rows_TD.double().cpu().numpy()
        assert self._pooling == "last" or begin == self._end, "no row of the text is missing"
        if self._row_steps:
            rows = np.stack([_computed(row, self._row_steps) for row in rows])
        if self._pooling == "weighted":
            rows = rows * np.arange(begin + 1, begin + len(rows) + 1)[:, None]
        rows = rows if self._sum is None else np.concatenate((self._sum[None], rows))
        self._sum = np.add.accumulate(rows)[-1]  # one by one, in this order
        self._end = begin + len(rows_TD)

    def vector(self, how: Pooling) -> NDArray[np.float32]:
        """Make the vector, once all rows are there."""
        assert self._sum is not None and self._end in (1, self._num_tokens)
        found = self._sum
        if self._pooling == "mean":
            found = found / self._num_tokens
        elif self._pooling == "weighted":
            found = found / (self._num_tokens * (self._num_tokens + 1) / 2)
        if not np.isfinite(found).all():  # an activation could hide it
            return np.full(how.dimensions, np.nan, np.float32)
        found = _computed(found, how.steps)[: how.dimensions]
        return (_unit(found) if how.normalize else found).astype(np.float32)


def _computed(row: NDArray[np.float64], steps: List[Callable[[Floats], Floats]]) -> NDArray[np.float64]:
    """Apply steps one after the other, each in float32."""
    for step in steps:
        row = step(row.astype(np.float32)).astype(np.float64)
    return row


def _unit(x: NDArray[Any]) -> NDArray[Any]:
    """Bring a vector to length 1."""
    return x / max(float(np.sqrt(np.sum(np.square(x, dtype=np.float64)))), 1e-12)


class _PooledRows:
    """The texts that are embedded now. others: what the runner handed rows to before, which drafts read."""

    def __init__(self, others: HiddenRows | None) -> None:
        self.texts: WeakKeyDictionary[Sequence, PooledText] = WeakKeyDictionary()
        self._others = others

    def given(self, plan: Plan) -> Tensor | None:
        return None if self._others is None else self._others.given(plan)

    def save(self, plan: Plan, firsts: List[int], hidden_TD: Tensor) -> None:
        for work, first in zip(plan.work, firsts, strict=True):
            if (text := self.texts.get(work.sequence)) is not None:
                text.add(work.start, hidden_TD[first : first + work.count])
        if self._others is not None:
            self._others.save(plan, firsts, hidden_TD)


def embed(
    core: Core,
    texts: Prompt | List[Prompt],
    pooling: str | None = None,
    dimensions: int | None = None,
    normalize: bool | None = None,
    prompt_name: str | None = None,
    truncate: bool = False,
    salt: bytes = b"",
    is_given_up: Callable[[], bool] = lambda: False,
    adapter: str | None = None,
) -> TextVectors:
    """Compute a vector for each text, or list of token ids; max_sequences of them run together.

    pooling, normalize: in the place of what the model's files say. prompt_name: of a prompt in the model's files that
    stands before each text, "" for none; without it their default stands there, if they have one. truncate: a text that
    is longer than max_length, or than the files say, is cut at its end, not refused. salt, adapter: see
    Core.request. is_given_up: asked in the engine's thread after each step. RequestError then, for an empty text, and
    for vectors that are no numbers; ConfigError where the program does not hand out rows.
    """
    core.check_open()
    how, encoded = settled(core, pooling, dimensions, normalize, prompt_name, truncate)
    tokens = for_each("text", batch_of(texts)[0], encoded)
    found = vectors(core, tokens, how, salt, is_given_up, core.adapter(adapter))
    return TextVectors(torch.from_numpy(found), tuple(map(len, tokens)))


def settled(
    core: Core,
    pooling: str | None,
    dimensions: int | None,
    normalize: bool | None,
    prompt_name: str | None,
    truncate: bool,
) -> tuple[Pooling, Callable[[Prompt], list[int]]]:
    """Settle how vectors are made, see `embed`, and return a function that encodes a text for it."""
    if allowed := refuse_rows(core.loaded):
        raise ConfigError("program", core.loaded.program_name, f"for embeddings, {allowed}")
    files = _files(core)
    steps, size = _steps(core), num_dimensions(core)
    how = Pooling(
        files.pooling if pooling is None else pooling,
        files.normalize if normalize is None else normalize,
        size if dimensions is None else dimensions,
        steps,
    )
    if not isinstance(how.pooling, str) or how.pooling not in POOLINGS:
        raise RequestError(f"pooling = {brief(how.pooling)}: one of {', '.join(POOLINGS)}")
    if type(how.dimensions) is not int or not 1 <= how.dimensions <= size:
        raise RequestError(f"dimensions = {brief(dimensions)}: a whole number from 1 to {size}, as this model has")
    prompt, max_length = _prompt(files, prompt_name), core.loaded.config.max_length
    limit = max_length if files.max_tokens is None else min(files.max_tokens, max_length)
    tokenizer = core.loaded.tokenizer
    added = [] if tokenizer is None else tokenizer.encode("")

    def encoded(text: Prompt) -> list[int]:
        if isinstance(text, Sized) and not len(text):
            raise RequestError("it is empty")
        if isinstance(text, str):
            text = (prompt + text).strip() if files.strips else prompt + text
            text = text.lower() if files.lowers else text
        tokens = core.inputs.encode(text)
        tokens = _cut(tokens, added, limit) if truncate and len(tokens) > limit else tokens
        if limit < len(tokens) <= max_length:
            raise RequestError(f"{len(tokens)} tokens are over the {limit} for which its files say that it was made")
        core.inputs.check_length(len(tokens))
        return tokens

    return how, encoded


def vectors(
    core: Core,
    tokens: List[list[int]],
    how: Pooling,
    salt: bytes,
    is_given_up: Callable[[], bool],
    adapter: Any = None,
) -> NDArray[np.float32]:
    """Compute the vector of each list of token ids, [N, D]. RequestError where its numbers are not finite."""
    found: dict[int, NDArray[np.float32]] = {}
    waiting, running = enumerate(tokens), dict[int, tuple[Sequence, PooledText, Held]]()

    def start(number: int, ids: list[int]) -> None:
        sequence, text = pooled(core, ids, how, salt, adapter)
        running[number] = sequence, text, Held(core, sequence)
        core.enqueue(sequence)

    def ended() -> list[int] | None:
        if is_given_up():
            raise RequestError("this was given up before its end")
        for sequence, _, _ in running.values():
            core.check_scored(sequence)
        return [number for number, (each, _, _) in running.items() if each.finish_reason is not None] or None

    try:
        while True:
            for number, ids in islice(waiting, core.loaded.config.max_sequences - len(running)):
                start(number, ids)
            if not running:
                made = np.array([found[number] for number in range(len(tokens))], np.float32)
                check_finite(core, made)
                return made.reshape(len(tokens), how.dimensions)
            for number in core.wait(ended):
                _, text, held = running.pop(number)
                found[number] = text.vector(how)
                held.release()
    finally:
        for _, _, held in running.values():
            held.release()


def pooled(core: Core, tokens: List[int], how: Pooling, salt: bytes, adapter: Any) -> tuple[Sequence, PooledText]:
    """Make the sequence of a text, which can be queued, and what pools its rows."""
    sequence, text = (
        core.inputs.kept(list(tokens), len(tokens) - 1, salt, adapter),
        PooledText(how, len(tokens)),
    )
    # Rows that are found in the cache are not computed, so only the last row may be pooled beside them. And rows that
    # see later tokens are of use to no other text.
    sequence.kept.is_own = how.pooling == "last" and not core.loaded.model_config.both_ways

    def follow() -> None:
        core.check_open()
        _rows(core).texts[sequence] = text

    core.call(follow)
    return sequence, text


def check_finite(core: Core, made: NDArray[np.float32]) -> None:
    """Raise RequestError if a vector has a number that is not finite."""
    if not np.isfinite(made).all():
        dtype = core.loaded.config.dtype
        raise RequestError(f"numbers of a vector overflow in dtype {dtype}; {overflow_remedy(dtype)}")


def _rows(core: Core) -> _PooledRows:
    """Have the runner hand out rows from the next step on. Called between two steps."""
    runner = core.loaded.runner
    if isinstance(runner, RowsRunner) and isinstance(runner.rows, _PooledRows):
        return runner.rows
    rows = _PooledRows(runner.rows if isinstance(runner, RowsRunner) else None)
    core.loaded.runner = RowsRunner(runner, rows)
    return rows


def _files(core: Core) -> TextPooling:
    if core not in _FILES:
        _FILES[core] = pooling_of(locate(core.loaded.config.model))
    return _FILES[core]


def says_pooling(core: Core) -> bool:
    """Say whether the model's files tell a pooling."""
    return _files(core).is_told


def num_dimensions(core: Core) -> int:
    """Count the numbers of a vector."""
    sizes = [len(step.weight) for step in _steps(core) if isinstance(step, DenseStep)]
    return [core.loaded.model_config.hidden_size, *sizes][-1]


def _steps(core: Core) -> tuple[Callable[[Floats], Floats], ...]:
    """Read the matrices of the model's files when a vector is first made."""
    if core not in _STEPS:
        steps = [_unit if folder is None else dense_step(folder) for folder in _files(core).steps]
        size = core.loaded.model_config.hidden_size
        for folder, step in zip(_files(core).steps, steps, strict=True):
            if isinstance(step, DenseStep):
                if step.weight.shape[1] != size:
                    raise CheckpointError(f"{folder} multiplies {step.weight.shape[1]} numbers, and it gets {size}")
                size = len(step.weight)
        _STEPS[core] = tuple(steps)
    return _STEPS[core]


def _prompt(files: TextPooling, name: str | None) -> str:
    name = files.default_prompt if name is None else name
    if name is None or name == "":
        return ""
    if not isinstance(name, str) or name not in files.prompts:
        known = ", ".join(files.prompts) or "none"
        raise RequestError(f"prompt_name = {brief(name)}: this model's files have {known}")
    return files.prompts[name]


def _cut(tokens: list[int], added: list[int], limit: int) -> list[int]:
    """Cut a text to so many tokens, and keep the token that the tokenizer puts behind each."""
    is_behind = len(added) > 0 and tokens[-1] == added[-1]
    return [*tokens[: limit - 1], tokens[-1]] if is_behind else tokens[:limit]
