"""Requests: a prompt and its settings, checked before they are queued, as sequences that the scheduler can run.

No prompt is cut and no setting corrected silently. What cannot be served is refused; the message says by how much, and
which setting to change.
"""

import logging
import secrets
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from itertools import count
from operator import index
from typing import Any

from tokenmill.config import DEFAULT_MAX_NEW_TOKENS, ResolvedConfig, SamplingParams, from_keywords
from tokenmill.engine.outputs import Tracker
from tokenmill.errors import RequestError
from tokenmill.model.config import ModelConfig
from tokenmill.schedule.sequence import Sequence
from tokenmill.text.literal import encode_chat
from tokenmill.text.tokenizer import Tokenizer

__all__ = ["InputProcessor", "Prompt", "Request", "is_batch"]

log = logging.getLogger(__name__)

Prompt = str | List[int]


@dataclass(eq=False)
class Request:
    """One prompt and its n continuations, checked and not yet queued. Made by `Core.request`, queued by `Core.submit`.

    deadline_s: the core's clock when it fails if it has not ended; None for never. trackers: one for each
    continuation, once it is queued.
    """

    sequences: list[Sequence]
    deadline_s: float | None = None
    trackers: list[Tracker] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        """Whether every continuation has ended, well or with an error."""
        return bool(self.trackers) and all(each.has_ended for each in self.trackers)


class InputProcessor:
    """Turns prompts into the sequences of one model, and gives each sequence an id."""

    def __init__(
        self, config: ResolvedConfig, model: ModelConfig, tokenizer: Tokenizer | None, defaults: Mapping[str, Any]
    ) -> None:
        self._name, self._max_length = config.model, config.max_length
        self._model, self._tokenizer = model, tokenizer
        self.defaults = dict(defaults)  # sampling settings that the model's files recommend
        known = tokenizer.eos_token_ids if tokenizer is not None else ()
        ids = dict.fromkeys((*known, *model.eos_token_ids), "eos")
        self._eos = {number: reason for number, reason in ids.items() if 0 <= number < model.vocab_size}
        if absent := sorted(ids.keys() - self._eos.keys()):
            ends, last = ", ".join(map(str, absent)), model.vocab_size - 1
            log.warning(
                "%s: end-of-text id %s is ignored, because this model's ids are 0 to %d", self._name, ends, last
            )
        self._ids = count(1)

    def params(self, settings: Mapping[str, Any]) -> SamplingParams:
        """The sampling settings of a request; what it leaves out is the model's own default, or SamplingParams'."""
        params: SamplingParams = from_keywords(SamplingParams, {**self.defaults, **settings})
        return params

    def encode(self, prompt: Prompt, add_special_tokens: bool = True, *, after: List[int] = ()) -> list[int]:
        """Token ids of a prompt, or of what continues the tokens `after`; ids are checked, text needs a tokenizer."""
        if isinstance(prompt, str):
            tokenizer = self._need_tokenizer()
            tokens = tokenizer.encode(prompt, add_special_tokens and not after, continues=tokenizer.is_text(after))
        else:
            tokens = _token_ids(prompt)
        if not tokens:
            raise RequestError("the prompt is empty: give at least one token of text")
        self._check_ids(tokens)
        return tokens

    def chat_prompt(self, messages: List[Mapping[str, Any]], allow_special: bool = False) -> list[int]:
        """Token ids of a conversation, rendered by the model's own chat template, up to the assistant's turn.

        What a message spells is text, even `<|im_end|>`, unless `allow_special` lets it be a control token.
        """
        return encode_chat(self._need_tokenizer(), messages, allow_special=allow_special)

    def sequences(
        self, tokens: list[int], params: SamplingParams, priority: int = 0, salt: bytes = b""
    ) -> Iterator[Sequence]:
        """The n sequences that a prompt asks for. priority and salt: see Sequence."""
        max_tokens = self._max_tokens(len(tokens), params)
        if params.stop and self._tokenizer is None:
            raise RequestError("stop texts need a tokenizer: use stop_token_ids with this model")
        self._check_ids((*params.stop_token_ids, *params.logit_bias))
        stops = {} if params.ignore_eos else dict(self._eos)
        stops |= dict.fromkeys(params.stop_token_ids, "stop")
        seed = secrets.randbelow(2**32) if params.seed is None else params.seed
        for number in range(params.n):
            yield Sequence(
                self.new_id(),
                list(tokens),
                len(tokens),
                max_tokens,
                params,
                seed + number,
                stops,
                priority=priority,
                salt=salt,
            )

    def scored(self, tokens: list[int], score_from: int) -> Sequence:
        """A sequence whose logits are read and from which nothing is sampled; it is kept, so that it can be rewound."""
        self.check_length(len(tokens))
        return Sequence(self.new_id(), tokens, len(tokens), len(tokens), score_from=score_from, keep=True)

    def kept(self) -> Sequence:
        """An empty sequence that is kept from call to call: the sequence of a session."""
        return Sequence(self.new_id(), [], 0, self._max_length, keep=True)

    def check_length(self, num_tokens: int) -> None:
        """RequestError for more tokens than max_length."""
        if num_tokens > self._max_length:
            raise RequestError(
                f"{num_tokens} tokens are over max_length of {self._max_length}: shorten the text or raise max_length"
            )

    def _max_tokens(self, num_prompt: int, params: SamplingParams) -> int:
        """Length at which the sequence ends: max_new_tokens after the prompt or, by default, as many as fit."""
        max_length, wanted, min_new = self._max_length, params.max_new_tokens, max(params.min_new_tokens, 1)
        num_new = wanted or max(DEFAULT_MAX_NEW_TOKENS, min_new)
        if num_prompt + (wanted or min_new) > max_length:
            remedy = "raise max_length" if max_length < self._model.context else "this is the model's own context"
            raise RequestError(
                f"prompt of {num_prompt} tokens + max_new_tokens of {num_new} is over max_length of {max_length}: "
                f"shorten the prompt or lower max_new_tokens ({remedy})"
            )
        return min(num_prompt + num_new, max_length)

    def _check_ids(self, tokens: List[int]) -> None:
        size = self._model.vocab_size
        for token in tokens:
            if not 0 <= token < size:
                raise RequestError(f"token id {token} is out of range: this model's ids are 0 to {size - 1}")

    def _need_tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise RequestError(f"{self._name} has no tokenizer: give the prompt as token ids")
        return self._tokenizer

    def new_id(self) -> int:
        """An id that no sequence had before."""
        return next(self._ids)


def _token_ids(prompt: Any) -> list[int]:
    try:
        return [_token_id(token) for token in prompt]
    except TypeError:
        raise RequestError(f"{prompt!r} is no prompt: a prompt is text, or a list of whole numbers") from None


def _token_id(token: Any) -> int:
    try:
        return index(token)
    except TypeError:
        raise RequestError(f"{token!r} is no token id: a prompt is text, or a list of whole numbers") from None


def is_batch(prompt: Any) -> bool:
    """Whether it is a list of prompts; one prompt is a text, or ids in a list, tuple, array or tensor."""
    if isinstance(prompt, str) or not (hasattr(prompt, "__getitem__") and len(prompt)):
        return False
    return isinstance(prompt[0], str | list | tuple) or getattr(prompt[0], "ndim", 0) > 0
