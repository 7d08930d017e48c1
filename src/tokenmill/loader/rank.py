"""The process of every rank but 0: it loads its part of a model and computes the steps of rank 0 until that ends.

python -m tokenmill.loader.rank DESCRIPTOR # the socket over which rank 0 says what to load
"""

import os
import socket
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenmill.errors import TokenmillError
from tokenmill.loader.load_model import load_model, resolve_checkpoint
from tokenmill.loader.loaded import LoadedModel
from tokenmill.loader.ranks import InSharedMemory, versions
from tokenmill.memory.arena import SharedMemory
from tokenmill.parallel.division import Rank
from tokenmill.parallel.ranks import Ranks, receive, send
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.weights.checkpoint import Checkpoint, open_checkpoint
from tokenmill.weights.packed.model import PackedCheckpoint


def main(descriptor: int) -> int:
    """Load and follow; return the exit code, which is 0 where rank 0 ended first."""
    with socket.socket(fileno=descriptor) as rank_0:
        if (told := receive(rank_0)) is None:
            return 0
        threading.Thread(target=_end_with, args=(rank_0,), daemon=True).start()
        try:
            load_rank(told).program.follow()
        except Exception as error:  # noqa: BLE001  (whatever it is, rank 0 raises it)
            named = str(error) if isinstance(error, TokenmillError) else f"{type(error).__name__}: {error}"
            send(rank_0, {"error": named})
            return 1
    return 0


def _end_with(rank_0: socket.socket) -> None:
    """End this process as soon as rank 0 has ended, whatever is being computed."""
    receive(rank_0)
    os._exit(0)


def load_rank(told: dict[str, Any]) -> LoadedModel:
    """Load what rank 0 says; TokenmillError where versions or the model differ from rank 0's."""
    config, model = EngineConfig(**told["settings"]), Path(told["model"])
    _check_same("versions", versions(), told["versions"])
    checkpoint = _open(model, told["packed"])
    steps, cache = map(SharedMemory, told["shared"])
    side = InSharedMemory(checkpoint, Ranks(Rank(*told["rank"]), steps, cache))
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
