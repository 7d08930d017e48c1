"""The form in which each protocol says an error: as a response, and as the last event of a stream.

OpenAI's API has one object with the same four keys, whatever the status. The route says which protocol it is.
"""

from typing import Any, ClassVar

import pydantic_core
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from tokenmill.serve.http.errors import ApiError, TooLong, api_error_of
from tokenmill.serve.http.json_lines import to_line

Json = dict[str, Any]

MAX_MESSAGE = 1000  # characters: values that a client has sent may be millions
KINDS = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
CODES = ("server_error", "rate_limit_exceeded", "invalid_prompt")  # of a response that has failed
CODES_OF_MESSAGES = ("thread_unsupported_request",)  # those of ours that Anthropic's API has too
NO_RESPONSE: Json = {
    "object": "response",
    "output": [],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}
LAST_NUMBER = 2**31 - 1  # of an event after others that somebody else has counted


class Refusals:
    """OpenAI's form. NAMES: what a protocol calls the fields that chat completions have under other names."""

    NAMES: ClassVar[dict[str, str]] = {}

    def body(self, error: ApiError) -> Json:
        """The object that a response, or an event of a stream, carries."""
        kind = KINDS.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
        param = error.param and self.NAMES.get(error.param, error.param[:MAX_MESSAGE])
        return {"error": {"message": self.message(error), "type": kind, "param": param, "code": error.code}}

    def message(self, error: ApiError) -> str:
        """What is said of an error. A field with which it begins has the protocol's own name."""
        name, sign, rest = error.message.partition(" = ")
        return _cut(f"{self.NAMES.get(name, name)}{sign}{rest}")

    def event(self, body: Json, begun: Json) -> bytes:
        """The last event of a stream. begun: what is known of the answer."""
        return b"data: " + to_line(body) + b"\n\n"


class ResponsesRefusals(Refusals):
    """That of /v1/responses. Codex reads the codes, and how long it should wait out of the message."""

    NAMES: ClassVar[dict[str, str]] = {
        "max_tokens": "max_output_tokens",
        "messages": "input",
        "reasoning_effort": "reasoning.effort",
        "response_format": "text.format",
    }

    def body(self, error: ApiError) -> Json:
        """See Refusals."""
        return {"error": super().body(error)["error"] | self._told(error)}

    def event(self, body: Json, begun: Json) -> bytes:
        """See Refusals."""
        begun = dict(begun)
        number, code = begun.pop("sequence_number", LAST_NUMBER), body["error"]["code"]
        told = {"code": code if code in CODES else "server_error", "message": body["error"]["message"]}
        about = {"id": "", "created_at": begun.get("created", 0), "model": ""}
        failed = {**about, **NO_RESPONSE, **begun, "status": "failed", "error": told}
        event = {"type": "response.failed", "sequence_number": number, "response": failed}
        return b"event: response.failed\ndata: " + to_line(event) + b"\n\n"

    def _told(self, error: ApiError) -> Json:
        message = self.message(error)
        if error.status == 429:
            message = f"{message.rstrip('.')}. Please try again in {error.retry_after_s}s."
            return {"code": "rate_limit_exceeded", "message": message}
        return {"code": error.code or ("server_error" if error.status >= 500 else "invalid_prompt"), "message": message}


class MessagesRefusals(Refusals):
    """That of /v1/messages, as Anthropic's API has it. Claude Code reads the two numbers out of a prompt's refusal."""

    NAMES: ClassVar[dict[str, str]] = {
        "reasoning_effort": "output_config.effort",
        "response_format": "output_config.format",
        "stop": "stop_sequences",
        "thinking_budget": "thinking.budget_tokens",
    }
    KINDS: ClassVar[dict[int, str]] = {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        500: "api_error",
        503: "overloaded_error",
        504: "timeout_error",
    }

    def body(self, error: ApiError) -> Json:
        """See Refusals."""
        kind = self.KINDS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
        message = self.message(error)
        if isinstance(error, TooLong):
            message = f"prompt is too long: {error.num_tokens} tokens > {error.limit - 1} maximum"
        details = {"details": {"error_code": error.code}} if error.code in CODES_OF_MESSAGES else {}
        return {"type": "error", "error": {"type": kind, "message": message, **details}}

    def event(self, body: Json, begun: Json) -> bytes:
        """See Refusals."""
        return b"event: error\ndata: " + to_line(body) + b"\n\n"


class OllamaRefusals(Refusals):
    """That of /api, as Ollama has it: one text, which is a line of its own in a stream."""

    def body(self, error: ApiError) -> Json:
        """See Refusals."""
        return {"error": self.message(error)}

    def event(self, body: Json, begun: Json) -> bytes:
        """See Refusals."""
        return to_line(body) + b"\n"


PLAIN = Refusals()
PROTOCOLS = {"/v1/messages": MessagesRefusals(), "/v1/responses": ResponsesRefusals(), "/api/": OllamaRefusals()}


def body_of(error: ApiError, path: str = "") -> Json:
    """The object that a response to a request of this path carries."""
    return _form_of(path).body(error)


def event_of(error: Exception, path: str = "", begun: Json | None = None) -> bytes:
    """The last event of a stream that has failed: after its first byte there is no status to say it with."""
    form = _form_of(path)
    return form.event(form.body(api_error_of(error)), begun or {})


def event_of_response(body: bytes, path: str, begun: Json) -> bytes:
    """The same of a stream that goes on at another server, which has refused it with this response."""
    return _form_of(path).event(pydantic_core.from_json(body), begun)


def respond(error: Exception, path: str = "") -> JSONResponse:
    """The response of a request that is refused or has failed."""
    told = api_error_of(error)
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}  # Allow, with 405
    headers |= {"Retry-After": str(told.retry_after_s)} if told.status in (429, 503) else {}
    headers |= {"Connection": "close"} if told.status in (408, 413) else {}  # the rest of the body is not read
    return JSONResponse(body_of(told, path), told.status, headers)


def _form_of(path: str) -> Refusals:
    return next((form for prefix, form in PROTOCOLS.items() if path.startswith(prefix)), PLAIN)


def _cut(message: str) -> str:
    return message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]} …"
