"""The constraints on the texts of one model: grammars and limits of thinking, and the place where each begins."""

import threading
from collections.abc import Iterable
from collections.abc import Sequence as List
from dataclasses import replace

from tokenmill.constrain.compile import Compiler
from tokenmill.constrain.constraint import CompiledGrammar
from tokenmill.constrain.grammar import spec_of
from tokenmill.constrain.vocabulary import vocabulary_of
from tokenmill.errors import ConfigError, RequestError
from tokenmill.sample.matchers import matcher_of
from tokenmill.schedule.choosing import Choosing, ThinkingBudget
from tokenmill.settings.sampling_params import SamplingParams
from tokenmill.text.thinking import Thinking, marks_of
from tokenmill.text.tokenizer import Tokenizer


class Constraints:
    """The maker of the constraints of one model's requests. ends: ids that end a text."""

    def __init__(self, tokenizer: Tokenizer | None, vocab_size: int, ends: Iterable[int]) -> None:
        self._tokenizer, self._vocab_size, self._ends = tokenizer, vocab_size, tuple(ends)
        self._compiler: Compiler | None = None
        self._lock = threading.Lock()

    @property
    def _marks(self) -> Thinking | None:
        """The marks of thinking, asked each time: the server's options may have replaced the chat template."""
        return None if self._tokenizer is None else marks_of(self._tokenizer)

    @property
    def compiler(self) -> Compiler:
        """The compiler of this model's grammars. The first use reads its vocabulary, which may take a second."""
        with self._lock:
            if self._compiler is None:
                assert self._tokenizer is not None, "without one nothing is compiled"
                self._compiler = Compiler(vocabulary_of(self._tokenizer, self._vocab_size, self._ends))
            return self._compiler

    def constrained(self, choosing: Choosing, tokens: List[int], start: int) -> Choosing:
        """Add what constrains the text of a sequence from `start` on to its settings, or from the end on if the text
        that begins there is whole. It may take seconds.
        """
        made = self._from(choosing, tokens, start)
        if start < len(tokens) and (matcher := matcher_of(made)) is not None:
            fits = matcher.follow(tokens[start:]) == len(tokens) - start
            if not fits or matcher.has_ended:
                made = self._from(choosing, tokens, len(tokens))
        return made

    def constraint(self, params: SamplingParams, prompt: List[int] = ()) -> CompiledGrammar | None:
        """Compile the constraint of the settings after a prompt; None without one."""
        marks, after, begin = self._marks, "", ""
        if marks is not None and not self._speaks_of_thinking(params):
            if self._is_open(prompt):
                after = marks.end
            elif params.thinking_budget:
                after, begin = marks.end, marks.begin
        if (spec := spec_of(params, after, begin)) is None:
            return None
        if self._tokenizer is None:
            raise RequestError(f"{spec.kind} needs a tokenizer, which this model does not have", spec.kind)
        return self.compiler.compile(spec)

    def _from(self, choosing: Choosing, tokens: List[int], start: int) -> Choosing:
        params, prompt = choosing.params, tokens[:start]
        constraint, thinking = self.constraint(params, prompt), self._thinking(params.thinking_budget, prompt)
        return replace(choosing, constraint=constraint, thinking=thinking, constrained_from=start)

    def _thinking(self, budget: int | None, prompt: List[int]) -> ThinkingBudget | None:
        if budget is None:
            return None
        if self._marks is None or self._tokenizer is None:
            allowed = "a model that thinks: neither its chat template nor its tokens have marks of thinking"
            raise ConfigError("thinking_budget", budget, allowed)
        marks, tokenizer = self._marks, self._tokenizer
        opening, closing = (tuple(_ids(tokenizer, mark)) for mark in marks.marks())

        def is_closed(thought: List[int]) -> bool:
            return marks.end in tokenizer.decode(thought, skip_special=False)

        return ThinkingBudget(budget, opening, closing, self._is_open(prompt), is_closed)

    def _is_open(self, prompt: List[int]) -> bool:
        """Return whether a prompt ends with the mark that begins a thought."""
        marks, tokenizer = self._marks, self._tokenizer
        return marks is not None and tokenizer is not None and marks.is_open_after(prompt, tokenizer)

    def _speaks_of_thinking(self, params: SamplingParams) -> bool:
        """Return whether a grammar names the mark behind a thought itself, so that it is about the thought, too."""
        if params.grammar is None or self._marks is None or self._tokenizer is None:
            return False
        number = self._tokenizer.control_ids.get(self._marks.end)
        return self._marks.end in params.grammar or (number is not None and f"<[{number}]>" in params.grammar)


def _ids(tokenizer: Tokenizer, mark: str) -> List[int]:
    number = tokenizer.control_ids.get(mark)
    return [number] if number is not None else tokenizer.encode(mark, add_special_tokens=False, continues=True)
