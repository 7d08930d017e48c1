"""What comes back: Completion when a sequence is done, Piece while it grows, Timing of both.

A Tracker follows one sequence from submission to its end: it turns accepted tokens into text that is safe to show,
notices stop strings, and keeps the clock readings from which every figure is derived.
"""

from collections.abc import Sequence as List
from dataclasses import dataclass, field
from hashlib import sha256

from tokenmill.sample.sampler import TokenLogprobs
from tokenmill.schedule.sequence import Sequence
from tokenmill.text.detokenize import Detokenizer
from tokenmill.text.tokenizer import Tokenizer

__all__ = ["Completion", "Piece", "Timing", "Tracker", "hash_tokens", "make_detokenizer"]


MOST_UNDECODED = 32
"""Tokens: together they cost a fraction of one by one, after a step each, and nobody else waits long for them."""


def hash_tokens(tokens: List[int]) -> str:
    """First 8 hex digits of SHA-256 over the ids as comma-separated decimals: comparable with any other engine's."""
    return sha256(",".join(map(str, tokens)).encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Timing:
    """Seconds. ttft_s: submission to first token. itl_s: gaps between the tokens after it. total_s: their sum."""

    ttft_s: float
    itl_s: tuple[float, ...]

    @property
    def total_s(self) -> float:
        """Submission to last token."""
        return self.ttft_s + sum(self.itl_s)

    @property
    def tokens_per_s(self) -> float:
        """Tokens after the first over the time they took; 0 when there is only one."""
        decode_s = sum(self.itl_s)
        return len(self.itl_s) / decode_s if decode_s else 0.0


@dataclass(frozen=True)
class Completion:
    """One finished sequence.

    tokens: the new ids only, the end-of-sequence token included where it ended so. finish_reason: "eos" for the model's
    own end, "stop" for a stop text or id, "length" for max_new_tokens or the context.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: str
    timing: Timing
    num_prompt_tokens: int
    seed: int
    logprobs: tuple[TokenLogprobs, ...] | None = None

    @property
    def hash(self) -> str:
        """See hash_tokens."""
        return hash_tokens(self.tokens)


@dataclass(frozen=True)
class Piece:
    """New text of a stream, and its tokens; `done` is set on the last piece."""

    text: str
    tokens: tuple[int, ...]
    done: Completion | None = None


@dataclass
class Tracker:
    """Follows one sequence. `started_s` is the clock at submission.

    Tokens become text when somebody asks for it, a few at a time if nobody does, and one by one where a stop string
    could end them.
    """

    sequence: Sequence
    detokenizer: Detokenizer | None
    started_s: float
    tokens: list[int] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    logprobs: dict[int, TokenLogprobs | None] = field(default_factory=dict)  # by position
    completion: Completion | None = None
    error: Exception | None = None
    _num_shown: int = field(default=0, init=False)  # characters of the text that were taken

    def push(self, tokens: List[int], now_s: float) -> bool:
        """Take in accepted tokens; True when a stop string has ended the text."""
        self.tokens += tokens
        self.times_s += [now_s] * len(tokens)
        if self.detokenizer is None:
            return False
        if self.detokenizer.has_stops or len(self.tokens) - self.detokenizer.num_tokens_used >= MOST_UNDECODED:
            self._decode()
        return self._cut()

    def take_text(self) -> str:
        """What is safe to show and has not been taken yet."""
        if self.detokenizer is None:
            return ""
        self._decode()
        text = self.detokenizer.text[self._num_shown :]
        self._num_shown += len(text)
        return text

    def _decode(self) -> None:
        if self.detokenizer is not None:
            # A token that stops the sequence is no text.
            end = len(self.tokens) - (self.sequence.finish_reason in ("eos", "stop"))
            self.detokenizer.push(self.tokens[self.detokenizer.num_tokens_used : end])

    def _cut(self) -> bool:
        """Whether a stop string was found; then what came after it is no output."""
        if self.detokenizer is None or self.detokenizer.stopped is None:
            return False
        del self.tokens[self.detokenizer.num_tokens_used :], self.times_s[self.detokenizer.num_tokens_used :]
        return True

    def finish(self, reason: str) -> None:
        """Flush what was held back and make the completion. A stop string may come to light only now."""
        self._decode()
        if self.detokenizer is not None:
            self.detokenizer.finish()
        if self._cut():
            reason = "stop"
        gaps = tuple(b - a for a, b in zip(self.times_s, self.times_s[1:], strict=False))
        first_s = self.times_s[0] - self.started_s if self.times_s else 0.0
        start = self.sequence.num_prompt_tokens
        noted = [entry for p in range(start, start + len(self.tokens)) if (entry := self.logprobs.get(p)) is not None]
        self.completion = Completion(
            text=self.detokenizer.text if self.detokenizer is not None else "",
            tokens=tuple(self.tokens),
            finish_reason=reason,
            timing=Timing(first_s, gaps),
            num_prompt_tokens=self.sequence.num_prompt_tokens,
            seed=self.sequence.seed,
            logprobs=None if self.sequence.params.logprobs is None else tuple(noted),
        )


def make_detokenizer(tokenizer: Tokenizer | None, sequence: Sequence) -> Detokenizer | None:
    """A detokenizer for what a sequence will say after its prompt, where there is a tokenizer."""
    if tokenizer is None:
        return None
    params, prompt = sequence.params, sequence.tokens[: sequence.num_prompt_tokens]
    return Detokenizer(tokenizer, stop=params.stop, include_stop=params.include_stop, prompt=prompt)
