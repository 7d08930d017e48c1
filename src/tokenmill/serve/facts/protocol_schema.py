"""The bodies of the protocols' answers, for /openapi.json alone. See serve/answer_schema.py."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from tokenmill.serve.facts.answer_schema import Answer


class MessagesFault(Answer):
    """The fault of a request. details: the `error_code` of one that clients know by it."""

    type: str
    message: str
    details: dict[str, str] = Field(default={})


class MessagesError(Answer):
    """The answer to every request of /v1/messages that is refused or fails."""

    type: Literal["error"]
    error: MessagesFault


class CountAnswer(Answer):
    """The answer of POST /v1/messages/count_tokens."""

    input_tokens: int


class ThinkingTokens(Answer):
    """thinking_tokens: of the answer, those of thinking."""

    thinking_tokens: int


class MessagesUsage(Answer):
    """Tokens that were read and written. cache_read_input_tokens: of the prompt, those whose rows were in the cache;
    they are not among input_tokens. output_tokens_details: where there was thinking.
    """

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingTokens | None = None


class MessageAnswer(Answer):
    """The answer of POST /v1/messages."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]
    stop_sequence: str | None
    usage: MessagesUsage
    warnings: list[str] = Field(default=[])
    prompt_token_ids: list[int] = Field(default=[])
    token_ids: list[int] = Field(default=[])


class ResponseAnswer(BaseModel):
    """The answer of POST /v1/responses: these fields, and those of the request."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete"]
    model: str
    output: list[dict[str, Any]]
    usage: dict[str, Any]
    warnings: list[str] = Field(default=[])
