"""The prompt of a conversation: its messages in turns that the chat template takes, with tools, and how it thinks.

A prompt may stand behind token ids of an earlier text, `Ask.after`. They stay as they are, so that the text goes on
exactly, and finds its rows in the cache. What the chat template puts between an answer and the end of the prompt is
found by rendering the turn behind two different answers: it is the end that both have in common.
"""

from collections.abc import Sequence as List
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from tokenmill.engine.adapters import Adapters
from tokenmill.engine.core import Core
from tokenmill.errors import NO_HEAD, RequestError
from tokenmill.loader.loaded import LoadedModel
from tokenmill.serve.http.errors import ApiError, about
from tokenmill.serve.request.ask import BUDGETS, Ask
from tokenmill.serve.request.calling import Calling, calling_of, in_turns, model_tools
from tokenmill.serve.request.fields import LATEST, Body, adapter_of, check_model
from tokenmill.text.infill import NO_MARKS, marks_of
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.text.tools.history import unread
from tokenmill.text.turns import turns_of

TURNS = "this model's chat template refuses such turns, so messages that follow each other were put together"
MAX_NAME = 100  # characters of a field's name that are worth giving back
KNOWN_EFFORTS = {"minimal": "low", "xhigh": "high", "max": "high"}
"""Efforts → efforts that templates know."""
MOST_TRIED = 20_000  # ids, among which two words are looked for
NO_TURN = "this model's chat template puts no turn behind an answer, so send the conversation to /api/chat"

_words: WeakKeyDictionary[Tokenizer, list[str]] = WeakKeyDictionary()


class Model:
    """The model, as far as a parser must know it. name: to clients. is_strict: unknown fields are refused. adapters:
    the names of those that are loaded, which clients name as models. may_go: the server unloads it when it is idle.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        name: str,
        is_strict: bool,
        adapters: Adapters | None = None,
        may_go: bool = False,
    ) -> None:
        self.loaded, self.name, self.is_strict, self.may_go = loaded, name, is_strict, may_go
        self._adapters = adapters

    @property
    def adapters(self) -> List[str]:
        """List the names of the loaded adapters, of which the one of every text may have the model's name."""
        return [] if self._adapters is None else sorted(self._adapters.by_name.keys() - {self.name})

    def adapter(self, name: str | None) -> str | None:
        """Find the adapter that a request names as its model; None for the model itself."""
        return None if name in (self.name, f"{self.name}{LATEST}") else adapter_of(name, self.adapters)

    def is_own(self, name: str) -> bool:
        """Tell whether a name means the model itself: in letters of either case, with the tag that clients add."""
        return name.casefold().removesuffix(LATEST) == self.name.casefold()

    def check_name(self, name: str | None) -> None:
        """Raise ApiError for a name that is neither the model's nor an adapter's."""
        check_model(name, self.name, self.adapters)

    def check(self, body: Body) -> None:
        """Raise ApiError for a body that names another model, or asks for what is not served."""
        self.check_name(body.model)
        body.check()
        self.check_known(body.unknown)

    def check_known(self, unknown: List[str]) -> None:
        """Raise ApiError for a field that is not known, if the server is strict."""
        if self.is_strict and unknown:
            raise ApiError(400, f"there is no field {unknown[0]!r}", unknown[0], "unknown_parameter")

    @property
    def num_positions(self) -> int:
        """The most tokens of a prompt and its continuation together."""
        return self.loaded.resolved.longest_text

    @property
    def thinks(self) -> bool:
        """Return whether answers have marks of thinking."""
        return self.loaded.tokenizer is not None and model_tools(self.loaded.tokenizer).thinking is not None

    @property
    def fills_in(self) -> bool:
        """Return whether the model has marks by which a text is filled in between two others."""
        return self.loaded.tokenizer is not None and marks_of(self.loaded.tokenizer) is not None

    def check_fills_in(self, param: str, code: str) -> None:
        """Raise ApiError for a model that writes no text, or fills none in."""
        if not self.loaded.model_config.has_head:
            raise ApiError(400, NO_HEAD, "model", "not_supported")
        if not self.fills_in:
            raise ApiError(400, NO_MARKS, param, code)

    @property
    def has_template(self) -> bool:
        """Return whether there are conversations."""
        return self.loaded.tokenizer is not None and self.loaded.tokenizer.template_for(None) is not None


def conversation_prompt(core: Core, ask: Ask) -> tuple[Calling, list[int], list[str]]:
    """Return the tools of a conversation, its token ids, and warnings."""
    if not ask.messages:
        raise ApiError(400, "there are no messages: give at least one", "messages")
    _settle(core, ask)
    calling, tokens, warnings = _rendered(core, ask)
    return calling, _behind(core, ask) if ask.after else tokens, [*calling.warnings, *warnings]


def ids_before(core: Core, ask: Ask) -> list[int]:
    """Return the ids behind which a prompt is put. ApiError for ids that the model does not have."""
    try:
        return core.inputs.encode(ask.after)
    except RequestError as error:
        raise ApiError(400, f"context: {error}", "context") from None


