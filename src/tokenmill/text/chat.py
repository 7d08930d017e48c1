"""Chat templates: a conversation becomes the text that the model was trained to continue.

A checkpoint brings its template, in Jinja, so it is untrusted code; text/sandbox.py runs it within bounds. What it
sees is what transformers' `apply_chat_template` shows it, and the text is the same.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateSyntaxError, UndefinedError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.utils import Namespace

from tokenmill.errors import AS_TEXT, CheckpointError, RequestError
from tokenmill.text.literal import SpelledNumber
from tokenmill.text.sandbox import BoundedEnvironment

MAX_TEMPLATE = 100_000  # characters; the longest published ones have some 30 thousand
MAX_DATE = 100  # characters of a date's format
MAX_REASON = 500  # characters of a template's own message that are worth showing
MAX_NESTING = 100  # of lists and objects in a message
NAMED = ("role", "type")  # keys whose values templates compare with names of theirs
REASONING = ("reasoning_content", "thinking", "reasoning")


def render_chat(
    template: str | None,
    messages: Iterable[Mapping[str, Any]],
    *,
    special_texts: Mapping[str, str],
    mark: Callable[[str], str] = str,
    add_generation_prompt: bool = True,
    **variables: Any,
) -> str:
    """Return the text of a conversation, as transformers' `apply_chat_template` renders it.

    A key of a message whose value is null is left out, as if it were not there. A message without content is rendered
    as one with an empty text if the template cannot do without: transformers refuses there, and vLLM does this.
    special_texts: "bos_token", "eos_token" and so on, as the template names them. mark: what the template sees of each
    text in messages and variables. variables: whatever else it reads (`tools`, `documents`, `enable_thinking`, …).
    CheckpointError when the template is no template; RequestError when there is none, when it refuses the messages, and
    when it asks for more than a bounded amount of work.
    """
    if template is None:
        raise RequestError(f"this model has no chat template: {AS_TEXT}")
    environment, compiled = _compiled(template)
    try:
        given = {"tools": None, "documents": None, **special_texts, **_plain(variables, mark)}
        conversation = [_normalized(_plain(message, mark)) for message in messages]
        seen = {**given, "messages": conversation, "add_generation_prompt": add_generation_prompt}
        try:
            return environment.render_bounded(compiled, seen)
        except UndefinedError:
            if all("content" in message for message in conversation):
                raise
            seen["messages"] = [{"content": "", **message} for message in conversation]
            return environment.render_bounded(compiled, seen)
    except RequestError:
        raise
    except Exception as error:
        # A template can fail in every way that Python can; all of them are this request's.
        what = f"{type(error).__name__}: {_line(error)}"
        raise RequestError(f"the chat template does not accept these messages: {what}") from error


def check_template(template: str) -> None:
    """Raise CheckpointError if it is no chat template."""
    _compiled(template)


@lru_cache(maxsize=16)
def names_in(template: str) -> frozenset[str]:
    """Return the names that a template uses: a variable of another name cannot change what it renders."""
    environment, _ = _compiled(template)
    return frozenset(name.name for name in environment.parse(template).find_all(nodes.Name))


@lru_cache(maxsize=16)
def _compiled(template: str) -> tuple[BoundedEnvironment, Template]:
    if len(template) > MAX_TEMPLATE:
        raise CheckpointError(f"the chat template has {len(template)} characters; at most {MAX_TEMPLATE} are allowed")
    extensions = [_GenerationTag, "jinja2.ext.loopcontrols"]
    environment = BoundedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now, namespace=_Namespace)
    try:
        return environment, environment.compile_bounded(template)
    except Exception as error:
        # Nesting too deep for Jinja or Python shows as RecursionError, MemoryError or SyntaxError.
        where = f"is wrong in line {error.lineno}" if isinstance(error, TemplateSyntaxError) else "cannot be compiled"
        raise CheckpointError(f"the chat template {where}: {type(error).__name__}: {_line(error)}") from error


def _plain(value: Any, mark: Callable[[str], str], is_name: bool = False, depth: int = 0) -> Any:
    """Return a copy of JSON's types alone, so that a template meets no object with methods of its own; texts are
    marked.

    is_name: the text is a key, or one that templates compare with names of theirs; an identifier there is not marked.
    """
    if value is None or type(value) in (int, float, bool):
        return value
    if isinstance(value, SpelledNumber):
        return float(value)
    if isinstance(value, str):
        return str.__str__(value) if is_name and value.isidentifier() else mark(str.__str__(value))
    if depth == MAX_NESTING:
        raise RequestError("a chat message is nested too deep, or holds itself")
    if isinstance(value, Mapping):
        items = value.items()
        return {_plain(key, mark, is_name=True): _plain(item, mark, key in NAMED, depth + 1) for key, item in items}
    if isinstance(value, (list, tuple)):
        return [_plain(item, mark, depth=depth + 1) for item in value]
    raise RequestError(f"a chat message holds a {type(value).__name__}; only JSON's types are allowed: pass text")


def _normalized(message: Any) -> dict[str, Any]:
    """Return a message without null values, its reasoning under all names that templates look for."""
    if not isinstance(message, dict):
        raise RequestError(f"a chat message is a {type(message).__name__}; it must be a dict with role and content")
    message = {name: value for name, value in message.items() if value is not None}
    reasoning = next((message[name] for name in REASONING if name in message), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


class _Namespace(Namespace):
    """Jinja's namespace without names that mean something to Python. Its text does not show its content."""

    def __init__(self, /, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        for name, value in dict(*args, **kwargs).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if str(name).startswith("_"):
            raise RequestError(f"the chat template sets {name!r} on a namespace; names there may not begin with _")
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<Namespace>"


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's text for training; for rendering it is a scope and nothing else."""

    tags = {"generation"}  # noqa: RUF012  # Jinja declares it as a set

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _raise_exception(message: Any) -> None:
    raise RequestError(f"the chat template refuses these messages: {_line(message)}")


def _strftime_now(form: str) -> str:
    """Return the date as C's strftime writes it, which takes a width: `%999999999d` would fill a gigabyte."""
    if not isinstance(form, str) or len(form) > MAX_DATE or re.search(r"%[^A-Za-z%]*\d", form):
        raise RequestError(f"the chat template asks for the date as {_line(form)[:40]!r}; such a format is not allowed")
    return datetime.now().strftime(form)


def _line(message: object) -> str:
    return " ".join(str(message).split())[:MAX_REASON]
