"""The tools of a conversation: what the chat template shows of them, and what an answer may be made of.

The model's format of calls, text/tools/, makes both the grammar of the answer and the parser that reads it.

Agents put system messages among the others, and several messages of one role in a row. A system message that stands
inside is kept where the template renders it as an insertion; else it is added to the message before it, so that a
conversation that grows keeps the text that it had, and with it the rows of the cache. It never comes between a call of
a tool and its results. Messages of one role in a row become one where the template refuses them.
"""

import json
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from tokenmill.constrain.compile import Compiler
from tokenmill.constrain.enforced import enforced
from tokenmill.constrain.grammar import behind, grammar_text, spec_of, text_of
from tokenmill.engine.inputs import InputProcessor, plain_message
from tokenmill.loader.loaded import LoadedModel
from tokenmill.serve.http.errors import ApiError, Json, about
from tokenmill.serve.request.ask import Ask
from tokenmill.serve.request.constraints import Constraint, about_constraint, told_of
from tokenmill.serve.request.custom_tools import CustomTool, read_tools
from tokenmill.serve.request.reading import Readers
from tokenmill.settings.sampling_params import SamplingParams
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.text.tools.functions import Function, ToolChoice, forced, read_choice
from tokenmill.text.tools.lark import FORCING
from tokenmill.text.tools.model_tools import ModelTools, tools_of
from tokenmill.text.turns import TurnRules, turns_of

GAP = "\n\n"  # between two messages that are made one

_known: WeakKeyDictionary[Tokenizer, tuple[str, tuple[str, ...], ModelTools]] = WeakKeyDictionary()
"""The tools of each tokenizer, with the name of the format and the templates: an option may replace these."""


@dataclass(frozen=True)
class Answer:
    """The form of an answer, by which it is constrained and read. constraint: None if the request's own counts.
    shown_ids: special tokens that its reader needs. warnings: what the constraint says without effect.
    """

    constraint: Constraint | None = None
    shown_ids: tuple[int, ...] = ()
    readers: Readers = field(default_factory=Readers)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Calling:
    """The calls of a request. tools: of the model; None without a tokenizer. warnings: unenforced parts of schemas."""

    tools: ModelTools | None = None
    tokenizer: Tokenizer | None = None
    functions: tuple[Function, ...] = ()
    choice: ToolChoice = field(default_factory=lambda: ToolChoice("none"))
    warnings: tuple[str, ...] = ()

    def conversation(self, messages: List[Mapping[str, Any]]) -> tuple[list[Any], Json]:
        """Return the messages, and the variables beside them, that the chat template gets."""
        if self.tools is None or not (
            self.functions or any(each.get("role") == "tool" or each.get("tool_calls") for each in messages)
        ):
            return list(messages), {}
        plain = [plain_message(each, f"message {number} of the chat") for number, each in enumerate(messages, 1)]
        return self.tools.conversation(plain, [function.shown() for function in self.functions])

    def in_turns(self, messages: List[Mapping[str, Any]]) -> list[Any]:
        """Return the messages in turns that the chat template takes; as they are where they have no texts."""
        if self.tokenizer is None or not all(map(_is_plain, messages)):
            return [*messages]
        return in_turns(messages, turns_of(self.tokenizer))

    def answer(self, inputs: InputProcessor, prompt: List[int], ask: Ask) -> Answer:
        """Tell how the answer to a prompt is constrained and read."""
        if (tools := self.tools) is None or self.tokenizer is None:
            return Answer()
        is_open = tools.thinking is not None and tools.thinking.is_open_after(prompt, self.tokenizer)
        allowed = self.choice.among(self.functions)
        if not allowed and tools.thinking is None and tools.form.reader is None:
            return Answer()
        make = partial(tools.parser, self.functions, self.choice, is_open=is_open)
        custom = frozenset(each.name for each in allowed if isinstance(each, CustomTool))
        form = tools.form
        readers = Readers(make, form.id_prefix, form.id_length, bool(form.numbered), custom)
        grammar, warnings = self._grammar(tools, inputs, ask, is_open) if allowed else (None, ())
        if grammar is not None or tools.form.reader is not None:
            constraint = None if grammar is None else ("tools", {"grammar": grammar})
            return Answer(constraint, tuple(sorted(tools.shown_ids)), readers, warnings)
        marks = tools.thinking.marks() if tools.thinking is not None else ()
        return Answer(None, tuple(tools.control[mark] for mark in marks if mark in tools.control), readers)

    def _grammar(
        self, tools: ModelTools, inputs: InputProcessor, ask: Ask, is_open: bool
    ) -> tuple[str | None, tuple[str, ...]]:
        """Write the grammar of an answer that may have calls, and what the request's constraint, which is about an
        answer without any call, says without effect.
        """
        field, setting = ask.constraint
        if not setting or self.choice.mode == "required":
            return tools.grammar(self.functions, self.choice, is_open=is_open), ()
        with about_constraint(field):
            spec = spec_of(SamplingParams(**{"additional_properties": ask.opens_objects, **setting}))
            if spec is None:
                raise ApiError(400, f"{field}: there is nothing in it", field)
            compiler: Compiler = inputs.constraints.compiler
            made = compiler.compile(spec)  # so that a refusal is about what the request says
            grammars = json.loads(grammar_text(spec, compiler.vocabulary))["grammars"]

        def answer(text: str) -> str:
            made = tools.grammar(self.functions, self.choice, is_open=is_open, text=text) or ""
            return made.removeprefix(FORCING) if spec.kind == "grammar" else made

        return text_of(behind(answer, grammars)), told_of(field, made)


