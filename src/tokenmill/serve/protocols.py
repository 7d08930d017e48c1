"""The table of protocols, and of the routes that generate, a line for each: application, document, errors, the gate and
batches read it.

Such a route has a parser, which makes an Ask of its body, and a writer of its answer.
"""

from tokenmill.serve.http.errors import Refusals
from tokenmill.serve.http.streams import LINES
from tokenmill.serve.messages.parse import MessagesBody, parse_messages
from tokenmill.serve.messages.writer import MessagesWriter
from tokenmill.serve.ollama.parse import OllamaChatBody, OllamaGenerateBody, parse_generate
from tokenmill.serve.ollama.parse import parse_chat as parse_ollama_chat
from tokenmill.serve.ollama.writer import ABSENT, OllamaChatWriter, OllamaGenerateWriter
from tokenmill.serve.openai.chat import ChatWriter
from tokenmill.serve.openai.completions import CompletionWriter
from tokenmill.serve.openai.parse import ChatBody, CompletionBody, parse_chat, parse_completion
from tokenmill.serve.request.route import OPENAI, Protocol, Route
from tokenmill.serve.responses.parse import ResponsesBody, parse_responses
from tokenmill.serve.responses.writer import ResponsesWriter

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
