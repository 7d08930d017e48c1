"""Completions and pieces become the objects of OpenAI's API.

A Format says how one endpoint writes a continuation, whole or as chunks of a stream. Texts of chunks, joined, are the
text of the same request without streaming.
"""

import json
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as List
from dataclasses import replace
from hashlib import sha256
from statistics import fmean
from typing import Any

from tokenmill.engine.outputs import Completion, Piece
from tokenmill.loader.loaded import LoadedModel
from tokenmill.sample.logprobs import TokenLogprobs
from tokenmill.serve.prepare import Prepared
from tokenmill.serve.resumption import Resumption
from tokenmill.serve.schema import ChatBody, CompletionBody, SamplingBody
from tokenmill.serve.token_offsets import TokenOffsets
from tokenmill.text.token_bytes import Spelling
from tokenmill.text.tokenizer import Tokenizer

REASONS = {"eos": "stop", "stop": "stop", "length": "length"}
Json = dict[str, Any]


def system_fingerprint(loaded: LoadedModel) -> str:
    """`system_fingerprint` of OpenAI's API. It is another one where a text may be another one: with another model,
    program, format or version.
    """
    facts = {name: value for name, value in loaded.compatibility.items() if name != "model"}  # which may be moved
    return f"fp_{sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]}"


class Format(ABC):
    """The form of the answer to one request. An answer and its chunks have the same id, time and model."""

    prefix: str
    whole: str
    chunk: str

    def __init__(
        self, body: SamplingBody, prepared: Prepared, model: str, fingerprint: str, tokenizer: Tokenizer | None
    ) -> None:
        self._body, self._prepared, self._tokenizer = body, prepared, tokenizer
        self._head = {"id": f"{self.prefix}-{secrets.token_hex(12)}", "created": int(time.time()), "model": model}
        self._head["system_fingerprint"] = fingerprint
        self._warnings = prepared.warnings
        options = body.stream_options
        self._wants_usage = options is not None and options.include_usage
        self._counts_on = options is not None and options.continuous_usage_stats
        self._num_shown = prepared.num_shown
        self._num_new = 0
        self._begun: set[int] = set()  # continuations of which something was written

    @property
    def id(self) -> str:
        """The id of the answer."""
        return str(self._head["id"])

    @property
    def begun(self) -> Json:
        """What another answer needs to be this one: its id, its time, and the fingerprint of what has made it."""
        return {name: value for name, value in self._head.items() if name != "model"}

    def resume(self, written: Resumption) -> None:
        """Go on with an answer of which chunks were written by another server."""
        self._head |= {name: written.begun[name] for name in ("id", "created") if name in written.begun}
        self._warnings = [] if written.is_opened else self._warnings
        for index, tokens in written.tokens.items():
            self._begun.add(index)
            self._num_new += len(tokens) * (not self._prepared.only_prompts)
            self._pass_over(index, tokens)

    def answer(self, completions: List[Completion]) -> Json:
        """All continuations, each with its prompt's text before it if that is wanted."""
        choices = [self._choice(index, done) for index, done in enumerate(self._choose_shown(completions))]
        self._num_new = sum(len(done.tokens) for done in completions) * (not self._prepared.only_prompts)
        return {
            **self._head,
            "object": self.whole,
            "choices": choices,
            "usage": self._usage(),
            **self._warning_fields(),
        }

    def opening(self) -> Iterator[Json]:
        """Chunks that are sent before the first piece."""
        yield from ()

    def chunks(self, piece: Piece) -> Iterator[Json]:
        """The chunks for what is new of one continuation."""
        self._num_new += len(piece.tokens) * (not self._prepared.only_prompts)
        for choice in self._deltas(piece):
            yield self._chunk([choice])

    def closing(self) -> Iterator[Json]:
        """Chunks after the last piece."""
        if self._wants_usage:
            yield {**self._chunk([]), "usage": self._usage()}

    @abstractmethod
    def _pass_over(self, index: int, tokens: List[int]) -> None:
        """Note tokens that were written, where what follows depends on them."""

    @abstractmethod
    def _choice(self, index: int, done: Completion) -> Json:
        """A continuation that has ended."""

    @abstractmethod
    def _deltas(self, piece: Piece) -> Iterable[Json]:
        """The choices of a chunk for what is new of a continuation."""

    def _chunk(self, choices: list[Json]) -> Json:
        usage = {"usage": self._usage() if self._counts_on else None} if self._wants_usage else {}
        warned, self._warnings = self._warning_fields(), []  # in the first one
        return {**self._head, "object": self.chunk, "choices": choices, **usage, **warned}

    def _warning_fields(self) -> Json:
        return {"warnings": self._warnings} if self._warnings else {}

    def _usage(self) -> Json:
        num_prompt = sum(map(len, self._prepared.prompts))
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": self._num_new,
            "total_tokens": num_prompt + self._num_new,
            "prompt_tokens_details": {"cached_tokens": self._num_cached()},
        }

    def _num_cached(self) -> int:
        return sum(each.num_cached_tokens or 0 for each in self._prepared.request.sequences[:: self._prepared.num_each])

    def _choose_shown(self, completions: List[Completion]) -> List[Completion]:
        """All of them; or, of more than the client gets, the best of each prompt."""
        num_made, num_shown = self._prepared.num_each, self._num_shown
        if num_made == num_shown:
            return completions
        groups = (completions[first : first + num_made] for first in range(0, len(completions), num_made))
        return [done for group in groups for done in sorted(group, key=_mean_logprob, reverse=True)[:num_shown]]

    def _prompt_logprobs(self, number: int) -> Json:
        """If it is wanted, for each token of a prompt a map of token ids, the prompt's own first, as vLLM has it."""
        if (num_top := self._body.prompt_logprobs) is None:
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
        return {"token_ids": list(tokens)} if self._body.return_token_ids else {}

    def _prompt_ids(self, number: int) -> Json:
        """If they are wanted, the token ids of a prompt."""
        return {"prompt_token_ids": self._prepared.prompts[number]} if self._body.return_token_ids else {}