def calling_of(loaded: LoadedModel, ask: Ask) -> Calling:
    """Read the tools of a request. ApiError for a wrong one."""
    if (tokenizer := loaded.tokenizer) is None:
        return Calling()
    tools = model_tools(tokenizer)
    with about("tools"):
        given = read_tools(ask.tools)
    with about("tool_choice"):
        choice = read_choice(ask.tool_choice, given, ask.parallel_calls)
    with about("tools"):
        functions, warnings = enforced(forced(given, choice), tools.form.name, is_open=ask.opens_objects)
    return Calling(tools, tokenizer, functions, choice, tuple(warnings))


def set_tools(tokenizer: Tokenizer, name: str) -> str:
    """Have a model's calls written in the format of this name, or as its chat template says; return a note of which."""
    made = tools_of(tokenizer, name)
    _known[tokenizer] = name, tokenizer.templates, made
    return made.note


def model_tools(tokenizer: Tokenizer) -> ModelTools:
    """Return the tools of a model, as they were set or as its chat template says."""
    name, templates, _ = _known.get(tokenizer, ("auto", None, None))
    if templates != tokenizer.templates:
        set_tools(tokenizer, name)
    return _known[tokenizer][2]


def _is_plain(message: Any) -> bool:
    """Return whether a message has a role, and no content but text."""
    kinds: dict[str, Any] = {"role": str, "content": str | None, "tool_calls": list | None}
    return isinstance(message, Mapping) and all(isinstance(message.get(name), kind) for name, kind in kinds.items())


def in_turns(messages: Iterable[Mapping[str, Any]], turns: TurnRules) -> list[Json]:
    """Put messages whose contents are texts into turns as the template takes them."""
    made: list[Json] = []
    for message in _calls_first(map(dict, messages)):
        last = made[-1] if made else None
        is_system, is_user = message["role"] == "system", message["role"] == "user"
        if last is not None and _is_more(last, message) and not turns.takes_answers_in_a_row:
            made[-1] = _joined(last, message)
        elif last is None or not (is_system or is_user):
            made.append(message)
        elif is_system and last["role"] == "system" and len(made) == 1:
            made[-1] = _joined(last, message)
        elif is_system and turns.takes_system_inside:
            made.append(message)
        elif last["role"] in (("user", "tool") if is_system else () if turns.takes_users_in_a_row else ("user",)):
            made[-1] = _joined(last, message)
        else:
            made.append({**message, "role": "user"})
    return made


def _calls_first(messages: Iterable[Json]) -> Iterable[Json]:
    """Yield the messages, each result of a tool before what stands between it and its call."""
    held: list[Json] = []
    num_open = 0
    for message in messages:
        if message["role"] == "assistant":
            yield from held
            held, num_open = [], len(message.get("tool_calls") or ())
            yield message
        elif message["role"] == "tool":
            num_open -= 1
            yield message
        elif num_open > 0:
            held.append(message)
        else:
            yield from held
            held = []
            yield message
    yield from held


def _is_more(last: Json, message: Json) -> bool:
    """Return whether a message of the assistant follows another one that has called nothing."""
    return message["role"] == last["role"] == "assistant" and not last.get("tool_calls")


def _joined(first: Json, second: Json) -> Json:
    made = {**second, **first}
    for name in ("content", "reasoning_content"):
        if any(name in each for each in (first, second)):
            made[name] = GAP.join(text for each in (first, second) if (text := each.get(name)))
    return made
