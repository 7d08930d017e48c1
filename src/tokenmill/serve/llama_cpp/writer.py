"""The answers of POST /infill, in the form of llama.cpp's completions."""

import time
from collections.abc import Iterator
from collections.abc import Sequence as List
from typing import Any

from tokenmill.engine.outputs import Completion, Piece
from tokenmill.serve.http.errors import Json
from tokenmill.serve.llama_cpp.parse import LineLimits
from tokenmill.serve.request.ask import Ask
from tokenmill.serve.request.prepare import Prepared
from tokenmill.serve.request.writer import Writer

STOPS = {"eos": "eos", "stop": "word", "length": "limit"}


class Middle:
    """One text that is filled in, as far as it has come. is_over: nothing more of it is wanted."""

    def __init__(self, limits: LineLimits) -> None:
        self._limits = limits
        self.text, self.num_tokens, self.stop, self.word = "", 0, "", ""
        self.begun_s: float | None = None
        self.is_over = False

    def take(self, piece: Piece) -> str:
        """Take what is new; return the text that is shown of it."""
        if self.is_over:
            return ""
        self.begun_s = time.perf_counter() if self.begun_s is None else self.begun_s
        before, self.num_tokens = len(self.text), self.num_tokens + len(piece.tokens)
        self.text += piece.text
        if piece.done is not None:
            self.stop, self.is_over = STOPS.get(piece.done.finish_reason, "limit"), True
            self.word = piece.done.stop_reason if isinstance(piece.done.stop_reason, str) else ""
        self._end_by_limits(before)
        return self.text[before:]

    def _end_by_limits(self, before: int) -> None:
        """End the text before a line that is indented too little, or with a line after the time is over."""
        at = self.text.find("\n", max(before - self._limits.indent - 1, 0))
        while self._limits.indent and at >= 0:
            line = self.text[at + 1 :]
            blanks = len(line) - len(line.lstrip(" \t"))
            if blanks < self._limits.indent and blanks < len(line):
                self._end(max(at + 1 + blanks, before))
                return
            at = self.text.find("\n", at + 1)
        late = self._limits.max_ms and 1e3 * (time.perf_counter() - (self.begun_s or 0.0)) > self._limits.max_ms
        if late and not self.is_over and (end := self.text.find("\n", before)) >= 0:
            self._end(end)

    def _end(self, at: int) -> None:
        self.text, self.stop, self.is_over = self.text[:at], "limit", True


class InfillWriter(Writer):
    """The writer of /infill. Several texts are a list of objects, as in llama.cpp."""

    prefix = "infill-"

    def __init__(self, ask: Ask, prepared: Prepared, *more: Any) -> None:
        super().__init__(ask, prepared, *more)
        self._ready_s = time.perf_counter()
        self._texts = [Middle(ask.own) for _ in prepared.request.sequences]

    @property
    def is_enough(self) -> bool:  # type: ignore[override]
        return all(each.is_over for each in self._texts)

    def note(self, piece: Piece) -> None:
        self._texts[piece.index].take(piece)

    def answer(self, completions: List[Completion]) -> Json:
        found = [self._final(index) for index in range(len(self._texts))]
        return found[0] if len(found) == 1 else found  # type: ignore[return-value]

    def chunks(self, piece: Piece) -> Iterator[Json]:
        text = self._texts[piece.index]
        if text.is_over:
            return
        shown = text.take(piece)
        if shown and not self._prepared.only_prompts:
            yield {"index": piece.index, "content": shown, "tokens": list(piece.tokens), "stop": False}
        if text.is_over:
            yield self._final(piece.index) | {"content": ""}

    @property
    def _progress_chunk(self) -> Json:
        return {"index": 0, "content": "", "tokens": [], "stop": False}

    def _pass_over(self, piece: Piece) -> None:
        self._texts[piece.index].take(piece)

    def _final(self, index: int) -> Json:
        text, ended_s = self._texts[index], time.perf_counter()
        begun_s = ended_s if text.begun_s is None else text.begun_s
        num_new = 0 if self._prepared.only_prompts else text.num_tokens
        times = {"prompt": (self._num_prompt - self._num_cached, 1e3 * (begun_s - self._ready_s))}
        times["predicted"] = (num_new, 1e3 * (ended_s - begun_s))
        told: Json = {"cache_n": self._num_cached}
        for name, (number, ms) in times.items():
            each, rate = (ms / number if number else 0.0), (1e3 * number / ms if ms else 0.0)
            told |= {f"{name}_n": number, f"{name}_ms": ms, f"{name}_per_token_ms": each, f"{name}_per_second": rate}
        return {
            "index": index,
            "content": "" if self._prepared.only_prompts else text.text,
            "tokens": [],
            "id_slot": 0,
            "stop": True,
            "model": self._model,
            "tokens_predicted": num_new,
            "tokens_evaluated": self._num_prompt,
            "generation_settings": {"temperature": self._ask.sampling.get("temperature")},
            "has_new_line": "\n" in text.text,
            "truncated": self._ask.is_cut,
            "stop_type": text.stop or "limit",
            "stopping_word": text.word,
            "tokens_cached": self._num_prompt + num_new,
            "timings": told,
            **self._warning_fields(),
        }