class CompletionFormat(Format):
    """/v1/completions."""

    prefix, whole, chunk = "cmpl", "text_completion", "text_completion"

    def __init__(self, body: CompletionBody, prepared: Prepared, *more: Any) -> None:
        super().__init__(body, prepared, *more)
        self._given, self._echo, self._num_top = body.prompts, body.echo, body.logprobs
        self._offsets: dict[int, TokenOffsets] = {}

    def _choice(self, index: int, done: Completion) -> Json:
        logprobs = None if self._num_top is None else done.logprobs  # best_of needs them where nobody asked
        choice = self._written(Piece(done.text, done.tokens, done, logprobs, index))
        return {**choice, **self._prompt_logprobs(index // self._num_shown)}

    def _deltas(self, piece: Piece) -> Iterable[Json]:
        yield self._written(piece)

    def _written(self, piece: Piece) -> Json:
        """The text of a piece, with the prompt's before the first if the client wants it back."""
        if self._prepared.only_prompts:
            piece = replace(piece, text="", tokens=(), logprobs=piece.logprobs and ())
        index, text, tokens = piece.index, piece.text, piece.tokens
        more = self._ids(tokens)
        if index not in self._begun:
            more |= self._prompt_ids(index // self._num_shown)
        entries: List[TokenLogprobs | None] | None = piece.logprobs
        if self._echo and index not in self._begun:
            text = self._prompt_text(index) + text
            if entries is not None:
                number = index // self._num_shown
                prompt, (_, logprobs_of) = self._prepared.prompts[number], self._prepared.prompt_logprobs[number]
                tokens = (*prompt, *tokens)
                entries = (*(logprobs_of.get(position) for position in range(len(prompt))), *entries)
        self._begun.add(index)
        logprobs = None if entries is None else self._logprobs(index, tokens, entries)
        return {"index": index, "text": text, "logprobs": logprobs, **_end(piece.done), **more}

    def _prompt_text(self, index: int) -> str:
        given = self._given[index // self._num_shown]
        given = self._prepared.prompts[index // self._num_shown] if given is None else given
        if isinstance(given, str):
            return given
        return "" if self._tokenizer is None else self._tokenizer.decode(given, self._body.skip_special_tokens)

    def _logprobs(self, index: int, tokens: List[int], entries: List[TokenLogprobs | None]) -> Json:
        offsets = self._offsets.get(index) or self._offsets.setdefault(index, self._offsets_of(index))
        found: Json = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token, entry in zip(tokens, entries, strict=True):
            found["tokens"].append(offsets.spelling.text(token))
            found["token_logprobs"].append(entry and entry.logprob)
            found["top_logprobs"].append(entry and self._top(token, entry, offsets.spelling))
            found["text_offset"].append(offsets.next(token))
        return found

    def _pass_over(self, index: int, tokens: List[int]) -> None:
        if self._num_top is None:
            return
        offsets = self._offsets[index] = self._offsets_of(index)
        prompt = self._prepared.prompts[index // self._num_shown] if self._echo else ()
        for token in (*prompt, *tokens):
            offsets.next(token)

    def _offsets_of(self, index: int) -> TokenOffsets:
        number, skips = index // self._num_shown, self._body.skip_special_tokens
        if not self._echo:
            return TokenOffsets(self._tokenizer, self._prepared.prompts[number], skips)
        given = self._given[number]
        return TokenOffsets(self._tokenizer, (), skips, given if isinstance(given, str) else None)

    def _top(self, token: int, entry: TokenLogprobs, spelling: Spelling) -> Json:
        """The likeliest tokens by text, one of those that are spelled alike. The chosen one is always among them."""
        top: Json = {}
        for other, value in _likeliest(token, entry, self._num_top or 0) or [(token, entry.logprob)]:
            top.setdefault(spelling.text(other), value)
        return top


class ChatFormat(Format):
    """/v1/chat/completions."""

    prefix, whole, chunk = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, body: ChatBody, prepared: Prepared, *more: Any) -> None:
        super().__init__(body, prepared, *more)
        self._spellings: dict[int, Spelling] = {}

    def answer(self, completions: List[Completion]) -> Json:
        """See Format."""
        return {**super().answer(completions), **self._prompt_logprobs(0), **self._prompt_ids(0)}

    def _choice(self, index: int, done: Completion) -> Json:
        message = {"role": "assistant", "content": done.text, "refusal": None}
        logprobs = self._logprobs(index, done.tokens, done.logprobs)
        return {"index": index, "message": message, "logprobs": logprobs, **_end(done), **self._ids(done.tokens)}

    def opening(self) -> Iterator[Json]:
        """See Format: the role of each continuation."""
        for index in range(len(self._prepared.request.sequences)):
            chunk = self._chunk([_delta(index, {"role": "assistant", "content": ""})])
            yield chunk if index else chunk | self._prompt_ids(0)

    def _deltas(self, piece: Piece) -> Iterable[Json]:
        logprobs = self._logprobs(piece.index, piece.tokens, piece.logprobs)
        if piece.text or logprobs or self._body.return_token_ids:
            yield _delta(piece.index, {"content": piece.text}) | {"logprobs": logprobs} | self._ids(piece.tokens)
        if piece.done is not None:
            yield _delta(piece.index, {}) | _end(piece.done)

    def _logprobs(self, index: int, tokens: List[int], entries: List[TokenLogprobs] | None) -> Json | None:
        if entries is None:
            return None
        spelling, content = self._spelling(index), []
        for token, entry in zip(tokens, entries, strict=True):
            top = [_entry(spelling, *other) for other in _likeliest(token, entry, len(entry.top))]
            content.append(_entry(spelling, token, entry.logprob) | {"top_logprobs": top})
            spelling.go_on(token)
        return {"content": content}

    def _pass_over(self, index: int, tokens: List[int]) -> None:
        spelling = self._spelling(index)
        for token in tokens if self._body.logprobs else ():
            spelling.go_on(token)

    def _spelling(self, index: int) -> Spelling:
        """That of the next token of a continuation."""
        prompt, skips = self._prepared.prompts[0], self._body.skip_special_tokens
        return self._spellings.setdefault(index, Spelling(self._tokenizer, prompt, skip_special=skips))


def _entry(spelling: Spelling, token: int, value: float) -> Json:
    return {"token": spelling.text(token), "logprob": value, "bytes": list(spelling.bytes(token))}


def _likeliest(token: int, entry: TokenLogprobs, count: int) -> list[tuple[int, float]]:
    """The `count` likeliest tokens, and after them the chosen one where it is not among them; none for a count of 0."""
    top = list(entry.top[:count])
    is_among = not count or any(other == token for other, _ in top)
    return top if is_among else [*top, (token, entry.logprob)]


def _mean_logprob(done: Completion) -> float:
    """Per token; the texts of a request with best_of have log-probabilities."""
    return fmean(entry.logprob for entry in done.logprobs or ())


def _end(done: Completion | None) -> Json:
    """The fields that say why a text has ended, and the stop text or id that ended it; no reason while it goes on."""
    if done is None:
        return {"finish_reason": None}
    return {"finish_reason": REASONS[done.finish_reason], "stop_reason": done.stop_reason}


def _delta(index: int, delta: Json) -> Json:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
