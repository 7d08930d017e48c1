"""The loop of every peer program: one JSON object per line in on stdin, one per line out on stdout. No dependencies.

Import this first. From then on whatever a library prints goes to stderr, and stdout carries answers alone.
"""

import json
import os
import sys
import time
import traceback
from typing import Any, Protocol

answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)


class Peer(Protocol):
    """The interface that a peer program defines."""

    def load(self, model: str, threads: int, dtype: str, max_length: int, batch: int, **options: Any) -> dict[str, Any]:
        """Make ready for `batch` sequences of `max_length` tokens; gives versions and note."""

    def run(self, prompts: list[list[int]], new: int) -> dict[str, Any]:
        """Generate; gives prefill_s, decode_s, total_s and tokens."""


def serve(peer: Peer) -> None:
    """Answer requests until stdin ends."""
    for line in sys.stdin:
        request = json.loads(line)
        operation = peer.load if request.pop("op") == "load" else peer.run
        started_s = time.perf_counter()
        try:
            answer = {"ok": True, **operation(**request)}
        except Exception as error:  # noqa: BLE001  (whatever it is, the other side is told)
            traceback.print_exc()
            answer = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        if operation == peer.load:
            answer["load_s"] = time.perf_counter() - started_s
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def times(started_s: float, first_s: float, ended_s: float) -> dict[str, float]:
    """Compute the three durations out of three readings of the clock: start, first token of all, last token."""
    return {"prefill_s": first_s - started_s, "decode_s": ended_s - first_s, "total_s": ended_s - started_s}
