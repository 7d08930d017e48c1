"""The fields of bodies that all protocols have in common, as OpenAI's API and vLLM name them.

Types are strict: "5" is no number. Ranges are SamplingParams's, which is what the fields become. A field that is null
is as one that is not there. Other engines' names of a field are taken too. A field that is known and not served yet
stands in UNSERVED with the values that ask for nothing; any other value is refused by name. So is a field whose name is
almost another's. An unknown field is accepted, and the answer names it in `warnings`. A list is refused at its first
wrong entry: to note an error for each of a million takes the event loop for seconds.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields
from difflib import SequenceMatcher
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, create_model, model_validator
from pydantic.fields import FieldInfo

from tokenmill.engine.inputs import PARTS
from tokenmill.serve.http.errors import ApiError
from tokenmill.serve.request.constraints import INSTEAD_OF_TAGS, ConstraintFields
from tokenmill.settings.field import settings_of
from tokenmill.settings.sampling_params import HTTP_FIELDS, SamplingParams

T = TypeVar("T")
ListOf = Annotated[list[T], Field(fail_fast=True)]
Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]
NumTop = Annotated[int, Field(ge=0, le=20)]


def also(name: str, *names: str, default: Any = None) -> Any:
    """Return a field, and its names elsewhere: in llama.cpp, Ollama, transformers and others."""
    return Field(default=default, validation_alias=AliasChoices(name, *names))


Messages = Annotated[ListOf[dict[str, Any]], Field(min_length=1)]


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


class Body(Nullable):
    """The fields and checks that all bodies have in common."""

    UNSERVED: ClassVar[dict[str, tuple[Any, ...]]] = {"extra_body": ({},)}

    model: str | None = None

    @classmethod
    def spelled(cls, given: Mapping[str, Any]) -> dict[str, str]:
        """Return our name of each field that is given, and all other names of it, with the name that counts in the
        body. Refusals say it.
        """
        found = {name: name for name, value in given.items() if value is not None}
        for field, told in cls.model_fields.items():
            names = names_of(field, told)
            sent = next((name for name in names if name in found), None)
            found |= dict.fromkeys((field, *names), sent) if sent is not None else {}
        return found

    @property
    def unknown(self) -> list[str]:
        """Return the names of fields that no endpoint of this kind has; a field in a field is named after a dot."""
        return [name for name in self.model_extra or {} if name not in self.UNSERVED]

    def check(self) -> None:
        """Raise ApiError for a field that asks for what is not served yet, or whose name is almost another's."""
        given = self.model_extra or {}
        for name, nothing in self.UNSERVED.items():
            if name in given and given[name] not in nothing:
                why = f": {NEEDS[name]}" if name in NEEDS else ""
                raise ApiError(400, f"{name} is not supported{why}", name, "unsupported_parameter")
        fields = {alias: name for name, field in type(self).model_fields.items() for alias in names_of(name, field)}
        for name in given:
            if name in fields:
                raise ApiError(400, f"{name} means the same as {fields[name]}: give one of the two", name)
            if name not in self.UNSERVED and (meant := nearest(name, [*fields, *self.UNSERVED])) is not None:
                raise ApiError(400, f"there is no field {name!r}: is {meant!r} meant?", name, "unknown_parameter")


LATEST = ":latest"  # the tag of a name without one, which Ollama's clients add on every route


def adapter_of(name: str | None, adapters: Collection[str]) -> str | None:
    """Find the adapter that a request names as its model, by a name in letters of either case, as in Ollama."""
    if name is None or name in adapters:
        return name
    plain = name.removesuffix(LATEST).casefold()
    return next((each for each in adapters if each.casefold() == plain), None)


