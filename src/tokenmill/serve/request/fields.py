"""The bodies of requests, as OpenAI's API and vLLM name their fields.

Types are strict: "5" is no number. Ranges are those of SamplingParams, which is what the fields become. A field that is
null is as one that is not there. Other engines' names of a field are taken too. A field that is known and not served
yet stands in UNSERVED with the values that ask for nothing; any other value is refused by name. So is a field whose
name is almost that of another. One that is not known is accepted, and the answer names it in `warnings`. A list is
refused at its first wrong entry: to note an error for each of a million takes the event loop for seconds.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, create_model, model_validator
from pydantic.fields import FieldInfo

from tokenmill.engine.inputs import PARTS, WITHOUT_CONTENT
from tokenmill.serve.http.errors import ApiError
from tokenmill.serve.request.constraints import INSTEAD_OF_TAGS, ConstraintFields
from tokenmill.serve.request.field_names import nearest
from tokenmill.settings.field import settings_of
from tokenmill.settings.sampling_params import HTTP_FIELDS, SamplingParams

T = TypeVar("T")
ListOf = Annotated[list[T], Field(fail_fast=True)]
Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]
NumTop = Annotated[int, Field(ge=0, le=20)]


def _also(name: str, *names: str, default: Any = None) -> Any:
    """A field, and its names elsewhere: in llama.cpp, Ollama, transformers and others."""
    return Field(default=default, validation_alias=AliasChoices(name, *names))


# What engine/inputs.py checks of a message, for /openapi.json.
_PARTS = [
    {
        "type": "object",
        "required": ["type", key],
        "properties": {"type": {"const": kind}, key: {"type": "string"}},
    }
    for kind, key in PARTS.items()
]
_CONTENT = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"anyOf": _PARTS}}]}
_MESSAGE = {
    "type": "object",
    "required": ["role"],
    "properties": {"role": {"type": "string"}},
    "anyOf": [
        {"required": ["content"], "properties": {"content": _CONTENT}},
        {
            "properties": {
                "role": {"enum": list(WITHOUT_CONTENT)},
                "content": {"anyOf": [*_CONTENT["anyOf"], {"type": "null"}]},
            }
        },
    ],
}


def _given(name: str, kind: str) -> dict[str, Any]:
    """The schema of an object that has a field, and not as null."""
    return {"required": [name], "properties": {name: {"type": kind}}}


# What settings/checks.py checks of a bias, entry by entry.
_BIAS: dict[str, Any] = {"propertyNames": {"pattern": "^[0-9]{1,19}$"}, "additionalProperties": {"type": "number"}}
Messages = Annotated[ListOf[dict[str, Any]], Field(min_length=1, json_schema_extra={"items": _MESSAGE})]


class Nullable(BaseModel):
    """An object whose fields have their defaults if they are null; one without a default keeps null for its type."""

    model_config = ConfigDict(strict=True, extra="allow")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        required = {name for name, field in cls.model_fields.items() if field.is_required()}
        return {name: value for name, value in given.items() if value is not None or name in required}


class StreamOptions(Nullable):
    """The options of a stream beside its text. No chunk is padded, so that it is of no use to turn that off.

    continuous_usage_stats: usage, if it is wanted, is in every chunk, with the tokens up to there, as in vLLM.
    """

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False


class Body(Nullable):
    """The fields and checks that all bodies have in common."""

    UNSERVED: ClassVar[dict[str, tuple[Any, ...]]] = {"extra_body": ({},)}

    model: str | None = None

    @property
    def unknown(self) -> list[str]:
        """Names of fields that no endpoint of this kind has, those of fields in fields after a dot."""
        return [name for name in self.model_extra or {} if name not in self.UNSERVED]

    def check(self) -> None:
        """ApiError for a field that asks for what is not served yet, or whose name is almost that of another."""
        given = self.model_extra or {}
        for name, nothing in self.UNSERVED.items():
            if name in given and given[name] not in nothing:
                why = f": {NEEDS[name]}" if name in NEEDS else ""
                raise ApiError(400, f"{name} is not supported{why}", name, "unsupported_parameter")
        fields = {alias: name for name, field in type(self).model_fields.items() for alias in _names(name, field)}
        for name in given:
            if name in fields:
                raise ApiError(400, f"{name} means the same as {fields[name]}: give one of the two", name)
            if name not in self.UNSERVED and (meant := nearest(name, [*fields, *self.UNSERVED])) is not None:
                raise ApiError(400, f"there is no field {name!r}: {meant!r} is meant?", name, "unknown_parameter")


LATEST = ":latest"  # the tag of a name without one, which Ollama's clients add on every route


def check_model(name: str | None, served: str) -> None:
    """ApiError 404 for another model than the one that is served."""
    if name is not None and name not in (served, f"{served}{LATEST}"):
        raise ApiError(404, f"the model {name!r} is not served here; there is {served!r}", "model", "model_not_found")


def _names(name: str, field: FieldInfo) -> list[str]:
    choices = field.validation_alias
    return [str(each) for each in choices.choices] if isinstance(choices, AliasChoices) else [name]


NEEDS = {
    "tool_choice": "it chooses among tools, which are not supported",
    "function_call": "it chooses among functions, which are not supported",
    "extra_body": "it is an argument of OpenAI's client; what is in it are fields of the body",
    "structural_tag": INSTEAD_OF_TAGS,
}
"""The reason that is added to the refusal of a field."""

NO_CONSTRAINTS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("guided_decoding", "response_schema", "logits_processors"), ("", [])),
    **dict.fromkeys(("guided_whitespace_pattern", "grammar_triggers", "structural_tag"), ("", [])),
    "grammar_lazy": (False,),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none",),
    "function_call": ("none",),
}
"""Names under which other servers take a constraint of the text, or a tool, that is not served."""


TOOL_FIELDS = ("tools", "tool_choice")  # of conversations alone
SETTINGS = settings_of(SamplingParams)
PART_FIELDS = ("type", *PARTS.values())
_KINDS: dict[Any, Any] = {
    int: Int64,
    float: float,
    tuple[int, ...]: ListOf[Int64],
    tuple[str, ...]: ListOf[str],
    Mapping[int, float]: Annotated[dict[str, Any], Field(json_schema_extra=_BIAS)],
}
TYPES = {form: field | None for kind, field in _KINDS.items() for form in (kind, kind | None)} | {bool: bool}
"""The types of settings → those of fields. None leaves a setting as the server has it."""


def _of_settings() -> Iterator[tuple[str, Any]]:
    """A field for each setting, by the names that its Setting has for HTTP."""
    for entry in fields(SamplingParams):
        if (name := HTTP_FIELDS.get(entry.name)) is not None:
            default = entry.default if entry.type is bool else None
            also = SETTINGS[entry.name].http_aliases
            yield name, (TYPES[entry.type], _also(name, *also, default=default) if also else default)


class SamplingBody(create_model("Settings", __base__=(Body, ConstraintFields), **dict(_of_settings()))):  # type: ignore[misc]
    """The fields that choose tokens, and how the answer comes."""

    UNSERVED: ClassVar = {
        **Body.UNSERVED,
        **NO_CONSTRAINTS,
        "use_beam_search": (False,),
        **dict.fromkeys(("lora", "prompt_embeds", "prompt_token_ids"), ("", [])),
    }

    stop: str | ListOf[str] | None = _also("stop", *SETTINGS["stop"].http_aliases)
    stream: bool = False
    stream_options: StreamOptions | None = None
    priority: Int64 = 0
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    cache_salt: str | None = Field(default=None, min_length=1, max_length=1024)
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    truncation_side: Literal["left", "right"] = "left"
    return_token_ids: bool = _also("return_token_ids", "return_tokens", default=False)
    receipt: bool = False
    prompt_logprobs: NumTop | None = None
    user: str | None = None

    def check(self) -> None:
        """See Body."""
        super().check()
        if self.stream_options is not None and not self.stream:
            raise ApiError(400, "stream_options are only allowed with stream: true", "stream_options")

    @property
    def unknown(self) -> list[str]:
        """See Body."""
        options = self.stream_options.model_extra if self.stream_options is not None else None
        return [*super().unknown, *(f"stream_options.{name}" for name in options or ())]

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

    UNSERVED: ClassVar = SamplingBody.UNSERVED | {"suffix": ("",), "top_logprobs": (0,)}

    prompt: str | ListOf[str] | ListOf[Int64] | ListOf[ListOf[Int64]] | None
    max_tokens: Int64 | None = _also("max_tokens", *SETTINGS["max_new_tokens"].http_aliases, "max_completion_tokens")
    best_of: Int64 | None = None
    logprobs: NumTop | None = None
    echo: bool = False
    add_special_tokens: bool = True

    @property
    def prompts(self) -> list[Any]:
        """One prompt, or several, as a list. One that is None is the beginning of a text."""
        given: Any = self.prompt
        return [given] if given is None or isinstance(given, str) or (given and isinstance(given[0], int)) else given

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

    UNSERVED: ClassVar = {name: each for name, each in SamplingBody.UNSERVED.items() if name not in TOOL_FIELDS} | {
        "chat_template": (),
        "documents": ([],),
        "audio": (),
        "modalities": (["text"],),
        "web_search_options": (),
        "add_special_tokens": (False,),
        "echo": (False,),
        "best_of": (1,),
    }

    messages: Messages
    max_completion_tokens: Int64 | None = None
    logprobs: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    top_logprobs: NumTop | None = None
    tools: ListOf[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None

    @property
    def unknown(self) -> list[str]:
        """See Body."""
        return [*super().unknown, *unknown_in(self.messages)]


def unknown_in(messages: list[dict[str, Any]] | None) -> list[str]:
    """Fields of the parts of messages that are not read."""
    contents = [message.get("content") for message in messages or ()]
    parts = [part for content in contents if isinstance(content, list) for part in content if isinstance(part, dict)]
    names = dict.fromkeys(name for part in parts for name in part if name not in PART_FIELDS)
    return [f"messages.content.{name}" for name in names]


class TokenizeBody(Body):
    """POST /tokenize: a prompt, or the messages of a conversation."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [_given("prompt", "string"), _given("messages", "array")]})

    UNSERVED = Body.UNSERVED | {"chat_template": ()}

    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool = _also("add_special_tokens", "add_special", default=True)
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    tools: ListOf[dict[str, Any]] | None = None
    return_token_strs: bool = True

    def check(self) -> None:
        """See Body."""
        super().check()
        if self.messages is not None and self.add_special_tokens and "add_special_tokens" in self.model_fields_set:
            message = "add_special_tokens is not supported with messages: their special tokens are the chat template's"
            raise ApiError(400, message, "add_special_tokens", "unsupported_parameter")

    @property
    def without_effect(self) -> list[str]:
        """Fields that say how messages become a prompt, where there are none."""
        about_messages = ("add_generation_prompt", "continue_final_message", "chat_template_kwargs", "tools")
        return [] if self.messages is not None else [name for name in about_messages if name in self.model_fields_set]

    @property
    def unknown(self) -> list[str]:
        """See Body."""
        return [*super().unknown, *unknown_in(self.messages)]


class SessionBody(TokenizeBody):
    """POST /v1/sessions/NAME/save: the text that is kept."""


class DetokenizeBody(Body):
    """POST /detokenize."""

    tokens: ListOf[Int64]
