"""The tools of a conversation: what the chat template shows of them, and what an answer may be made of.

The model's format of calls, text/tools/, makes both the grammar of the answer and the parser that reads it.
"""

import json
from collections.abc import Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from tokenmill.constrain.compile import Compiler
from tokenmill.constrain.enforced import enforced
from tokenmill.constrain.grammar import behind, grammar_text, spec_of, text_of
from tokenmill.engine.inputs import InputProcessor, plain_message
from tokenmill.errors import RequestError
from tokenmill.loader.loaded import LoadedModel
from tokenmill.serve.http.errors import ApiError
from tokenmill.serve.request.constraints import about_constraint, constraint_of, told_of
from tokenmill.serve.request.custom_tools import CustomTool, read_tools
from tokenmill.serve.request.fields import ChatBody, TokenizeBody
from tokenmill.serve.request.reading import Readers
from tokenmill.serve.request.turns import in_turns
from tokenmill.settings.sampling_params import SamplingParams
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.text.tools.functions import Function, ToolChoice, forced, read_choice
from tokenmill.text.tools.lark import FORCING
from tokenmill.text.tools.model_tools import ModelTools, tools_of
from tokenmill.text.turns import turns_of

Constraint = tuple[str, dict[str, Any]]
Json = dict[str, Any]

_known: WeakKeyDictionary[Tokenizer, tuple[str, tuple[str, ...], ModelTools]] = WeakKeyDictionary()
"""With the name of the format, and the templates that they were found for, since an option may replace them."""


@dataclass(frozen=True)
class Answer:
    """How an answer is constrained and read. constraint: see constraint_of; None if that of the body counts.
    shown_ids: special tokens that its reader needs. warnings: what the constraint says without effect.
    """

    constraint: Constraint | None = None
    shown_ids: tuple[int, ...] = ()
    readers: Readers = field(default_factory=Readers)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Calling:
    """tools: of the model; None without a tokenizer. warnings: what of the functions' schemas is not enforced."""

    tools: ModelTools | None = None
    tokenizer: Tokenizer | None = None
    functions: tuple[Function, ...] = ()
    choice: ToolChoice = field(default_factory=lambda: ToolChoice("none"))
    warnings: tuple[str, ...] = ()

    def conversation(self, messages: List[Mapping[str, Any]]) -> tuple[list[Any], Json]:
        """The messages, and the variables beside them, that the chat template gets."""
        if self.tools is None or not (self.functions or any(map(_is_about_calls, messages))):
            return list(messages), {}
        plain = [plain_message(each, f"message {number} of the chat") for number, each in enumerate(messages, 1)]
        return self.tools.conversation(plain, [function.shown() for function in self.functions])

    def in_turns(self, messages: List[Mapping[str, Any]]) -> list[Any]:
        """The messages in turns that the chat template takes; as they are where they have no texts."""
        if self.tokenizer is None or not all(map(_is_plain, messages)):
            return [*messages]
        return in_turns(messages, turns_of(self.tokenizer))

    def answer(self, inputs: InputProcessor, prompt: List[int], body: ChatBody) -> Answer:
        """How the answer to a prompt is constrained and read."""
        if (tools := self.tools) is None or self.tokenizer is None:
            return Answer()
        is_open = tools.thinking is not None and tools.thinking.is_open_after(prompt, self.tokenizer)
        allowed = self.choice.among(self.functions)
        if not allowed and tools.thinking is None and tools.form.reader is None:
            return Answer()

        def make() -> Any:
            return tools.parser(self.functions, self.choice, is_open=is_open)

        custom = frozenset(each.name for each in allowed if isinstance(each, CustomTool))
        form = tools.form
        readers = Readers(make, form.id_prefix, form.id_length, bool(form.numbered), custom)
        grammar, warnings = self._grammar(tools, inputs, body, is_open) if allowed else (None, ())
        if grammar is not None or tools.form.reader is not None:
            constraint = None if grammar is None else ("tools", {"grammar": grammar})
            return Answer(constraint, tuple(sorted(tools.shown_ids)), readers, warnings)
        marks = tools.thinking.marks() if tools.thinking is not None else ()
        return Answer(None, tuple(tools.control[mark] for mark in marks if mark in tools.control), readers)

    def _grammar(
        self, tools: ModelTools, inputs: InputProcessor, body: ChatBody, is_open: bool
    ) -> tuple[str | None, tuple[str, ...]]:
        """The grammar of an answer that may have calls, and what the body's constraint says without effect. That is
        about an answer without any call.
        """
        field, setting = constraint_of(body)
        if not setting or self.choice.mode == "required":
            return tools.grammar(self.functions, self.choice, is_open=is_open), ()
        with about_constraint(field):
            spec = spec_of(SamplingParams(**{"additional_properties": body.additional_properties, **setting}))
            if spec is None:
                raise ApiError(400, f"{field}: there is nothing in it", field)
            compiler: Compiler = inputs.constraints.compiler
            made = compiler.compile(spec)  # so that a refusal is about what the body says
            grammars = json.loads(grammar_text(spec, compiler.vocabulary))["grammars"]

        def answer(text: str) -> str:
            made = tools.grammar(self.functions, self.choice, is_open=is_open, text=text) or ""
            return made.removeprefix(FORCING) if spec.kind == "grammar" else made

        return text_of(behind(answer, grammars)), told_of(field, made)


def calling_of(loaded: LoadedModel, body: ChatBody | TokenizeBody) -> Calling:
    """The tools of a request. ApiError for those that are none."""
    if (tokenizer := loaded.tokenizer) is None:
        return Calling()
    tools = model_tools(tokenizer)
    try:
        given = read_tools(body.tools or ())
    except RequestError as error:
        raise ApiError(400, str(error), "tools") from None
    choice, is_open = ToolChoice("none"), False
    if isinstance(body, ChatBody):
        try:
            choice = read_choice(body.tool_choice, given, body.parallel_tool_calls)
        except RequestError as error:
            raise ApiError(400, str(error), "tool_choice") from None
        is_open = body.additional_properties
    try:
        functions, warnings = enforced(forced(given, choice), tools.form.name, is_open=is_open)
    except RequestError as error:
        raise ApiError(400, str(error), "tools") from None
    return Calling(tools, tokenizer, functions, choice, tuple(warnings) if isinstance(body, ChatBody) else ())


def set_tools(tokenizer: Tokenizer, name: str) -> str:
    """Have a model's calls written in the format of this name, or as its chat template says; a note of which it is."""
    made = tools_of(tokenizer, name)
    _known[tokenizer] = name, tokenizer.templates, made
    return made.note


def model_tools(tokenizer: Tokenizer) -> ModelTools:
    """The tools of a model, as they were set or as its chat template says."""
    name, templates, _ = _known.get(tokenizer, ("auto", None, None))
    if templates != tokenizer.templates:
        set_tools(tokenizer, name)
    return _known[tokenizer][2]


def _is_plain(message: Any) -> bool:
    """Whether a message has a role, and no content but text."""
    kinds: dict[str, Any] = {"role": str, "content": str | None, "tool_calls": list | None}
    return isinstance(message, Mapping) and all(isinstance(message.get(name), kind) for name, kind in kinds.items())


def _is_about_calls(message: Mapping[str, Any]) -> bool:
    return message.get("role") == "tool" or bool(message.get("tool_calls"))
