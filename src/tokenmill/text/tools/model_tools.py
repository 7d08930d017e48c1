"""The tool calls of a model, in the format that its chat template or the setting tool_format says."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenmill.errors import RequestError
from tokenmill.registry import TEMPLATES, TOOL_FORMATS, check_name, lookup
from tokenmill.text.thinking import Thinking, marks_of
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.text.tools.functions import Function, ToolChoice
from tokenmill.text.tools.grammar import calls_grammar
from tokenmill.text.tools.history import as_plain_turns, with_calls_in_text, with_objects
from tokenmill.text.tools.parser import Parser
from tokenmill.text.tools.tool_format import ToolFormat

FALLBACK = "hermes"
_CALLED = "called_by_nobody"  # the name of a function that no template knows
_JOINT = re.compile(r"""["']\s*(?:-\}\}\s*\{\{-?|\}\}\s*\{\{-|\}\}\{\{)\s*["']""")  # between two texts of a template


@dataclass(frozen=True)
class ModelTools:
    """The tool calls of one model. form: how calls are written. thinking: the marks of thinking, if the family has
    them. is_native: the chat template shows functions; else they are told in the system message. takes_text: the
    template joins arguments with other texts, so they are JSON text to it. shows_calls: the template shows them; else
    they are part of the text of a message, as LFM2's users write them. control: spelling → id of control tokens.
    shown_ids: control tokens that must be in the text of an answer for its parser. note: how this was chosen.
    """

    form: ToolFormat
    thinking: Thinking | None
    is_native: bool
    takes_text: bool
    shows_calls: bool
    control: Mapping[str, int]
    shown_ids: frozenset[int]
    note: str

    def conversation(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Return the messages, and the variables beside them, for the chat template. tools: as the request has them."""
        made = with_objects(messages, self.form, as_text=self.takes_text)
        if self.is_native:
            if not self.shows_calls:
                made = [with_calls_in_text(message, self.form) for message in made]
            return made, {"tools": list(tools)} if tools else {}
        return as_plain_turns(made, tools, self.form), {}

    def grammar(
        self, functions: Sequence[Function], wanted: ToolChoice, *, is_open: bool = False, text: str | None = None
    ) -> str | None:
        """Return the text of llguidance's grammar for an answer; None where no call is allowed.

        is_open: the prompt ends inside thinking; see Thinking.is_open. text: an expression for an answer without calls.
        """
        if not (allowed := wanted.among(functions)):
            return None
        control, thinking = self.control, self.thinking
        return calls_grammar(self.form, allowed, wanted, control=control, thinking=thinking, is_open=is_open, text=text)

    def parser(self, functions: Sequence[Function], wanted: ToolChoice, *, is_open: bool) -> Parser:
        """Return the parser of an answer that the grammar made."""
        return Parser(self.form, wanted.among(functions), thinking=self.thinking, is_open=is_open, is_trusted=True)


def tools_of(tokenizer: Tokenizer, name: str = "auto") -> ModelTools:
    """Return the tools of a model. name: of the format; "auto" finds it by the words of the chat template.

    ConfigError for a name that is not known.
    """
    check_name("tool_format", name, TOOL_FORMATS)
    template = tokenizer.named_templates.get("tool_use", tokenizer.chat_template)
    names = lookup(TEMPLATES, "names", "chat_template")(template) if template is not None else frozenset()
    is_native = "tools" in names
    found = name if name != "auto" else _format_in(template or "") if is_native else None
    form = lookup(TOOL_FORMATS, found or FALLBACK, "tool_format")
    thinking = marks_of(tokenizer)
    marks = {*form.texts(), *(thinking.marks() if thinking is not None else ())}
    shown = {number for spelling, number in tokenizer.control_ids.items() if any(spelling in mark for mark in marks)}
    if name != "auto":
        note = f"tool format {name}, as set"
    elif not is_native:
        note = f"the chat template shows no functions, so they are told in the system message, tool format {FALLBACK}"
    elif found is None:
        note = f"the chat template's way of calling is not known, so it is taken for tool format {FALLBACK}"
    else:
        note = f"tool format {found}, by the words of the chat template"
    shows, takes_text = True, False
    if is_native and template is not None:
        shows, takes_text = _how_shown(template, form, tokenizer.special_texts)
    return ModelTools(form, thinking, is_native, takes_text, shows, tokenizer.control_ids, frozenset(shown), note)


def _format_in(template: str) -> str | None:
    """Return the first format of the registry of which a template holds all words, quoted or not, in one text or in
    texts that are written one after the other.
    """
    plain = template.replace('\\"', '"')
    joined = _JOINT.sub("", plain)
    for name in TOOL_FORMATS:
        words = lookup(TOOL_FORMATS, name, "tool_format").words
        if words and all(word in plain or word in joined for word in words):
            return name
    return None


def _how_shown(template: str, form: ToolFormat, special_texts: Mapping[str, str]) -> tuple[bool, bool]:
    """Return whether a template shows calls, and whether it takes those alone whose arguments are JSON text."""
    render = lookup(TEMPLATES, "jinja", "chat_template")
    for as_text in (False, True):
        call = {"id": form.new_id(), "type": "function", "function": {"name": _CALLED, "arguments": '{"x": 1}'}}
        asked, called = {"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [call]}
        told = {"role": "tool", "tool_call_id": call["id"], "content": "x"}
        messages: list[Mapping[str, Any]] = [asked, called, told]
        try:
            text = render(template, with_objects(messages, form, as_text=as_text), special_texts=special_texts)
        except RequestError:
            continue
        return _CALLED in text, as_text
    return True, False
