"""tokenmill turns prompts into tokens: prefill, then decoding over a KV cache, the same text however it was computed.

import tokenmill

engine = tokenmill.load("smollm2-135m")
print(engine.generate("Why is the sky blue?", max_new_tokens=64).text)

Only the names below are public. They are imported on first use: `tokenmill --help` needs no torch, and Ctrl-C finds
cli/process/start.py in charge as soon as anything takes time.
"""

# Here, so that a fork is noted from now on.
from tokenmill.process import is_forked_thread as is_forked_thread
from tokenmill.version import __version__ as __version__

# Type checkers know this name. Importing it from `typing` takes milliseconds, in which Ctrl-C would show a traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tokenmill.engine.batch import Score
    from tokenmill.engine.beam import Beam
    from tokenmill.engine.core import Core
    from tokenmill.engine.engine import Engine
    from tokenmill.engine.load import load
    from tokenmill.engine.outputs import Completion, Piece, Stream, Timing
    from tokenmill.engine.requests import Request
    from tokenmill.engine.session import Session
    from tokenmill.errors import (
        CapacityError,
        CheckpointError,
        ConfigError,
        DeadlinePassed,
        NoKernel,
        NumberTooLarge,
        PackageMismatch,
        PackedModelError,
        RankLost,
        ReceiptError,
        RequestError,
        SnapshotError,
        TokenmillError,
        WrongText,
    )
    from tokenmill.receipts.receipt import Receipt
    from tokenmill.receipts.verification import Verification
    from tokenmill.sample.logprobs import TokenLogprobs
    from tokenmill.settings.engine_config import EngineConfig
    from tokenmill.settings.sampling_params import SamplingParams
    from tokenmill.weights.adapters.adapter import Adapter


__all__ = [
    "Adapter",
    "Beam",
    "CapacityError",
    "CheckpointError",
    "Completion",
    "ConfigError",
    "Core",
    "DeadlinePassed",
    "Engine",
    "EngineConfig",
    "NoKernel",
    "NumberTooLarge",
    "PackageMismatch",
    "PackedModelError",
    "Piece",
    "RankLost",
    "Receipt",
    "ReceiptError",
    "Request",
    "RequestError",
    "SamplingParams",
    "Score",
    "Session",
    "SnapshotError",
    "Stream",
    "Timing",
    "TokenLogprobs",
    "TokenmillError",
    "Verification",
    "WrongText",
    "load",
]

_ELSEWHERE = {
    "Adapter": "tokenmill.weights.adapters.adapter:Adapter",
    "Beam": "tokenmill.engine.beam:Beam",
    "Completion": "tokenmill.engine.outputs:Completion",
    "Core": "tokenmill.engine.core:Core",
    "Engine": "tokenmill.engine.engine:Engine",
    "EngineConfig": "tokenmill.settings.engine_config:EngineConfig",
    "Piece": "tokenmill.engine.outputs:Piece",
    "Receipt": "tokenmill.receipts.receipt:Receipt",
    "Request": "tokenmill.engine.requests:Request",
    "SamplingParams": "tokenmill.settings.sampling_params:SamplingParams",
    "Score": "tokenmill.engine.batch:Score",
    "Session": "tokenmill.engine.session:Session",
    "Stream": "tokenmill.engine.outputs:Stream",
    "Timing": "tokenmill.engine.outputs:Timing",
    "TokenLogprobs": "tokenmill.sample.logprobs:TokenLogprobs",
    "Verification": "tokenmill.receipts.verification:Verification",
    "load": "tokenmill.engine.load:load",
}
_LAZY = {name: f"tokenmill.errors:{name}" for name in __all__ if name not in _ELSEWHERE} | _ELSEWHERE


def __getattr__(name: str) -> "Any":
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tokenmill.registry import lookup  # noqa: PLC0415

    return lookup(_LAZY, name, "name")
