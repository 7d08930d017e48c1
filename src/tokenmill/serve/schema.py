"""The bodies of requests, as OpenAI's API and vLLM name their fields.

Types are strict: "5" is no number. Ranges are those of SamplingParams, which is what the fields become. A field that is
known and not served yet stands in UNSERVED with the values that ask for nothing; any other value is refused by name. A
field that is not known is accepted, and the answer names it in `warnings`. A list is refused at its first wrong entry:
to note an error for each of a million takes the event loop for seconds.
"""

from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["ChatBody", "CompletionBody", "DetokenizeBody", "SessionBody", "StreamOptions", "TokenizeBody"]

T = TypeVar("T")
ListOf = Annotated[list[T], Field(fail_fast=True)]
Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]
NumTop = Annotated[int, Field(ge=0, le=20)]

# What engine/requests.py checks of a message, for /openapi.json.
_PART = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
}
_CONTENT = {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": _PART}]}
_MESSAGE = {
    "type": "object",
    "required": ["role"],
    "properties": {"role": {"type": "string"}, "content": _CONTENT},
    "anyOf": [
        {"required": ["content"]},
        {"required": ["tool_calls"], "properties": {"tool_calls": {"type": "array", "minItems": 1}}},
    ],
}


def _given(name: str, kind: str) -> dict[str, Any]:
    """The schema of an object that has a field, and not as null."""
    return {"required": [name], "properties": {name: {"type": kind}}}


# What config.py checks of a bias, entry by entry.
_BIAS: dict[str, Any] = {"propertyNames": {"pattern": "^[0-9]{1,19}$"}, "additionalProperties": {"type": "number"}}
Messages = Annotated[ListOf[dict[str, Any]], Field(min_length=1, json_schema_extra={"items": _MESSAGE})]


class Body(BaseModel):
    """What all bodies have in common."""

    model_config = ConfigDict(strict=True, extra="allow")
    UNSERVED: ClassVar[dict[str, tuple[Any, ...]]] = {}

    model: str | None = None

    @property
    def unknown(self) -> list[str]:
        """Names of fields that no endpoint of this kind has."""
        return [name for name in self.model_extra or {} if name not in self.UNSERVED]

    @property
    def refused(self) -> str | None:
        """The first field that asks for what is not served yet."""
        given = (self.model_extra or {}).items()
        return next((name for name, value in given if value not in self.UNSERVED.get(name, (value,))), None)


class StreamOptions(BaseModel):
    """What a stream sends beside its text."""

    model_config = ConfigDict(strict=True, extra="ignore")
    include_usage: bool = False


class SamplingBody(Body):
    """The fields that choose tokens. None leaves a setting as the server has it."""

    UNSERVED = {
        "guided_choice": (None,),
        "guided_grammar": (None,),
        "guided_json": (None,),
        "guided_regex": (None,),
        "structured_outputs": (None,),
        "use_beam_search": (None, False),
    }

    n: Int64 | None = None
    max_tokens: Int64 | None = None
    min_tokens: Int64 | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int64 | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Annotated[dict[str, Any], Field(json_schema_extra=_BIAS)] | None = None
    allowed_token_ids: ListOf[Int64] | None = None
    bad_words: ListOf[str] | None = None
    seed: Int64 | None = None
    stop: str | ListOf[str] | None = None
    stop_token_ids: ListOf[Int64] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    stream: bool = False
    stream_options: StreamOptions | None = None
    priority: Int64 = 0
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    cache_salt: str | None = Field(default=None, max_length=1024)
    truncate_prompt_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    return_token_ids: bool = False
    prompt_logprobs: NumTop | None = None
    user: str | None = None

    @property
    def num_prompt_logprobs(self) -> int | None:
        """The likeliest tokens that are wanted at each token of the prompt; None if nothing is wanted there."""
        return self.prompt_logprobs

    @property
    def num_sequences(self) -> int:
        """Sequences that the request would run, before anything of it is checked or encoded."""
        return max(self.n or 1, 1)


class CompletionBody(SamplingBody):
    """POST /v1/completions."""

    UNSERVED = SamplingBody.UNSERVED | {"suffix": (None, "")}

    prompt: str | ListOf[str] | ListOf[Int64] | ListOf[ListOf[Int64]]
    best_of: Int64 | None = None
    logprobs: NumTop | None = None
    echo: bool = False
    add_special_tokens: bool = True

    @property
    def prompts(self) -> list[Any]:
        """One prompt, or several, as a list."""
        given: Any = self.prompt
        return [given] if isinstance(given, str) or (given and isinstance(given[0], int)) else given

    @property
    def num_prompt_logprobs(self) -> int | None:
        """See SamplingBody."""
        wanted = (super().num_prompt_logprobs, self.logprobs if self.echo else None)
        return max((each for each in wanted if each is not None), default=None)

    @property
    def num_sequences(self) -> int:
        """See SamplingBody."""
        return len(self.prompts) * max(super().num_sequences, self.best_of or 1)


class ChatBody(SamplingBody):
    """POST /v1/chat/completions."""

    UNSERVED = SamplingBody.UNSERVED | {
        "response_format": (None, {"type": "text"}),
        "tools": (None, []),
        "tool_choice": (None, "none"),
        "functions": (None, []),
        "function_call": (None, "none"),
        "chat_template": (None,),
        "documents": (None, []),
        "audio": (None,),
        "modalities": (None, ["text"]),
    }

    messages: Messages
    max_completion_tokens: Int64 | None = None
    logprobs: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    top_logprobs: NumTop | None = None


class TokenizeBody(Body):
    """POST /tokenize: a prompt, or the messages of a conversation."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [_given("prompt", "string"), _given("messages", "array")]})

    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool = True


class SessionBody(TokenizeBody):
    """POST /v1/sessions/NAME/save: the text that is kept."""


class DetokenizeBody(Body):
    """POST /detokenize."""

    tokens: ListOf[Int64]
