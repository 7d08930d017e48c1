"""The fields of a body that constrain its text, as OpenAI's API, vLLM, SGLang, llama.cpp and Ollama name them.

Each of them becomes one setting of SamplingParams. Two in one body are refused, and so is what a field asks for beside
its constraint, where it is not done.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

from pydantic import BaseModel, Field

from tokenmill.constrain.grammar import begins_forcing
from tokenmill.errors import ConfigError, RequestError
from tokenmill.schedule import matcher
from tokenmill.serve.http.errors import ApiError
from tokenmill.settings.constraint import CONSTRAINTS
from tokenmill.value_reader import brief

OBJECT = {"type": "object"}
TAGS = "structural_tag"
"""A constraint of vLLM and SGLang, in xgrammar's form, that is refused by name."""
INSTEAD_OF_TAGS = (
    "for calls of functions give `tools`; for another form of the text, a `grammar`, in Lark or GBNF, a `regex` or a "
    "JSON schema"
)
Schema = dict[str, Any] | bool | str
Constraint = tuple[str, dict[str, Any]]
"""The field that constrains a text, "" without one, and the settings that it becomes."""
Texts = Annotated[list[str], Field(fail_fast=True)]


class ConstraintFields(BaseModel):
    """The fields that constrain a text. An empty text asks for nothing, since clients send it so."""

    response_format: dict[str, Any] | None = Field(
        default=None, description="text, json_object, json_schema or another"
    )
    structured_outputs: dict[str, Any] | None = None
    guided_json: Schema | None = None
    guided_regex: str | None = None
    guided_choice: Texts | None = None
    guided_grammar: str | None = None
    json_schema: Schema | None = None
    regex: str | None = None
    grammar: str | None = None
    ebnf: str | None = None
    format: Schema | None = None


def constraint_of(body: ConstraintFields) -> Constraint:
    """Read the fields; ApiError for two of them."""
    found = []
    for field in ConstraintFields.model_fields:
        value = getattr(body, field)
        if value is not None and value != "" and (setting := _READERS[field](field, value)):
            found.append((field, setting))
    if len(found) > 1:
        (first, _), (second, _), *_ = found
        raise ApiError(400, f"{second}: only one constraint at a time, and {first} is given", second)
    field, setting = found[0] if found else ("", {})
    if isinstance(grammar := setting.get("grammar"), str) and begins_forcing(grammar):
        allowed = "a grammar without the option no_forcing of %llguidance"
        raise ApiError(400, f"{field} = … is not allowed: {allowed}", field)
    return field, setting


def constraint_warnings(constraint: Constraint, sampling: Mapping[str, Any]) -> list[str]:
    """Warn where stop texts or ids may end a constrained text before it is whole, which finish_reason and stop_reason
    say once more; and where the constraint may have the letters of a bad word come in other tokens.
    """
    field, _ = constraint
    if not field:
        return []
    ends = [name for name in ("stop", "stop_token_ids") if sampling.get(name)]
    warnings = [f"{name} ends the text also where it does not fit {field} yet" for name in ends]
    spelled = f"bad_words forbids the usual tokens of a word; where {field} leaves little else, others may spell it"
    return [*warnings, spelled] if sampling.get("bad_words") else warnings


def told_of(field: str, constraint: matcher.Constraint | None) -> tuple[str, ...]:
    """Write a warning for each thing that a constraint says without effect. field: its origin."""
    return () if constraint is None else tuple(f"{field}: {each}" for each in constraint.warnings)


@contextmanager
def about_constraint(field: str) -> Iterator[None]:
    """Have refusals of the constraint name the field that it came from."""
    try:
        yield
    except ConfigError as error:
        if not field or error.name not in CONSTRAINTS:
            raise
        raise ApiError(400, f"{field}: {error}".replace(f": {error.name} = ", " = ", 1), field) from None
    except RequestError as error:
        if not field or error.setting not in CONSTRAINTS:
            raise
        raise ApiError(400, f"{field}: {error}", field) from None


def _as(setting: str) -> Callable[[str, Any], dict[str, Any]]:
    return lambda field, value: {setting: value}


