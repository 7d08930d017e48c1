"""Errors: any exception becomes an ApiError, and Refusals write it in the form of a protocol."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from tokenmill.errors import AS_IDS, AS_TEXT, CapacityError, ConfigError, DeadlinePassed, RequestError
from tokenmill.serve.http.streams import to_line
from tokenmill.settings.sampling_params import HTTP_FIELDS

Json = dict[str, Any]
Spelled = Mapping[str, str]
"""Our names of fields → the names under which a body has them; see Body.spelled."""

RETRY_AFTER_S = 1
MAX_MESSAGE = 1000  # characters: values that a client has sent may be millions
KINDS = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
CLIENT_CLOSED = 499  # nginx's status for a client that has closed the connection


class EngineDied(Exception):
    """The engine serves nothing any more: a step has raised, or the server stops. The message says which."""


class QueueFull(CapacityError):
    """No admission slot is free. retry_after_s: about when there will be."""

    def __init__(self, needed: int, available: int, retry_after_s: int) -> None:
        super().__init__("places in the queue", needed, available, "max-queued-requests")
        self.retry_after_s = retry_after_s


class ApiError(HTTPException):
    """A refusal. param: the field that it is about. retry_after_s: what Retry-After says with status 429 or 503."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int = RETRY_AFTER_S,
    ) -> None:
        super().__init__(status, message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.retry_after_s = retry_after_s


class TooLong(ApiError):
    """The refusal of a prompt that leaves no room for one more token. Gateways know it by its first words.

    field: `prompt` or `messages`. limit: tokens of a prompt and its continuation together.
    """

    def __init__(self, num_tokens: int, limit: int, field: str) -> None:
        self.num_tokens, self.limit, excess = num_tokens, limit, num_tokens + 1 - limit
        message = (
            f"This model's maximum context length is {limit} tokens. However, your {field} resulted in {num_tokens} "
            f"tokens, and at most {limit - 1} leave room for one more: {excess} too many. "
            f"Please reduce the length of the {field}."
        )
        super().__init__(400, message, field, "context_length_exceeded")


def api_error_of(error: Exception) -> ApiError:
    """Turn any exception into one that a client may see."""
    for kind, describe in DESCRIPTIONS.items():
        if isinstance(error, kind):
            return describe(error)
    return ApiError(500, f"a fault of the server: {type(error).__name__}")


FIELDS = {setting: field for setting, field in HTTP_FIELDS.items() if field != setting}
"""The API's names of settings that have another name in SamplingParams."""
ROUTES = {AS_TEXT: "/v1/completions takes a prompt as text", AS_IDS: "/v1/completions takes a prompt of token ids"}
"""The other route that a client can take where messages cannot be encoded."""
SETTING = re.compile(rf"\b({'|'.join(FIELDS)})\b")


ALLOWED = {
    "prompt": "a text, a list of texts, a list of token ids, or a list of such lists",
    "stop": "a text, or a list of texts",
    **dict.fromkeys(("guided_json", "json_schema"), "a JSON schema, as an object or as text"),
    "format": "the text json, or a JSON schema",
}
"""The allowed values of fields that have several types, in words."""


def _field(setting: str) -> str:
    """Return the field that a setting of SamplingParams comes from; a ConfigError may say "logit_bias[5]"."""
    name = setting.partition("[")[0].partition(" ")[0]
    return FIELDS.get(name, name)


def _in_fields(error: ConfigError | RequestError) -> str:
    """Return the message, with settings named as the API's fields are."""
    return SETTING.sub(lambda found: FIELDS[found[0]], str(error))


def _of_validation(error: ValidationError) -> ApiError:
    """Make the refusal of the first wrong thing, with the name of its field."""
    first: Mapping[str, Any] = error.errors()[0]
    places = [str(each) for each in first["loc"]]
    name = places[0] if places else None
    if name in ALLOWED and len(places) > 1:  # pydantic's message is about the first of the types alone
        return ApiError(400, f"{name}: a valid value is {ALLOWED[name]}", name)
    return ApiError(400, f"{name or 'the body'}: {first['msg']}", name)


DESCRIPTIONS: dict[type[Exception], Callable[[Any], ApiError]] = {
    ApiError: lambda error: error,
    ValidationError: _of_validation,
    HTTPException: lambda error: ApiError(error.status_code, str(error.detail)),
    ConfigError: lambda error: ApiError(400, _in_fields(error), _field(error.name)),
    DeadlinePassed: lambda error: ApiError(504, str(error), "timeout", "deadline_exceeded"),
    RequestError: lambda error: ApiError(400, _in_fields(error), error.setting and _field(error.setting)),
    QueueFull: lambda error: ApiError(
        429, f"the server is full: {error}", code="queue_full", retry_after_s=error.retry_after_s
    ),
    CapacityError: lambda error: ApiError(429, f"the server is full: {error}", code="queue_full"),
    EngineDied: lambda error: ApiError(503, str(error), code="engine_unavailable"),
}


@contextmanager
def about(field: str) -> Iterator[None]:
    """Have refusals raised inside name this field; a deadline is none."""
    try:
        yield
    except DeadlinePassed:
        raise
    except RequestError as error:
        message = _in_fields(error)
        for advice, route in ROUTES.items() if field == "messages" else ():
            message = message.replace(advice, route)
        raise ApiError(400, message, field) from None


LEADING = re.compile(r"\A\w+(?= = |: )")
COMPOUND = re.compile(r"(?<![\w.'\"])[a-z]+(?:_[a-z]+)+\b(?!['\".])")
NOT_SPELLED: Spelled = {}


class Refusals:
    """The form in which a protocol says an error: as a response, and as the last event of a stream. This is OpenAI's,
    one object with the same four keys, whatever the status. NAMES: what a protocol calls fields that have other names
    here.
    """

    NAMES: ClassVar[dict[str, str]] = {}

    def body(self, error: ApiError, spelled: Spelled = NOT_SPELLED) -> Json:
        """Return the object that a response, or an event of a stream, carries. spelled: the names in the body."""
        kind = KINDS.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
        param = error.param and self.name(error.param[:MAX_MESSAGE], spelled)
        return {"error": {"message": self.message(error, spelled), "type": kind, "param": param, "code": error.code}}

    def name(self, field: str, spelled: Spelled) -> str:
        """Return the name that the client gave a field; else the protocol's name of it."""
        own = self.NAMES.get(field, field)
        return own if own.partition(".")[0] in spelled.values() else spelled.get(field, own)

    def message(self, error: ApiError, spelled: Spelled = NOT_SPELLED) -> str:
        """Return what is said of an error. A field with which it begins has the client's own name, and so have fields
        further on whose names are no words.
        """
        message = LEADING.sub(lambda found: self.name(found[0], spelled), error.message[: 2 * MAX_MESSAGE])
        message = COMPOUND.sub(lambda found: self.name(found[0], spelled), message)
        return message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]} …"

    def event(self, body: Json, begun: Json) -> bytes:
        """Write the last event of a stream. begun: what is known of the answer."""
        return b"data: " + to_line(body) + b"\n\n"

    def event_of(self, error: Exception, begun: Json) -> bytes:
        """Write the last event of a stream that has failed: after its first byte there is no status to say it with."""
        return self.event(self.body(api_error_of(error)), begun)

    def respond(self, error: Exception, spelled: Spelled = NOT_SPELLED) -> JSONResponse:
        """Make the response of a request that is refused or has failed."""
        told = api_error_of(error)
        headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}  # Allow, with 405
        headers |= {"Retry-After": str(told.retry_after_s)} if told.status in (429, 503) else {}
        headers |= {"Connection": "close"} if told.status in (408, 413) else {}  # the rest of the body is not read
        return JSONResponse(self.body(told, spelled), told.status, headers)


PLAIN = Refusals()
