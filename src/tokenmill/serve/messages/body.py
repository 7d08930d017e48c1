"""The body of /v1/messages, as Anthropic's API has it. Types are strict for what is read; all else is accepted."""

from typing import Any, ClassVar

from pydantic import Field

from tokenmill.serve.http.errors import ApiError
from tokenmill.serve.request.fields import Body, Int64, ListOf

IGNORED = {
    "metadata": "about the user",
    "cache_control": "the cache keeps what it has room for",
    "service_tier": "there is one",
    "speed": "there is one",
    "inference_geo": "there is one place",
    "user_profile_id": "about the user",
    "workspace_id": "about the user",
    "betas": "versions of the protocol",
    "diagnostics": "about the user",
    "context_management": "the conversation is computed as it comes",
}
"""Fields that change nothing of a text here, with the reason."""
NO_THREADS = "thread_unsupported_request"  # by which Anthropic's client goes on without one


class CountBody(Body):
    """POST /v1/messages/count_tokens."""

    UNSERVED: ClassVar[dict[str, tuple[Any, ...]]] = {}

    messages: ListOf[dict[str, Any]] = Field(min_length=1)
    system: str | ListOf[dict[str, Any]] | None = None
    tools: ListOf[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None

    @property
    def unknown(self) -> list[str]:
        """See Body."""
        return [name for name in super().unknown if name not in IGNORED]

    def check(self) -> None:
        """See Body. Names that are like others are ignored as all unknown ones are.

        A thread is refused at its first message, since those after it come without what was said before.
        """
        if (self.model_extra or {}).get("thread") is not None:
            message = "thread is not supported: this server keeps no conversations: send the whole one each time"
            raise ApiError(400, message, "thread", NO_THREADS)


class MessagesBody(CountBody):
    """POST /v1/messages."""

    max_tokens: Int64 = Field(ge=1)
    stop_sequences: ListOf[str] | None = None
    stream: bool = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