def check_model(name: str | None, served: str, adapters: Collection[str] = ()) -> None:
    """Raise ApiError 404 for another model than the one that is served, or an adapter of it."""
    names = [served, *adapters]
    if name is None or name in names or name.removesuffix(LATEST) in names:
        return
    meant, there = nearest(name, names), " and ".join(map(repr, names[:20]))
    hint = f"; is {meant!r} meant?" if meant is not None else ""
    raise ApiError(404, f"the model {name!r} is not served here; there is {there}{hint}", "model", "model_not_found")


def names_of(name: str, field: FieldInfo) -> list[str]:
    """Return all names of a field, the one that counts first."""
    choices = field.validation_alias
    return [str(each) for each in choices.choices] if isinstance(choices, AliasChoices) else [name]


NEEDS = {
    "tool_choice": "it chooses among tools, which are not supported",
    "function_call": "it chooses among functions, which are not supported",
    "extra_body": "it is an argument of OpenAI's client; what is in it are fields of the body",
    "structural_tag": INSTEAD_OF_TAGS,
}
"""The reason that is added to the refusal of a field."""


SETTINGS = settings_of(SamplingParams)
PART_FIELDS = ("type", *PARTS.values())
_KINDS: dict[Any, Any] = {
    int: Int64,
    float: float,
    tuple[int, ...]: ListOf[Int64],
    tuple[str, ...]: ListOf[str],
    Mapping[int, float]: dict[str, Any],
}
TYPES = {form: field | None for kind, field in _KINDS.items() for form in (kind, kind | None)} | {bool: bool}
"""The types of settings → the types of fields. None leaves a setting as the server has it."""


def _of_settings() -> Iterator[tuple[str, Any]]:
    """Yield a field for each setting, by the names that its Setting has for HTTP."""
    for entry in fields(SamplingParams):
        if (name := HTTP_FIELDS.get(entry.name)) is not None:
            default = entry.default if entry.type is bool else None
            others = SETTINGS[entry.name].http_aliases
            yield name, (TYPES[entry.type], also(name, *others, default=default) if others else default)


class Settings(create_model("SettingFields", __base__=(Body, ConstraintFields), **dict(_of_settings()))):  # type: ignore[misc]
    """The fields that choose tokens, and how much of a prompt is read."""

    stop: str | ListOf[str] | None = also("stop", *SETTINGS["stop"].http_aliases)
    priority: Int64 = 0
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    cache_salt: str | None = Field(default=None, min_length=1, max_length=1024)
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    truncation_side: Literal["left", "right"] = "left"
    return_token_ids: bool = also("return_token_ids", "return_tokens", default=False)
    user: str | None = None


class ConversationSettings(Settings):
    """The fields of a conversation, but for its messages."""

    max_completion_tokens: Int64 | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    tools: ListOf[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None

    @classmethod
    def spelled(cls, given: Mapping[str, Any]) -> dict[str, str]:
        found: dict[str, str] = super().spelled(given)
        return found | ({"max_tokens": newer} if (newer := found.get("max_completion_tokens")) else {})


def unknown_in(messages: list[dict[str, Any]] | None) -> list[str]:
    """Return the fields of the parts of messages that are not read."""
    contents = [message.get("content") for message in messages or ()]
    parts = [part for content in contents if isinstance(content, list) for part in content if isinstance(part, dict)]
    names = dict.fromkeys(name for part in parts for name in part if name not in PART_FIELDS)
    return [f"messages.content.{name}" for name in names]


LIKE = 0.87  # of difflib's ratio: `temprature` is like `temperature` (0.95), `top_a`, another sampler, unlike `top_p`
LONGEST = 50  # characters: the ratio takes quadratic time


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that was probably meant; None if there is none like it."""
    plain, found = _normalize(name), [(0.0, "")]
    if len(name) <= LONGEST:
        found += [(SequenceMatcher(None, plain, _normalize(each)).ratio(), each) for each in known]
    ratio, best = max(found)
    return best if ratio >= LIKE else None


def _normalize(name: str) -> str:
    return "".join(filter(str.isalnum, name)).casefold()
