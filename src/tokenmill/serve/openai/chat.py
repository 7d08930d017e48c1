"""The answers of POST /v1/chat/completions."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as List
from typing import Any

from tokenmill.engine.outputs import Completion, Piece
from tokenmill.sample.logprobs import TokenLogprobs
from tokenmill.serve.openai.choices import Choices, end_of, logprob_entries
from tokenmill.serve.request.ask import Ask
from tokenmill.serve.request.custom_tools import input_of, is_json
from tokenmill.serve.request.prepare import Prepared
from tokenmill.serve.request.reading import Reading
from tokenmill.serve.request.writer import Json
from tokenmill.text.parts import CallArguments, CallBegin, Part, TextPart, ThinkingPart
from tokenmill.text.token_bytes import Spelling


class ChatWriter(Choices):
    """/v1/chat/completions."""

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
        """The deltas of a piece. The text that a custom tool gets is shown when the JSON that it stands in is whole."""
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
        """The text of a call of a custom tool, if it was not shown."""
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
        """A call of a continuation; its arguments so far, or those that are given."""
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
        for _ in self._of_parts(piece):
            pass
        spelling = self._spelling(piece.index)
        for token in () if self._ask.sampling.get("logprobs") is None else piece.tokens:
            spelling.go_on(token)

    def _spelling(self, index: int) -> Spelling:
        """That of the next token of a continuation."""
        prompt, skips = self._prepared.prompts[0], self._ask.sampling["skip_special_tokens"]
        return self._spellings.setdefault(index, Spelling(self._tokenizer, prompt, skip_special=skips))


def _thinking(text: str) -> Json:
    """Under both names that clients look for."""
    return {"reasoning_content": text, "reasoning": text}


def _delta(index: int, delta: Json) -> Json:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