def _response_format(field: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """Read the kinds of OpenAI's API, with a schema beside `type` too (llama.cpp), and the kinds of other servers."""
    kind = value.get("type")
    if kind == TAGS:
        raise _no_tags(f"{field}.type = {TAGS!r}", field)
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ApiError(400, f"{field}.type = {brief(kind)} is not allowed: use one of {', '.join(_KINDS)}", field)
    keys = _KINDS[kind]
    _check_keys(field, value, ("type", *keys))
    given = {key: value[key] for key in keys if value.get(key) is not None}
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"json_schema": given.get("schema", OBJECT)}
    if not given:
        raise ApiError(400, f"{field}: {' or '.join(keys)} is missing beside its type {kind!r}", field)
    if kind == "json_schema" and "json_schema" in given:
        return _inner_schema(f"{field}.json_schema", field, given["json_schema"])
    return {_SETTINGS.get(kind, kind): next(iter(given.values()))}


_KINDS = {
    "text": (),
    "json_object": ("schema",),
    "json_schema": ("json_schema", "schema"),
    "grammar": ("grammar",),
    "regex": ("regex", "pattern", "value"),
    "json": ("value",),
}
"""The types of response_format → the keys that they may have; the last three are Fireworks' and TGI's."""
_SETTINGS = {"json": "json_schema"}


def _inner_schema(where: str, field: str, value: Any) -> dict[str, Any]:
    """Read the schema in OpenAI's object around it, whose name and description say nothing of the text.

    A text is never left unconstrained, so that strict is as good as true; and where it is true, no object has other
    properties than it names, as in OpenAI's API.
    """
    if not isinstance(value, Mapping) or value.get("schema") is None:
        raise ApiError(400, f"{where}.schema is missing", field)
    _check_keys(where, value, ("name", "description", "schema", "strict"), field)
    closes = {"additional_properties": False} if value.get("strict") is True else {}
    return {"json_schema": value["schema"], **closes}


def _structured_outputs(field: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """Read vLLM's object, in which one key at most may be a constraint."""
    if value.get(TAGS) is not None:
        raise _no_tags(f"{field}.{TAGS}", field)
    _check_keys(field, value, (*_STRUCTURED, *_ASKS_NOTHING, TAGS))
    for key, allowed in _ASKS_NOTHING.items():
        if value.get(key) not in (None, *allowed):
            raise ApiError(400, f"{field}.{key} is not supported", field, "unsupported_parameter")
    given = {key: each for key in _STRUCTURED if (each := value.get(key)) not in (None, "", False)}
    if len(given) > 1:
        raise ApiError(400, f"{field}: only one constraint at a time, not {' and '.join(given)}", field)
    if not given:
        raise ApiError(400, f"{field}: one of {', '.join(_STRUCTURED)} is missing", field)
    key, each = next(iter(given.items()))
    return {"json_schema": OBJECT} if key == "json_object" else {_STRUCTURED[key]: each}


_STRUCTURED = {
    "json": "json_schema",
    "regex": "regex",
    "choice": "choice",
    "grammar": "grammar",
    "json_object": "json_schema",
}
# There is one library, so that nothing falls back; white space is left out whatever is said of it, and so are
# properties that an object does not name, unless additional_properties is set.
_ASKS_NOTHING: dict[str, tuple[Any, ...]] = {
    "disable_fallback": (True, False),
    "disable_any_whitespace": (True, False),
    "disable_additional_properties": (True, False),
    "whitespace_pattern": (),
}


def _format(field: str, value: Any) -> dict[str, Any]:
    """Read Ollama's field: the word json, or a schema."""
    return {"json_schema": OBJECT if value == "json" else value}


def _check_keys(where: str, value: Mapping[str, Any], known: tuple[str, ...], field: str = "") -> None:
    if unknown := [key for key in value if key not in known]:
        message = f"{where} has no key {unknown[0][:100]!r}; it has {', '.join(known)}"
        raise ApiError(400, message, field or where, "unknown_parameter")


def _no_tags(what: str, field: str) -> ApiError:
    return ApiError(400, f"{what} is not supported: {INSTEAD_OF_TAGS}", field, "unsupported_parameter")


_READERS: dict[str, Callable[[str, Any], dict[str, Any]]] = {
    "response_format": _response_format,
    "structured_outputs": _structured_outputs,
    "format": _format,
    **dict.fromkeys(("guided_json", "json_schema"), _as("json_schema")),
    **dict.fromkeys(("guided_regex", "regex"), _as("regex")),
    **dict.fromkeys(("guided_grammar", "grammar", "ebnf"), _as("grammar")),
    "guided_choice": _as("choice"),
}
