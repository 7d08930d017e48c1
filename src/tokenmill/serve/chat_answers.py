"""The answers of POST /v1/chat/completions."""

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as List
from typing import Any

from tokenmill.engine.outputs import Completion, Piece
from tokenmill.sample.logprobs import TokenLogprobs
from tokenmill.serve.answers import Json
from tokenmill.serve.choices import Choices, end_of, likeliest
from tokenmill.serve.prepare import Prepared
from tokenmill.serve.schema import ChatBody
from tokenmill.text.token_bytes import Spelling


class ChatFormat(Choices):
    """/v1/chat/completions."""

    path, prefix, whole, chunk = "/v1/chat/completions", "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def __init__(self, body: ChatBody, prepared: Prepared, *more: Any) -> None:
        super().__init__(body, prepared, *more)
        self._spellings: dict[int, Spelling] = {}

    def answer(self, completions: List[Completion]) -> Json:
        """See Format."""
        return {**super().answer(completions), **self._prompt_logprobs(0), **self._prompt_ids(0)}

    def _choice(self, index: int, done: Completion) -> Json:
        message = {"role": "assistant", "content": done.text, "refusal": None}
        logprobs = self._logprobs(index, done.tokens, done.logprobs)
        return {"index": index, "message": message, "logprobs": logprobs, **end_of(done), **self._ids(done.tokens)}

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
            yield _delta(piece.index, {}) | end_of(piece.done)

    def _logprobs(self, index: int, tokens: List[int], entries: List[TokenLogprobs] | None) -> Json | None:
        if entries is None:
            return None
        spelling, content = self._spelling(index), []
        for token, entry in zip(tokens, entries, strict=True):
            top = [_entry(spelling, *other) for other in likeliest(token, entry, len(entry.top))]
            content.append(_entry(spelling, token, entry.logprob) | {"top_logprobs": top})
            spelling.go_on(token)
        return {"content": content}

    def _pass_over(self, piece: Piece) -> None:
        spelling = self._spelling(piece.index)
        for token in piece.tokens if self._body.logprobs else ():
            spelling.go_on(token)

    def _spelling(self, index: int) -> Spelling:
        """That of the next token of a continuation."""
        prompt, skips = self._prepared.prompts[0], self._body.skip_special_tokens
        return self._spellings.setdefault(index, Spelling(self._tokenizer, prompt, skip_special=skips))


def _entry(spelling: Spelling, token: int, value: float) -> Json:
    return {"token": spelling.text(token), "logprob": value, "bytes": list(spelling.bytes(token))}


def _delta(index: int, delta: Json) -> Json:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
