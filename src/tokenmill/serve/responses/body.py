"""The body of /v1/responses, as OpenAI's API has it. Types are strict for what is read; all else is accepted."""

from typing import Any, ClassVar

from tokenmill.serve.http.errors import ApiError
from tokenmill.serve.request.fields import Body, Int64, ListOf

IGNORED = {
    "client_metadata": "about the user",
    "include": "what can be added is there, and a warning names the rest",
    "prompt_cache_key": "the cache finds what begins alike by itself",
    "prompt_cache_retention": "the cache keeps what it has room for",
    "prompt_cache_options": "the cache keeps what it has room for",
    "safety_identifier": "about the user",
    "service_tier": "there is one",
    "user": "about the user",
    "stream_options": "no event is padded",
}
"""Fields that change nothing of a text here, with the reason."""
INCLUDED = ("reasoning.encrypted_content",)
"""What `include` may ask for without a warning: Codex does, and thinking is given in the clear."""
STORED = "this server keeps no responses: send the whole conversation as input"


class ResponsesBody(Body):
    """POST /v1/responses."""

    UNSERVED: ClassVar[dict[str, tuple[Any, ...]]] = {
        "previous_response_id": (),
        "conversation": (),
        "background": (False,),
        "prompt": (),
    }

    input: str | ListOf[dict[str, Any]] = ""
    instructions: str | ListOf[dict[str, Any]] | None = None
    max_output_tokens: Int64 | None = None
    max_tool_calls: Int64 | None = None
    metadata: dict[str, str] | None = None
    parallel_tool_calls: bool = True
    reasoning: dict[str, Any] | None = None
    store: bool = True
    stream: bool = False
    temperature: float | None = None
    text: dict[str, Any] | None = None
    tool_choice: str | dict[str, Any] = "auto"
    tools: ListOf[dict[str, Any]] | None = None
    top_logprobs: Int64 | None = None
    top_p: float | None = None
    truncation: str = "disabled"

    @property
    def unknown(self) -> list[str]:
        """See Body."""
        return [name for name in super().unknown if name not in IGNORED]

    def check(self) -> None:
        """See Body. Names that are like others are ignored as all unknown ones are."""
        for name, nothing in self.UNSERVED.items():
            if (given := (self.model_extra or {}).get(name)) is not None and given not in nothing:
                why = "" if name == "background" else f": {STORED}"
                raise ApiError(400, f"{name} is not supported{why}", name, "unsupported_parameter")
        if self.truncation not in ("disabled", "auto"):
            raise ApiError(400, "truncation: a valid value is disabled or auto", "truncation")
