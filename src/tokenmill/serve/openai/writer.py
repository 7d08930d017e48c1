"""The answers of POST /v1/chat/completions and of POST /v1/completions."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as List
from dataclasses import replace
from typing import Any

from tokenmill.engine.outputs import Completion, Piece
from tokenmill.sample.logprobs import TokenLogprobs
from tokenmill.serve.http.errors import Json
from tokenmill.serve.openai.choices import Choices, end_of, likeliest, logprob_entries
from tokenmill.serve.request.ask import Ask
from tokenmill.serve.request.custom_tools import input_of, is_json
from tokenmill.serve.request.prepare import Prepared
from tokenmill.serve.request.reading import Reading
from tokenmill.text.detokenize import Detokenizer
from tokenmill.text.parts import CallArguments, CallBegin, Part, TextPart, ThinkingPart
from tokenmill.text.token_bytes import Spelling
from tokenmill.text.tokenizer import Tokenizer


class ChatWriter(Choices):
    """The writer of /v1/chat/completions."""

    prefix, whole, chunk = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def __init__(self, ask: Ask, prepared: Prepared, *more: Any) -> None:
        super().__init__(ask, prepared, *more)
        self._spellings: dict[int, Spelling] = {}
        self._shown_inputs = set[tuple[int, int]]()  # of calls of custom tools
        self._readings = defaultdict[int, Reading](lambda: Reading(prepared.readers.make()))

    def answer(self, completions: List[Completion]) -> Json:
        return {**super().answer(completions), **self._prompt_logprobs(0), **self._prompt_ids(0)}

    def _choice(self, index: int, done: Completion) -> Json:
        reading = self._readings[index]
        reading.take(Piece(done.text, done.tokens, done))
        text, thinking = "".join(reading.texts), "".join(reading.thinking)
        message: Json = {"role": "assistant", "content": text if text or not reading.calls else None, "refusal": None}
        message |= _thinking(thinking) if thinking else {}
        if reading.calls:
            message["tool_calls"] = [self._call(index, number) for number in range(len(reading.calls))]
        logprobs = self._logprobs(index, done.tokens, done.logprobs)
        choice = {"index": index, "message": message, "logprobs": logprobs, **self._end(index, done)}
        return choice | self._ids(done.tokens) | self._receipt(done)

    def opening(self) -> Iterator[Json]:
        """See Writer: the role of each continuation."""
        for index in range(len(self._prepared.request.sequences)):
            chunk = self._chunk([_delta(index, {"role": "assistant", "content": ""})])
            yield chunk if index else chunk | self._prompt_ids(0)

    @property
    def _silent(self) -> Json:
        return _delta(0, {})

    def _deltas(self, piece: Piece) -> Iterable[Json]:
        logprobs = self._logprobs(piece.index, piece.tokens, piece.logprobs)
        deltas = list(self._of_parts(piece))
        if not deltas and (logprobs or self._ask.wants_ids):
            deltas = [{"content": ""}]
        for number, delta in enumerate(deltas):
            about_tokens = {} if number else {"logprobs": logprobs} | self._ids(piece.tokens)
            yield _delta(piece.index, delta) | about_tokens
        if piece.done is not None:
            yield _delta(piece.index, {}) | self._end(piece.index, piece.done) | self._receipt(piece.done)

    def _of_parts(self, piece: Piece) -> Iterator[Json]:
        """Yield the deltas of a piece. The text that a custom tool gets is shown when its JSON is whole."""
        index, reading = piece.index, self._readings[piece.index]
        for part in reading.take(piece):
            if not isinstance(part, CallArguments) or not self._is_custom(index, part.index):
                yield self._of_part(index, part)
            elif is_json("".join(reading.calls[part.index][1])):
                yield from self._input(index, part.index)
        if piece.done is not None:
            for number in range(len(reading.calls)):
                yield from self._input(index, number)

    def _is_custom(self, index: int, number: int) -> bool:
        return self._readings[index].calls[number][0] in self._prepared.readers.custom

    def _input(self, index: int, number: int) -> Iterator[Json]:
        """Yield the text of a call of a custom tool, if it was not shown."""
        if self._is_custom(index, number) and (index, number) not in self._shown_inputs:
            self._shown_inputs.add((index, number))
            given = input_of("".join(self._readings[index].calls[number][1]))
            yield {"tool_calls": [{"index": number, "custom": {"input": given}}]}

    def _of_part(self, index: int, part: Part) -> Json:
        if isinstance(part, TextPart):
            return {"content": part.text}
        if isinstance(part, ThinkingPart):
            return _thinking(part.text)
        if isinstance(part, CallBegin):
            return {"tool_calls": [{"index": part.index, **self._call(index, part.index, "")}]}
        return {"tool_calls": [{"index": part.index, "function": {"arguments": part.text}}]}

    def _call(self, index: int, number: int, arguments: str | None = None) -> Json:
        """Write a call of a continuation, with its arguments so far, or with these."""
        name, pieces = self._readings[index].calls[number]
        written = "".join(pieces) if arguments is None else arguments
        call = self._prepared.readers.call_id(self._readings[index].ids[number], self._id, index, number)
        if self._is_custom(index, number):
            return {"id": call, "type": "custom", "custom": {"name": name, "input": input_of(written)}}
        return {"id": call, "type": "function", "function": {"name": name, "arguments": written}}

    def _end(self, index: int, done: Completion) -> Json:
        """See end_of. A text that ends after a call waits for its result, unless a stop text or id has cut it."""
        end, reading = end_of(done), self._readings[index]
        is_cut = isinstance(done.stop_reason, str) or reading.is_cut
        is_call = bool(reading.calls) and end["finish_reason"] == "stop" and not is_cut
        return end | {"finish_reason": "tool_calls"} if is_call else end

    def _usage(self) -> Json:
        thinking = sum(reading.count_thinking(self._tokenizer) for reading in self._readings.values())
        return super()._usage() | ({"completion_tokens_details": {"reasoning_tokens": thinking}} if thinking else {})

    def _logprobs(self, index: int, tokens: List[int], entries: List[TokenLogprobs] | None) -> Json | None:
        return None if entries is None else {"content": logprob_entries(self._spelling(index), tokens, entries)}

    def _pass_over(self, piece: Piece) -> None:
        list(self._of_parts(piece))
        spelling = self._spelling(piece.index)
        for token in () if self._ask.sampling.get("logprobs") is None else piece.tokens:
            spelling.go_on(token)

    def _spelling(self, index: int) -> Spelling:
        """Return the spelling of the next token of a continuation."""
        prompt, skips = self._prepared.prompts[0], self._ask.sampling["skip_special_tokens"]
        return self._spellings.setdefault(index, Spelling(self._tokenizer, prompt, skip_special=skips))


def _thinking(text: str) -> Json:
    """Write thinking under both names that clients look for."""
    return {"reasoning_content": text, "reasoning": text}


def _delta(index: int, delta: Json) -> Json:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


class TokenOffsets:
    """The offsets in characters at which tokens begin. spelling: of the token that comes next."""

    def __init__(
        self, tokenizer: Tokenizer | None, before: List[int], skip_special: bool, given: str | None = None
    ) -> None:
        """Begin after the tokens `before`. given: a text that begins with the text of the counted tokens, as it was
        sent: a special token is part of it only where it spells that token.
        """
        self._tokenizer, self._given, self._length, self._held = tokenizer, given, 0, b""
        skips = skip_special or given is not None
        self._left_out = tokenizer.special_ids if tokenizer is not None and skips else frozenset()
        self.spelling = Spelling(tokenizer, before, skip_special=skips)
        self._detokenizer = None
        if tokenizer is not None:
            self._detokenizer = Detokenizer(tokenizer, prompt=before, skip_special=skips)

    def next(self, token: int) -> int:
        """Return the offset of a token, which follows the tokens of earlier calls."""
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
        """Return the length of a special token that the given text spells; 0 for others."""
        if self._given is None or self._tokenizer is None or token not in self._tokenizer.special_ids:
            return 0
        text = self.spelling.text(token)
        return len(text) if self._given.startswith(text, self._length) else 0


class CompletionWriter(Choices):
    """The writer of /v1/completions."""

    prefix, whole, chunk = "cmpl-", "text_completion", "text_completion"

    def __init__(self, ask: Ask, prepared: Prepared, *more: Any) -> None:
        super().__init__(ask, prepared, *more)
        self._given, self._echo, self._num_top = ask.prompts, ask.echo, ask.sampling.get("logprobs")
        self._offsets: dict[int, TokenOffsets] = {}

    def _choice(self, index: int, done: Completion) -> Json:
        logprobs = None if self._num_top is None else done.logprobs  # best_of needs them where nobody asked
        choice = self._written(Piece(done.text, done.tokens, done, logprobs, index))
        return {**choice, **self._prompt_logprobs(index // self._num_shown)}

    @property
    def _silent(self) -> Json:
        return {"index": 0, "text": "", "logprobs": None, **end_of(None)}

    def _deltas(self, piece: Piece) -> Iterable[Json]:
        yield self._written(piece)

    def _written(self, piece: Piece) -> Json:
        """Write the text of a piece, with the prompt's before the first if the client wants it back."""
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
        """Write the likeliest tokens by text, one of several that are spelled alike. The chosen one is always there."""
        top: Json = {}
        for other, value in likeliest(token, entry, self._num_top or 0) or [(token, entry.logprob)]:
            top.setdefault(spelling.text(other), value)
        return top
