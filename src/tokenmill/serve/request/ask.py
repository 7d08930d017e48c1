"""A body of another protocol as the one request that the server knows, a ChatBody."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from tokenmill.engine.core import Core
from tokenmill.serve.http.errors import ApiError
from tokenmill.serve.request.calling import model_tools
from tokenmill.serve.request.effort import BUDGETS
from tokenmill.serve.request.fields import ChatBody
from tokenmill.serve.request.prepare import Prepared, PromptOf, chat_prompt, prepare_chat
from tokenmill.serve.request.turns import in_turns
from tokenmill.settings.recommended import OPENAI, Recommended
from tokenmill.text.turns import turns_of
from tokenmill.value_reader import brief

MAX_NAME = 100  # characters of a field's name that are worth giving back
NO_PLACE = ("logprobs", "top_logprobs", "prompt_logprobs", "stream_options", "receipt")
"""Fields of ours whose results an answer of another protocol has no place for."""
NOT_TAKEN = ("messages", "model", "stream", "n", *NO_PLACE)
PLACEHOLDER = "[{what}, which this model cannot read]"
Json = dict[str, Any]


def field_of(given: Any, name: str, kind: type | tuple[type, ...], where: str) -> Any:
    """A field of an object, of a type; ApiError if it is another one."""
    value = given.get(name) if isinstance(given, Mapping) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        names = " or ".join(each.__name__ for each in (kind if isinstance(kind, tuple) else (kind,)))
        raise ApiError(400, f"{where}.{name}: a {names} is needed, not {brief(value)}", where)
    return value


@dataclass
class Translated:
    """The messages and fields of a ChatBody. variables: of the chat template, where it reads them. unknown: names of
    fields that mean nothing here. warnings: what else the client said without effect. prompt_of, protocol: see
    prepare_chat.
    """

    messages: list[Json] = field(default_factory=list)
    fields: Json = field(default_factory=dict)
    variables: Json = field(default_factory=dict)
    effort: str | None = None
    thinking_budget: int | None = None
    unknown: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    prompt_of: PromptOf | None = None
    protocol: Recommended = field(default_factory=lambda: OPENAI)

    def warn(self, text: str) -> None:
        """Add a warning, once."""
        if text not in self.warnings:
            self.warnings.append(text)

    def placeholder(self, what: str) -> str:
        """The text that stands for what the model cannot read."""
        self.warn(f"{what} is not shown to the model, which reads text alone")
        return PLACEHOLDER.format(what=what)

    def take_others(self, extra: Mapping[str, Any] | None, known: Mapping[str, str]) -> None:
        """Take the fields that a protocol does not have: our own settings count, others are named in warnings, and so
        are those for which an answer has no place. known: those that change nothing here, with the reason.
        """
        for name, value in (extra or {}).items():
            if name in known:
                continue
            if name in ChatBody.model_fields and name not in NOT_TAKEN:
                self.fields.setdefault(name, value)
            else:
                self.unknown.append(name)

    def open_last(self) -> None:
        """Have an answer continued that the client has begun."""
        last = self.messages[-1] if self.messages else {}
        if last.get("role") == "assistant" and not last.get("tool_calls"):
            self.fields |= {"add_generation_prompt": False, "continue_final_message": True}

    def check_strict(self) -> None:
        """ApiError for a field that is not known."""
        if self.unknown:
            raise ApiError(400, f"there is no field {self.unknown[0]!r}", self.unknown[0], "unknown_parameter")

    def body(self) -> ChatBody:
        """The ChatBody."""
        if not self.messages:
            raise ApiError(400, "there are no messages: give at least one", "messages")
        try:
            made: ChatBody = ChatBody.model_validate({**self.fields, "messages": self.messages})
        except ValidationError as error:
            raise RequestValidationError(error.errors()) from None
        return made

    def prepare(self, core: Core, body: ChatBody, tenant: bytes) -> Prepared:
        """See prepare.py, with the messages in turns that the chat template takes."""
        self._settle(core, body)
        return self.noted(prepare_chat(core, body, tenant, self.prompt_of, self.protocol))

    def noted(self, prepared: Prepared) -> Prepared:
        """A request with the warnings that this has."""
        unknown = [f"unknown field {name[:MAX_NAME]!r} is ignored" for name in self.unknown]
        prepared.warnings[:0] = [*unknown, *self.warnings]
        return prepared

    def count(self, core: Core) -> int:
        """The tokens of the conversation."""
        body = self.body()
        self._settle(core, body)
        return len(chat_prompt(core, body)[1])

    def _settle(self, core: Core, body: ChatBody) -> None:
        """Give the model's chat template the turns and the variables that it takes."""
        if (tokenizer := core.loaded.tokenizer) is not None:
            body.messages = in_turns(body.messages, turns_of(tokenizer))
            unread = core.inputs.unread_variables(self.variables)
            read = {name: value for name, value in self.variables.items() if name not in unread}
            body.chat_template_kwargs = {**read, **(body.chat_template_kwargs or {})} or None
        if self.effort in BUDGETS and body.reasoning_effort is None:
            body.reasoning_effort = self.effort
        elif self.effort is not None:
            self.warn(f"an effort of {brief(self.effort)} is not known, so it changes nothing")
        self._limit_thinking(core, body)

    def _limit_thinking(self, core: Core, body: ChatBody) -> None:
        """Set the budget that a protocol names, if the model's answers have marks of thinking."""
        if self.thinking_budget is None:
            return
        tokenizer = core.loaded.tokenizer
        if tokenizer is not None and model_tools(tokenizer).thinking is not None:
            body.thinking_budget = self.thinking_budget
        else:
            self.warn("a budget of thinking changes nothing: this model's answers have no marks of thinking")
