"""Completions and pieces become the choices of OpenAI's completions, whose chunks are like the whole answer."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as List
from dataclasses import replace
from statistics import fmean
from typing import Any

from tokenmill.engine.outputs import Completion, Piece
from tokenmill.sample.logprobs import TokenLogprobs
from tokenmill.serve.http.errors import Json
from tokenmill.serve.loop.resumption import Resumption
from tokenmill.serve.openai.parse import StreamOptions
from tokenmill.serve.request.ask import Ask
from tokenmill.serve.request.prepare import Prepared
from tokenmill.serve.request.writer import Writer
from tokenmill.text.token_bytes import Spelling

REASONS = {"eos": "stop", "stop": "stop", "length": "length"}


class Choices(Writer):
    """A writer of choices. whole, chunk: the names of both kinds of objects."""

    whole: str
    chunk: str
    ending = b"data: [DONE]\n\n"

    def __init__(self, ask: Ask, prepared: Prepared, *more: Any) -> None:
        super().__init__(ask, prepared, *more)
        options: StreamOptions | None = ask.own
        self._wants_usage = options is not None and options.include_usage
        self._counts_on = options is not None and options.continuous_usage_stats
        self._num_shown = prepared.num_shown
        self._begun: set[int] = set()  # continuations of which something was written

    @property
    def _head(self) -> Json:
        return {"id": self._id, "created": self._created, "model": self._model, "system_fingerprint": self._fingerprint}

    def resume(self, written: Resumption, texts: Mapping[int, str]) -> None:
        self._begun |= set(written.tokens)
        super().resume(written, texts)

    def answer(self, completions: List[Completion]) -> Json:
        """Write all continuations, each with its prompt's text before it if that is wanted."""
        choices = [self._choice(index, done) for index, done in enumerate(self._choose_shown(completions))]
        for done in completions:
            self._count(done.tokens)
        told = {"object": self.whole, "choices": choices, "usage": self._usage()}
        return self._head | told | self._warning_fields()

    def chunks(self, piece: Piece) -> Iterator[Json]:
        self._count(piece.tokens)
        for choice in self._deltas(piece):
            yield self._chunk([choice])

    def closing(self) -> Iterator[Json]:
        if self._wants_usage:
            yield {**self._chunk([]), "usage": self._usage()}

    @property
    def _progress_chunk(self) -> Json:
        return self._chunk([self._silent])

    @property
    @abstractmethod
    def _silent(self) -> Json:
        """A choice of a chunk that adds nothing."""

    @abstractmethod
    def _choice(self, index: int, done: Completion) -> Json:
        """Write a continuation that has ended."""

    @abstractmethod
    def _deltas(self, piece: Piece) -> Iterable[Json]:
        """Yield the choices of a chunk for what is new of a continuation."""

    def _chunk(self, choices: list[Json]) -> Json:
        usage = {"usage": self._usage() if self._counts_on else None} if self._wants_usage else {}
        warned, self._warnings = self._warning_fields(), []  # in the first one
        return {**self._head, "object": self.chunk, "choices": choices, **usage, **warned}

    def _usage(self) -> Json:
        return {
            "prompt_tokens": self._num_prompt,
            "completion_tokens": self._num_new,
            "total_tokens": self._num_prompt + self._num_new,
            "prompt_tokens_details": {"cached_tokens": self._num_cached},
        }

    def _choose_shown(self, completions: List[Completion]) -> List[Completion]:
        """Return all completions; or, of more than the client gets, the best of each prompt."""
        num_made, num_shown = self._prepared.num_each, self._num_shown
        if num_made == num_shown:
            return completions
        groups = (completions[first : first + num_made] for first in range(0, len(completions), num_made))
        return [done for group in groups for done in sorted(group, key=_mean_logprob, reverse=True)[:num_shown]]

    def _prompt_logprobs(self, number: int) -> Json:
        """Write, if wanted, for each token of a prompt a map of token ids, the prompt's own first, as vLLM does."""
        if (num_top := self._ask.shown_prompt_logprobs) is None:
            return {}
        prompt, (_, logprobs_of) = self._prepared.prompts[number], self._prepared.prompt_logprobs[number]
        entries: list[Json | None] = [None]  # nothing is before the first token
        spelling = Spelling(self._tokenizer)
        for position, token in enumerate(prompt[1:], start=1):
            spelling.go_on(prompt[position - 1])
            entry = logprobs_of[position]
            own = {token: (entry.logprob, entry.rank)}
            top = {other: (value, rank) for rank, (other, value) in enumerate(entry.top[:num_top], start=1)}
            entries.append(
                {
                    str(each): {"logprob": value, "rank": rank, "decoded_token": spelling.text(each)}
                    for each, (value, rank) in (own | top).items()
                }
            )
        return {"prompt_logprobs": entries}

    def _ids(self, tokens: List[int]) -> Json:
        return {"token_ids": list(tokens)} if self._ask.wants_ids else {}

    def _receipt(self, done: Completion | None) -> Json:
        """Write the receipt of a text that has ended, which names the model as the server does, if it is wanted."""
        if done is None or not self._ask.wants_receipt:
            return {}
        made = done.receipt()
        return {"receipt": replace(made, model={**made.model, "name": self._model}).document}

    def _prompt_ids(self, number: int) -> Json:
        """Write the token ids of a prompt, if they are wanted."""
        return {"prompt_token_ids": self._prepared.prompts[number]} if self._ask.wants_ids else {}


def likeliest(token: int, entry: TokenLogprobs, count: int) -> list[tuple[int, float]]:
    """Return the `count` likeliest tokens, with the chosen one behind them if it is not among them; none for 0."""
    top = list(entry.top[:count])
    is_among = not count or any(other == token for other, _ in top)
    return top if is_among else [*top, (token, entry.logprob)]


def logprob_entries(spelling: Spelling, tokens: List[int], entries: List[TokenLogprobs]) -> list[Json]:
    """Write for each token of a chat its text, bytes and log-probability, and the likeliest tokens in its place."""
    found = []
    for token, entry in zip(tokens, entries, strict=True):
        top = [_entry(spelling, *other) for other in likeliest(token, entry, len(entry.top))]
        found.append(_entry(spelling, token, entry.logprob) | {"top_logprobs": top})
        spelling.go_on(token)
    return found


def _entry(spelling: Spelling, token: int, value: float) -> Json:
    return {"token": spelling.text(token), "logprob": value, "bytes": list(spelling.bytes(token))}


def _mean_logprob(done: Completion) -> float:
    """Return the mean per token; the texts of a request with best_of have log-probabilities."""
    return fmean(entry.logprob for entry in done.logprobs or ())


def end_of(done: Completion | None) -> Json:
    """Write why a text has ended, and the stop text or id that ended it; no reason while it goes on."""
    if done is None:
        return {"finish_reason": None}
    return {"finish_reason": REASONS[done.finish_reason], "stop_reason": done.stop_reason}
