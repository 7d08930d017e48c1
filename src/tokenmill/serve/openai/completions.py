"""The answers of POST /v1/completions."""

from collections.abc import Iterable
from collections.abc import Sequence as List
from dataclasses import replace
from typing import Any

from tokenmill.engine.outputs import Completion, Piece
from tokenmill.sample.logprobs import TokenLogprobs
from tokenmill.serve.openai.choices import Choices, end_of, likeliest
from tokenmill.serve.request.ask import Ask
from tokenmill.serve.request.prepare import Prepared
from tokenmill.serve.request.writer import Json
from tokenmill.text.detokenize import Detokenizer
from tokenmill.text.token_bytes import Spelling
from tokenmill.text.tokenizer import Tokenizer


class TokenOffsets:
    """The offset in characters at which each token begins. spelling: of the token that comes next."""

    def __init__(
        self, tokenizer: Tokenizer | None, before: List[int], skip_special: bool, given: str | None = None
    ) -> None:
        """before: tokens before those that are counted. given: a text that begins with their text, as it was sent: a
        special token is part of it only where it spells that token.
        """
        self._tokenizer, self._given, self._length, self._held = tokenizer, given, 0, b""
        skips = skip_special or given is not None
        self._left_out = tokenizer.special_ids if tokenizer is not None and skips else frozenset()
        self.spelling = Spelling(tokenizer, before, skip_special=skips)
        self._detokenizer = None
        if tokenizer is not None:
            self._detokenizer = Detokenizer(tokenizer, prompt=before, skip_special=skips)

    def next(self, token: int) -> int:
        """The offset of a token, which follows those of the calls before."""
        # Of text that is still held back only characters that are complete count.
        start = self._length + len(self._held.decode(errors="ignore"))
        if self._detokenizer is not None:
            shown = len(self._detokenizer.push([token]))
            is_text = token not in self._left_out
            self._held = b"" if shown else self._held + (self.spelling.bytes(token) if is_text else b"")
            self._length += shown or self._spelled_length(token)
        self.spelling.go_on(token)
        return start

    def _spelled_length(self, token: int) -> int:
        """The length of a special token that the given text spells; 0 for others."""
        if self._given is None or self._tokenizer is None or token not in self._tokenizer.special_ids:
            return 0
        text = self.spelling.text(token)
        return len(text) if self._given.startswith(text, self._length) else 0


class CompletionWriter(Choices):
    """/v1/completions."""

    prefix, whole, chunk = "cmpl-", "text_completion", "text_completion"

    def __init__(self, ask: Ask, prepared: Prepared, *more: Any) -> None:
        super().__init__(ask, prepared, *more)
        self._given, self._echo, self._num_top = ask.prompts, ask.echo, ask.sampling.get("logprobs")
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
        return {"index": index, "text": text, "logprobs": logprobs, **end_of(piece.done), **more} | self._receipt(
            piece.done
        )

    def _prompt_text(self, index: int) -> str:
        given = self._given[index // self._num_shown]
        given = self._prepared.prompts[index // self._num_shown] if given is None else given
        if isinstance(given, str):
            return given
        return (
            "" if self._tokenizer is None else self._tokenizer.decode(given, self._ask.sampling["skip_special_tokens"])
        )

    def _logprobs(self, index: int, tokens: List[int], entries: List[TokenLogprobs | None]) -> Json:
        offsets = self._offsets.get(index) or self._offsets.setdefault(index, self._offsets_of(index))
        found: Json = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token, entry in zip(tokens, entries, strict=True):
            found["tokens"].append(offsets.spelling.text(token))
            found["token_logprobs"].append(entry and entry.logprob)
            found["top_logprobs"].append(entry and self._top(token, entry, offsets.spelling))
            found["text_offset"].append(offsets.next(token))
        return found

    def _pass_over(self, piece: Piece) -> None:
        if self._num_top is None:
            return
        offsets = self._offsets[piece.index] = self._offsets_of(piece.index)
        prompt = self._prepared.prompts[piece.index // self._num_shown] if self._echo else ()
        for token in (*prompt, *piece.tokens):
            offsets.next(token)

    def _offsets_of(self, index: int) -> TokenOffsets:
        number, skips = index // self._num_shown, self._ask.sampling["skip_special_tokens"]
        if not self._echo:
            return TokenOffsets(self._tokenizer, self._prepared.prompts[number], skips)
        given = self._given[number]
        return TokenOffsets(self._tokenizer, (), skips, given if isinstance(given, str) else None)

    def _top(self, token: int, entry: TokenLogprobs, spelling: Spelling) -> Json:
        """The likeliest tokens by text, one of those that are spelled alike. The chosen one is always among them."""
        top: Json = {}
        for other, value in likeliest(token, entry, self._num_top or 0) or [(token, entry.logprob)]:
            top.setdefault(spelling.text(other), value)
        return top
