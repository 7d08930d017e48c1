"""tokenmill turns prompts into tokens: prefill, then decoding over a KV cache, the same text however it was computed.

import tokenmill

engine = tokenmill.load("smollm2-135m")
print(engine.generate("Why is the sky blue?", max_new_tokens=64).text)

Only the names below are public. They are imported on first use, so that `tokenmill --help` needs no torch.
"""

from typing import TYPE_CHECKING, Any

from tokenmill.config import EngineConfig, SamplingParams
from tokenmill.errors import (
    CapacityError,
    CheckpointError,
    ConfigError,
    NoKernel,
    RequestError,
    SnapshotError,
    TokenmillError,
)
from tokenmill.registry import resolve
from tokenmill.version import VERSION

if TYPE_CHECKING:
    from tokenmill.engine.build import load
    from tokenmill.engine.engine import Engine
    from tokenmill.engine.outputs import Completion, Piece
    from tokenmill.engine.session import Session

__version__ = VERSION

__all__ = [
    "CapacityError",
    "CheckpointError",
    "Completion",
    "ConfigError",
    "Engine",
    "EngineConfig",
    "NoKernel",
    "Piece",
    "RequestError",
    "SamplingParams",
    "Session",
    "SnapshotError",
    "TokenmillError",
    "load",
]

_LAZY = {
    "Completion": "tokenmill.engine.outputs:Completion",
    "Engine": "tokenmill.engine.engine:Engine",
    "Piece": "tokenmill.engine.outputs:Piece",
    "Session": "tokenmill.engine.session:Session",
    "load": "tokenmill.engine.build:load",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return resolve(_LAZY[name])
