"""How far the prompts of a request are computed, told while a client waits for the first token."""

import time
from collections.abc import Sequence as List

from tokenmill.schedule.sequence import Sequence
from tokenmill.serve.http.errors import Json


class PrefillProgress:
    """The progress of a request's prompts. Of several continuations of a prompt, the first computes it for all.

    It is read in the event loop while the engine's thread moves the sequences: whole numbers, which only grow, but for
    a sequence that is preempted, whose rows go and come back.
    """

    def __init__(self, sequences: List[Sequence]) -> None:
        number = sequences[0].choosing.params.n if sequences else 1
        self._firsts, self._begun_s = sequences[::number], time.perf_counter()
        self.total = sum(each.num_prompt_tokens for each in self._firsts)
        self._most, self._noted = 0, 0

    @property
    def processed(self) -> int:
        """Count the tokens of prompts whose rows are there, found ones among them."""
        self._most = max(self._most, sum(map(_processed, self._firsts)))
        return self._most

    def has_moved(self) -> bool:
        """Tell whether there is more than at the last call, and some is left. Called in the engine's thread."""
        before, self._noted = self._noted, self.processed
        return before < self._noted < self.total

    def told(self, processed: int) -> Json:
        """Write it as llama.cpp's `prompt_progress`."""
        cached = sum(each.num_cached_tokens or 0 for each in self._firsts)
        time_ms = round(1e3 * (time.perf_counter() - self._begun_s))
        return {"total": self.total, "cache": min(cached, processed), "processed": processed, "time_ms": time_ms}


def _processed(sequence: Sequence) -> int:
    own = sequence.num_prompt_tokens
    return own if len(sequence.tokens) > own else min(sequence.kept.num_computed, own)
