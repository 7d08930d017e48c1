"""The process of every rank but 0: it loads its part of a model and computes the steps of rank 0 until that ends.

python -m tokenmill.loader.rank DESCRIPTOR # the socket over which rank 0 says what to load, and which adapters to take
"""

import os
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenmill.cache.lent_pool import LentPool
from tokenmill.errors import TokenmillError
from tokenmill.loader.load_model import load_model, load_told, resolve_checkpoint
from tokenmill.loader.loaded import LoadedModel
from tokenmill.loader.ranks import InSharedMemory, versions
from tokenmill.memory.arena import SharedMemory
from tokenmill.model.families.mtp import MTP
from tokenmill.parallel.channel import Channel, Message
from tokenmill.parallel.division import Rank
from tokenmill.parallel.ranks import Ranks
from tokenmill.program.handed import COMMAND, TakenAdapters
from tokenmill.program.native.adapters import address_of
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.weights.checkpoint import Checkpoint, open_checkpoint
from tokenmill.weights.packed.model import PackedCheckpoint


def main(descriptor: int) -> int:
    """Load and follow; return the exit code, which is 0 where rank 0 ended first."""
    rank_0 = Channel(socket.socket(fileno=descriptor))
    try:
        told = rank_0.receive()
    except (EOFError, OSError):
        return 0
    whole, taken = Future[LoadedModel](), Future[TakenAdapters]()
    threading.Thread(target=_answer, args=(rank_0, whole, taken), daemon=True).start()
    with _telling(rank_0):
        loaded = load_rank(told.facts, told.shared)
        whole.set_result(loaded)
        taken.set_result(adapters_of(loaded))
        loaded.program.follow()
    return 0


@contextmanager
def _telling(rank_0: Channel) -> Iterator[None]:
    """Tell rank 0 of an error, which it raises, and end this process."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  (whatever it is, rank 0 raises it)
        named = str(error) if isinstance(error, TokenmillError) else f"{type(error).__name__}: {error}"
        with suppress(OSError):
            rank_0.send("error", named)
        os._exit(1)


def _answer(rank_0: Channel, whole: "Future[LoadedModel]", taken: "Future[TakenAdapters]") -> None:
    """Answer the commands of rank 0, and end this process as soon as it has ended, whatever is being computed."""
    with suppress(EOFError, OSError):
        while True:
            message = rank_0.receive()
            if message.name == "load":
                beside = rank_0, whole.result(), message
                threading.Thread(target=_follow_beside, args=beside, daemon=True).start()
            else:
                adapters = taken.result()
                adapters.forget(message.facts)
                rank_0.send(COMMAND, adapters.take(message.facts, message.tensors))
    os._exit(0)


def _follow_beside(rank_0: Channel, whole: LoadedModel, told: Message) -> None:
    """Load a layer beside the model, and compute its steps."""
    with _telling(rank_0):
        load_rank_beside(whole, told.facts, told.shared).program.follow()


def adapters_of(loaded: LoadedModel) -> TakenAdapters:
    """Make the adapters that a rank takes: rank 0 is told where in this rank's memory they are."""
    return TakenAdapters(loaded.program, loaded.program_name, address_of)


def load_rank_beside(whole: LoadedModel, told: dict[str, Any], shared: Sequence[int]) -> LoadedModel:
    """Load a layer of the model `whole` that rank 0 tells of, or an assistant, which reads rows of its cache."""
    path = Path(told["model"])
    pool = None if told["layers"] is None else LentPool(whole.pool, told["layers"])
    side = InSharedMemory(open_checkpoint(path, part=MTP), _ranks_of(told, shared), lent=pool)
    return load_told(path, whole.facts, whole.program, side, told)


def _ranks_of(told: dict[str, Any], shared: Sequence[int]) -> Ranks:
    return Ranks(Rank(*told["rank"]), *map(SharedMemory, shared))


def load_rank(told: dict[str, Any], shared: Sequence[int]) -> LoadedModel:
    """Load what rank 0 says; TokenmillError where versions or the model differ from rank 0's. shared: descriptors of
    the memory that the ranks share.
    """
    config, model = EngineConfig(**told["settings"]), Path(told["model"])
    _check_same("versions", versions(), told["versions"])
    checkpoint = _open(model, told["packed"])
    side = InSharedMemory(checkpoint, _ranks_of(told, shared))
    resolved = resolve_checkpoint(checkpoint, config)
    resolved = replace(resolved, cache=replace(resolved.cache, num_states=told["num_states"]))
    loaded = load_model(checkpoint, resolved, ranks=side)
    _check_same(str(model), dict(loaded.fingerprint), told["fingerprint"])
    return loaded


def _open(model: Path, packed: str | None) -> Checkpoint:
    if packed is None:
        return open_checkpoint(model)
    return PackedCheckpoint(Path(packed), copy_of=None if Path(packed) == model else model)


def _check_same(what: str, here: dict[str, str], there: dict[str, str]) -> None:
    """Raise TokenmillError where a value differs from rank 0's."""
    for name in sorted(here.keys() | there.keys()):
        if here.get(name) != there.get(name):
            raise TokenmillError(f"{what}: {name} is {here.get(name)} here and {there.get(name)} on rank 0")


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
