"""The answers of POST /completion and POST /infill, in llama.cpp's form."""

import time
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as List
from dataclasses import asdict, replace
from typing import Any

from tokenmill.engine.outputs import Completion, Piece
from tokenmill.sample.logprobs import TokenLogprobs
from tokenmill.serve.http.errors import Json
from tokenmill.serve.llama_cpp.parse import LlamaOptions
from tokenmill.serve.request.ask import Ask
from tokenmill.serve.request.prepare import Prepared
from tokenmill.serve.request.writer import Writer, finite
from tokenmill.settings.sampling_params import SamplingParams
from tokenmill.text.token_bytes import Spelling

STOPS = {"eos": "eos", "stop": "word", "length": "limit"}
NAMES = {"max_new_tokens": "n_predict", "repetition_penalty": "repeat_penalty", "logprobs": "n_probs"}
"""Our settings → llama.cpp's."""


class LlamaText:
    """One text, as far as it has come. is_over: nothing more of it is wanted."""

    def __init__(self, options: LlamaOptions) -> None:
        self._options = options
        self.text, self.tokens, self.stop, self.word = "", list[int](), "", ""
        self.probabilities = list[Json]()
        self.begun_s: float | None = None
        self.is_over = False

    def take(self, piece: Piece) -> str:
        """Take what is new; return the text that is shown of it."""
        if self.is_over:
            return ""
        self.begun_s = time.perf_counter() if self.begun_s is None else self.begun_s
        before = len(self.text)
        self.tokens += piece.tokens
        self.text += piece.text
        if piece.done is not None:
            self.stop, self.is_over = STOPS.get(piece.done.finish_reason, "limit"), True
            self.word = piece.done.stop_reason if isinstance(piece.done.stop_reason, str) else ""
        self._end_by_limits(before)
        return self.text[before:]

    def _end_by_limits(self, before: int) -> None:
        """End the text before a line that is indented too little, or with a line after the time is over."""
        at = self.text.find("\n", max(before - self._options.indent - 1, 0))
        while self._options.indent and at >= 0:
            line = self.text[at + 1 :]
            blanks = len(line) - len(line.lstrip(" \t"))
            if blanks < self._options.indent and blanks < len(line):
                self._end(max(at + 1 + blanks, before))
                return
            at = self.text.find("\n", at + 1)
        late = self._options.max_ms and 1e3 * (time.perf_counter() - (self.begun_s or 0.0)) > self._options.max_ms
        if late and not self.is_over and (end := self.text.find("\n", before)) >= 0:
            self._end(end)

    def _end(self, at: int) -> None:
        self.text, self.stop, self.is_over = self.text[:at], "limit", True


