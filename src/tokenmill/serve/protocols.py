"""The table of protocols, and of the routes that generate, a line for each: application, document, errors, the gate and
batches read it. A route of another kind is a line of routes.py.

A route that generates has a parser, which makes an Ask of its body, and a writer of its answer.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property
from inspect import getdoc
from typing import Any

from pydantic import BaseModel
from starlette.routing import compile_path

from tokenmill.serve.http.errors import PLAIN, Refusals
from tokenmill.serve.http.streams import EVENTS, JSON, LINES
from tokenmill.serve.llama_cpp.parse import InfillBody, LlamaBody, parse_infill
from tokenmill.serve.llama_cpp.parse import parse_completion as parse_llama
from tokenmill.serve.llama_cpp.writer import LlamaWriter
from tokenmill.serve.messages.parse import MessagesBody, parse_messages
from tokenmill.serve.messages.writer import MessagesWriter
from tokenmill.serve.ollama.parse import OllamaChatBody, OllamaGenerateBody, parse_generate
from tokenmill.serve.ollama.parse import parse_chat as parse_ollama_chat
from tokenmill.serve.ollama.writer import ABSENT, OllamaChatWriter, OllamaGenerateWriter
from tokenmill.serve.openai.parse import ChatBody, CompletionBody, parse_chat, parse_completion
from tokenmill.serve.openai.writer import ChatWriter, CompletionWriter
from tokenmill.serve.request.ask import Ask
from tokenmill.serve.request.prompt import Model
from tokenmill.serve.request.writer import Writer
from tokenmill.serve.responses.parse import ResponsesBody, parse_responses
from tokenmill.serve.responses.writer import ResponsesWriter


@dataclass(frozen=True)
class Protocol:
    """A protocol. prefix: of its paths. refusals: the form of its errors. stream: the kind of its streams. needs_type:
    a body must say that it is JSON, whoever sends it. absent: what is said of a path below the prefix that has no
    route.
    """

    prefix: str = "/"
    refusals: Refusals = PLAIN
    stream: str = EVENTS
    needs_type: bool = True
    absent: str = ""


OPENAI = Protocol()


@dataclass(frozen=True)
class Route:
    """A route. do: gets a Call, and returns a response or its JSON; None for a route that generates, which has a parser
    and a writer. refuses: the statuses of its refusals, beside the statuses that any route may have. body, query, form:
    what it reads. told: what it does; the docstring of `do` where that says it. is_open: it wants no key. in_batches:
    lines of batches may ask for it. kinds: the content types of its answers, beside a stream's.
    """

    method: str
    path: str
    do: Callable[[Any], Awaitable[Any]] | None = None
    refuses: tuple[int, ...] = ()
    body: type[BaseModel] | None = None
    query: type[BaseModel] | None = None
    form: type[BaseModel] | None = None
    protocol: Protocol = OPENAI
    parse: Callable[[Any, Model], Ask | dict[str, Any]] | None = None
    writer: type[Writer] | None = None
    told: str = ""
    is_open: bool = False
    is_hidden: bool = False
    in_batches: bool = False
    kinds: tuple[str, ...] = (JSON,)

    def is_at(self, path: str) -> bool:
        """Return whether a path is this route's."""
        return self._pattern.match(path) is not None

    @property
    def description(self) -> str:
        """Its purpose, for the document."""
        return self.told or getdoc(self.do) or ""

    @cached_property
    def _pattern(self) -> Any:
        return compile_path(self.path)[0]


MESSAGES = Protocol("/v1/messages", MessagesWriter.refusals)
RESPONSES = Protocol("/v1/responses", ResponsesWriter.refusals)
OLLAMA = Protocol("/api/", OllamaChatWriter.refusals, LINES, needs_type=False, absent=ABSENT)
PROTOCOLS = (MESSAGES, RESPONSES, OLLAMA, OPENAI)
GENERATES = (400, 404, 408, 429, 503, 504)  # the statuses of their refusals

GENERATING = (
    Route("POST", "/v1/completions", None, GENERATES, CompletionBody, parse=parse_completion,
          writer=CompletionWriter, told="Continue a prompt, or several.", in_batches=True),
    Route("POST", "/v1/chat/completions", None, GENERATES, ChatBody, parse=parse_chat, writer=ChatWriter,
          told="Answer a conversation.", in_batches=True),
    Route("POST", "/v1/messages", None, GENERATES, MessagesBody, protocol=MESSAGES, parse=parse_messages,
          writer=MessagesWriter, told="Answer a conversation, as Anthropic's API does."),
    Route("POST", "/v1/responses", None, GENERATES, ResponsesBody, protocol=RESPONSES, parse=parse_responses,
          writer=ResponsesWriter, told="Answer a conversation, as OpenAI's responses do.", in_batches=True),
    Route("POST", "/completion", None, GENERATES, LlamaBody, parse=parse_llama, writer=LlamaWriter,
          told="Continue a prompt, or several, as llama.cpp does."),
    Route("POST", "/infill", None, GENERATES, InfillBody, parse=parse_infill, writer=LlamaWriter,
          told="Fill in a text between two others, as llama.cpp does."),
    Route("POST", "/api/chat", None, GENERATES, OllamaChatBody, protocol=OLLAMA, parse=parse_ollama_chat,
          writer=OllamaChatWriter, told="Answer a conversation, as Ollama does."),
    Route("POST", "/api/generate", None, GENERATES, OllamaGenerateBody, protocol=OLLAMA, parse=parse_generate,
          writer=OllamaGenerateWriter,
          told="Continue a prompt, in the model's chat template unless it is `raw`, as Ollama does."),
)  # fmt: skip
BATCHED = {route.path: route for route in GENERATING if route.in_batches}


def protocol_at(path: str) -> Protocol:
    """Return the protocol of a path, whether there is a route or not."""
    return next(protocol for protocol in PROTOCOLS if path.startswith(protocol.prefix) or protocol is OPENAI)


def refusals_at(path: str) -> Refusals:
    """Return the form of errors at a path."""
    return protocol_at(path).refusals
