"""The context of a conversation: how many tokens it holds, and what to do near its end."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tokenmill.errors import RequestError
from tokenmill.settings.sampling_params import SamplingParams

if TYPE_CHECKING:
    from tokenmill.engine.engine import Engine

NEAR_TOKENS = 128
"""A conversation with fewer tokens left than these, or than a tenth of all, is near its end."""


@dataclass(frozen=True)
class ContextLimit:
    """The limit of a conversation: num_tokens. option: what sets it, as it is typed. context: the model's own limit."""

    num_tokens: int
    option: str
    context: int

    def for_answer(
        self, params: SamplingParams, num_prompt: int, num_compacted: int | None, is_rest: bool = False
    ) -> SamplingParams:
        """Set max_new_tokens to all that is left, or to fewer if params say so. RequestError if no token is left.

        num_compacted: tokens that /compact would leave at least; None if it has nothing to drop. is_rest: whether the
        rest of an answer is asked for.
        """
        left = self.num_tokens - num_prompt
        if left < 1:
            again = "/continue goes on" if is_rest else "/retry asks again"
            helps = num_compacted is not None and self.has_room(num_compacted)
            compact = f"/compact drops the oldest turns, then {again}; " if helps else ""
            raise RequestError(
                f"there is no room for an answer: the conversation would have {num_prompt + 1} tokens at least, and "
                f"{self.option} is {self.num_tokens}; {compact}/undo forgets the last question; "
                f"{self._more(num_prompt)}"
            )
        wanted = left if params.max_new_tokens in (None, -1) else min(params.max_new_tokens, left)
        return replace(params, max_new_tokens=wanted, min_new_tokens=min(params.min_new_tokens, wanted))

    def is_full(self, num_used: int) -> bool:
        """Tell whether not one token fits any more."""
        return num_used >= self.num_tokens

    def has_room(self, num_prompt: int) -> bool:
        """Tell whether an answer to a prompt of this length may have a token."""
        return num_prompt < self.num_tokens

    def warning(self, num_used: int, num_turns: int, num_compacted: int | None) -> str:
        """Advise on a conversation that is near its end; empty for any other. num_compacted: as for for_answer."""
        left = self.num_tokens - num_used
        if left >= max(self.num_tokens // 10, min(NEAR_TOKENS, self.num_tokens // 2)):
            return ""
        drops = f"/undo forgets the {'last' if num_turns > 1 else 'one'} turn"
        if num_compacted is not None and self.has_room(num_compacted):
            drops = "/compact drops the oldest turns, /undo the last one"
        return f"{left} of {self.num_tokens} tokens are left: {drops}; {self._more(num_used)}"

    def _more(self, num_used: int) -> str:
        wanted = 2 * self.num_tokens
        while wanted <= num_used + NEAR_TOKENS:
            wanted *= 2
        if self.option == "--max-length":
            if self.num_tokens >= self.context:
                return f"{self.context} is the model's own context"
            wanted = min(wanted, self.context)
        return f"`tokenmill chat {self.option} {wanted}` has more room"


def context_limit_of(engine: "Engine") -> ContextLimit:
    """Return the limit of one conversation: the maximum length, or the whole cache where that is smaller."""
    config, context = engine.config, engine.model_config.context
    num_slots = engine.core.loaded.pool.spec.num_slots
    if num_slots < config.max_length:
        return ContextLimit(num_slots, "--cache-tokens", context)
    return ContextLimit(config.max_length, "--max-length", context)
