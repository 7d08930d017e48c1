"""Adapters where a model is divided among ranks: rank 0 reads one, and hands it to the others under a number.

Steps name the numbers. A rank that cannot take an adapter says why, and goes on as before; so do the others.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import fields
from itertools import count
from typing import Any
from weakref import finalize

from torch import Tensor

from tokenmill.errors import CheckpointError
from tokenmill.registry import ADAPTED, lookup
from tokenmill.weights.adapters.adapter import Adapter, Change, EmbeddingChange

Tensors = Mapping[str, Tensor]
Ask = Callable[[dict[str, Any], Tensors], list[Any]]
"""Sends facts and tensors to every other rank; returns the answer of each."""

COMMAND = "adapter"
NUMBER = "number"  # of an adapter, in what is prepared of it


class HandsOn:
    """A program that may have other ranks."""

    def hand_on(self, adapter: Adapter | None) -> None:
        """Have the other ranks take an adapter that this one has prepared; see HandedAdapters."""
        raise NotImplementedError


class HandedAdapters:
    """Rank 0's side."""

    def __init__(self, ask: Ask) -> None:
        self._ask, self._numbers, self._forgotten = ask, count(), deque[int]()

    def hand_on(self, adapter: Adapter | None) -> list[Any]:
        """Have the other ranks take an adapter, and forget those that rank 0 has forgotten; None: the latter alone.

        Returns what the program of each has made of it. CheckpointError with the reason of a rank that cannot take it.
        """
        forgotten = [self._forgotten.popleft() for _ in range(len(self._forgotten))]
        if adapter is None:
            return self._ask({"forgotten": forgotten}, {}) if forgotten else []
        adapter.prepared[NUMBER] = number = next(self._numbers)
        finalize(adapter, self._forgotten.append, number).atexit = False
        facts, tensors = written(adapter)
        answers = self._ask({"forgotten": forgotten, "number": number, **facts}, tensors)
        for rank, answer in enumerate(answers, start=1):
            if "error" in answer:
                what = f"cannot take it: {answer['error']}; every rank goes on without it"
                raise CheckpointError(f"adapter {adapter.name} ({adapter.path}): rank {rank} {what}")
        return [answer["made"] for answer in answers]


class TakenAdapters:
    """The side of another rank. made: gives what rank 0 is to know of an adapter that the program has prepared."""

    def __init__(self, program: Any, program_name: str, made: Callable[[Adapter], Any]) -> None:
        self._program, self._name, self._made = program, program_name, made
        self._by_number: dict[int, Adapter] = {}

    def forget(self, facts: Mapping[str, Any]) -> None:
        """Forget the adapters that a command of rank 0 names so. No later step names them."""
        for number in facts["forgotten"]:
            self._by_number.pop(number, None)

    def take(self, facts: Mapping[str, Any], tensors: Tensors) -> dict[str, Any]:
        """Take the adapter of a command, beside the steps of other threads; return the answer to the command."""
        if "number" not in facts:
            return {"made": None}
        try:
            adapter = read_written(facts, tensors)
            lookup(ADAPTED, self._name, "program")(self._program, adapter)
        except Exception as error:  # noqa: BLE001  (whatever it is, rank 0 raises it)
            return {"error": str(error) or repr(error)}
        self._by_number[facts["number"]] = adapter
        return {"made": self._made(adapter)}

    def find(self, number: int | None) -> Adapter | None:
        """Find the adapter with which rows of a step are computed."""
        return None if number is None else self._by_number[number]


def written(adapter: Adapter) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Write an adapter as JSON and tensors, each of which has memory of its own."""
    tensors = dict[str, Tensor]()

    def parts(holder: Change | EmbeddingChange) -> dict[str, Any]:
        facts = {}
        for each in fields(holder):
            value = getattr(holder, each.name)
            if isinstance(value, Tensor):
                key = str(len(tensors))
                tensors[key], value = value.clone(), {"tensor": key}
            facts[each.name] = value
        return facts

    facts = {
        "name": adapter.name,
        "path": adapter.path,
        "digest": adapter.digest.hex(),
        "changes": {path: [parts(change) for change in changes] for path, changes in adapter.changes.items()},
        "embedding": None if adapter.embedding is None else parts(adapter.embedding),
    }
    return facts, tensors | {f"norm {name}": tensor.clone() for name, tensor in adapter.norms.items()}


def read_written(facts: Mapping[str, Any], tensors: Tensors) -> Adapter:
    """Read an adapter that was written so."""

    def values(told: Mapping[str, Any]) -> dict[str, Any]:
        found = {key: tensors[each["tensor"]] if isinstance(each, dict) else each for key, each in told.items()}
        return found | ({"ids": tuple(found["ids"])} if "ids" in found else {})

    changes = {path: tuple(Change(**values(each)) for each in told) for path, told in facts["changes"].items()}
    embedding = None if facts["embedding"] is None else EmbeddingChange(**values(facts["embedding"]))
    norms = {name.removeprefix("norm "): tensor for name, tensor in tensors.items() if name.startswith("norm ")}
    return Adapter(facts["name"], facts["path"], bytes.fromhex(facts["digest"]), changes, embedding, norms)