def template_warnings(core: Core, ask: Ask) -> list[str]:
    """Return a warning for each variable that the chat template was given and does not read."""
    unread = core.inputs.unread_variables(_template_variables(ask))
    return [f"this model's chat template does not read {name[:MAX_NAME]!r}, so it changes nothing" for name in unread]


def unknown_warnings(unknown: List[str]) -> list[str]:
    """Return a warning for each field that is not known."""
    return [f"unknown field {name[:MAX_NAME]!r} is ignored" for name in unknown]


def _template_variables(ask: Ask) -> dict[str, Any]:
    """Return the variables that the chat template reads beside the messages."""
    ends = {"add_generation_prompt": ask.opens_answer, "continue_final_message": ask.continues_last}
    return {**ask.variables, **ends}


def _rendered(core: Core, ask: Ask) -> tuple[Calling, list[int], list[str]]:
    calling = calling_of(core.loaded, ask)
    warnings = _settle_effort(core, ask)
    with about("messages"):
        messages, more = calling.conversation(ask.messages)
        warnings += unread(ask.messages)
        variables = {**_template_variables(ask), **more}
        try:
            return calling, core.inputs.chat_prompt(messages, variables=variables), warnings
        except RequestError:
            if (other := calling.in_turns(messages)) == messages:
                raise
            tokens = core.inputs.chat_prompt(other, variables=variables)
        return calling, tokens, [*warnings, TURNS]


def _settle(core: Core, ask: Ask) -> None:
    """Give the chat template the turns and the variables that it takes, and the thinking its budget."""
    tokenizer = core.loaded.tokenizer
    if tokenizer is not None and not ask.is_as_sent:
        ask.messages = in_turns(ask.messages, turns_of(tokenizer))
        unread = core.inputs.unread_variables(ask.hints)
        ask.variables = {**{name: value for name, value in ask.hints.items() if name not in unread}, **ask.variables}
    if ask.budget is None:
        return
    if tokenizer is not None and model_tools(tokenizer).thinking is not None:
        ask.sampling["thinking_budget"] = ask.budget
    else:
        ask.warn("a budget of thinking changes nothing: this model's answers have no marks of thinking")


def _settle_effort(core: Core, ask: Ask) -> list[str]:
    """Give the template the effort, or the request a budget; return a warning where neither changes anything."""
    if (effort := ask.effort) is None:
        return []
    if effort not in BUDGETS:
        names = ", ".join(BUDGETS)
        raise ApiError(400, f"reasoning_effort = {effort[:40]!r} is not allowed: one of {names}", "reasoning_effort")
    if core.loaded.tokenizer is None:
        return []
    unread = core.inputs.unread_variables({"reasoning_effort": effort, "enable_thinking": True})
    found: dict[str, object] = {}
    if "enable_thinking" not in unread:
        found["enable_thinking"] = effort != "none"
    has_budget = ask.sampling.get("thinking_budget") is not None
    if "reasoning_effort" not in unread and effort != "none":
        found["reasoning_effort"] = KNOWN_EFFORTS.get(effort, effort)
    elif (
        model_tools(core.loaded.tokenizer).thinking is not None and not has_budget and not (effort == "none" and found)
    ):
        ask.sampling["thinking_budget"] = BUDGETS[effort]
    elif not found and not has_budget:
        return ["reasoning_effort changes nothing: this model's answers have no marks of thinking"]
    ask.variables = {**found, **ask.variables}
    return []


def _behind(core: Core, ask: Ask) -> list[int]:
    """Return the ids of a prompt behind the ids of an earlier answer. The conversation has one message, of the user."""
    before = ids_before(core, ask)
    with about("context"):
        tokenizer = core.loaded.tokenizer
        assert tokenizer is not None, "the conversation was rendered"
        first, second = (_after_answer(core, ask, word) for word in _two_words(tokenizer))
        turn = _common_end(first, second)
        if len(turn) in (0, len(first), len(second)):
            raise RequestError(NO_TURN)
    if before[-1] == turn[0] and before[-1] in core.loaded.model_config.eos_token_ids + tokenizer.eos_token_ids:
        turn = turn[1:]  # the answer has ended itself
    return [*before, *turn]


def _after_answer(core: Core, ask: Ask, answer: str) -> list[int]:
    """Return the ids of a conversation in which the request's message follows an answer."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": answer}, {"role": "assistant", "content": answer}]
    return _rendered(core, replace(ask, messages=[*messages, *ask.messages]))[1]


def _common_end(first: List[int], second: List[int]) -> list[int]:
    count = 0
    while count < min(len(first), len(second)) and first[-1 - count] == second[-1 - count]:
        count += 1
    return list(first[len(first) - count :])


def _two_words(tokenizer: Tokenizer) -> list[str]:
    """Return two words that are a token each."""
    if tokenizer not in _words:
        found: list[str] = []
        for number in range(min(MOST_TRIED, tokenizer.backend.get_vocab_size())):
            text = tokenizer.decode([number], False).strip()
            if text.isalnum() and text.isascii() and tokenizer.encode(text, False) == [number]:
                found.append(text)
            if len(found) == 2:
                break
        else:
            raise RequestError(NO_TURN)
        _words[tokenizer] = found
    return _words[tokenizer]