class LlamaWriter(Writer):
    """The writer of both routes. Several texts are a list of objects, as in llama.cpp."""

    prefix = "cmpl-"

    def __init__(self, ask: Ask, prepared: Prepared, *more: Any) -> None:
        super().__init__(ask, prepared, *more)
        self._options: LlamaOptions = ask.own
        self._ready_s = time.perf_counter()
        self._texts = [LlamaText(ask.own) for _ in prepared.request.sequences]
        self._spellings: dict[int, Spelling] = {}

    @property
    def is_enough(self) -> bool:  # type: ignore[override]
        return all(each.is_over for each in self._texts)

    def note(self, piece: Piece) -> None:
        text, piece = self._texts[piece.index], self._wanted(piece)
        text.probabilities += [] if text.is_over else self._probabilities(piece)
        text.take(piece)

    def answer(self, completions: List[Completion]) -> Json:
        found = []
        for index, text in enumerate(self._texts):
            told = {"completion_probabilities": text.probabilities} if text.probabilities else {}
            tokens = text.tokens if self._ask.wants_ids else []
            found.append(self._chosen(self._final(index) | {"tokens": tokens} | told))
        return found[0] if len(found) == 1 else found  # type: ignore[return-value]

    def chunks(self, piece: Piece) -> Iterator[Json]:
        text, piece = self._texts[piece.index], self._wanted(piece)
        if text.is_over:
            return
        probabilities = self._probabilities(piece)
        shown = text.take(piece)
        if shown or piece.tokens:
            told = {"completion_probabilities": probabilities} if probabilities else {}
            timings = {"timings": self._timings(piece.index)} if self._options.times_each else {}
            new = {"content": shown, "tokens": list(piece.tokens), "tokens_predicted": len(text.tokens)}
            yield {**self._silent, "index": piece.index, **new, **told, **timings}
        if text.is_over:
            yield self._chosen(self._final(piece.index) | {"content": ""})

    @property
    def _silent(self) -> Json:
        counts = {"tokens_predicted": 0, "tokens_evaluated": self._num_prompt}
        return {"index": 0, "content": "", "tokens": [], "stop": False, "id_slot": 0, **counts}

    @property
    def _progress_chunk(self) -> Json:
        return self._silent

    def _pass_over(self, piece: Piece) -> None:
        self.note(piece)

    def _wanted(self, piece: Piece) -> Piece:
        """Leave out the new token of a piece where only the rows of the prompt are wanted."""
        return replace(piece, text="", tokens=(), logprobs=None) if self._prepared.only_prompts else piece

    def _prompt_of(self, index: int) -> list[int]:
        return self._prepared.prompts[index // self._prepared.num_each]

    def _probabilities(self, piece: Piece) -> list[Json]:
        """Write each token of a piece with its log-probability and the likeliest ones in its place, if wanted."""
        if not piece.logprobs:
            return []
        if (spelling := self._spellings.get(piece.index)) is None:
            spelling = Spelling(self._tokenizer, self._prompt_of(piece.index), skip_special=False)
            self._spellings[piece.index] = spelling
        found = []
        for token, entry in zip(piece.tokens, piece.logprobs, strict=True):
            found.append(self._probability(spelling, token, entry))
            spelling.go_on(token)
        return found

    def _probability(self, spelling: Spelling, token: int, entry: TokenLogprobs) -> Json:
        def told(token: int, value: float) -> Json:
            spelled = {"token": spelling.text(token), "bytes": list(spelling.bytes(token))}
            return {"id": token, **spelled, "logprob": value}

        return told(token, entry.logprob) | {"top_logprobs": [told(*each) for each in entry.top]}

    def _final(self, index: int) -> Json:
        text, prompt = self._texts[index], self._prompt_of(index)
        return {
            "index": index,
            "content": text.text,
            "tokens": [],
            "id_slot": 0,
            "stop": True,
            "model": self._model,
            "tokens_predicted": len(text.tokens),
            "tokens_evaluated": len(prompt),
            "generation_settings": self._settings(index),
            "prompt": "" if self._tokenizer is None else self._tokenizer.decode(prompt, False),
            "has_new_line": "\n" in text.text,
            "truncated": self._ask.is_cut,
            "stop_type": text.stop or "limit",
            "stopping_word": text.word,
            "tokens_cached": len(prompt) + len(text.tokens),
            "timings": self._timings(index),
            **self._warning_fields(),
        }

    def _settings(self, index: int) -> Json:
        """Write the settings of a text that differ from their defaults, and the usual ones, by llama.cpp's names."""
        params, usual = self._prepared.request.sequences[index].choosing.params, SamplingParams()
        shown = {name: value for name, value in asdict(params).items() if value != getattr(usual, name)}
        shown |= {name: getattr(params, name) for name in ("max_new_tokens", "seed", "temperature", "top_k", "top_p")}
        told: Json = finite({NAMES.get(name, name): value for name, value in shown.items()})
        return told | {"stream": self._ask.stream}

    def _timings(self, index: int) -> Json:
        text, ended_s = self._texts[index], time.perf_counter()
        begun_s = ended_s if text.begun_s is None else text.begun_s
        times = {"prompt": (self._num_prompt - self._num_cached, 1e3 * (begun_s - self._ready_s))}
        times["predicted"] = (len(text.tokens), 1e3 * (ended_s - begun_s))
        told: Json = {"cache_n": self._num_cached}
        for name, (number, ms) in times.items():
            each, rate = (ms / number if number else 0.0), (1e3 * number / ms if ms else 0.0)
            told |= {f"{name}_n": number, f"{name}_ms": ms, f"{name}_per_token_ms": each, f"{name}_per_second": rate}
        return told

    def _chosen(self, final: Json) -> Json:
        """Return the wanted fields of the last object, each by the last name of its path; all of it without a path."""
        if not self._options.fields:
            return final
        found: Json = {}
        for path in self._options.fields:
            value: Any = final
            for name in path.split("/"):
                value = value.get(name) if isinstance(value, Mapping) else None
            if value is not None:
                found[path.split("/")[-1]] = value
        return found
