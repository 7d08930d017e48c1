"""docs/settings.md: every setting of an engine and of a text under all its names, from the fields that declare them."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any

from tests.book.markdown import code, table
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.settings.field import setting_of
from tokenmill.settings.sampling_params import HTTP_FIELDS, SamplingParams

HEAD = """# Settings

Every setting has one name and is told once, in `src/tokenmill/settings/`. This page is made of that by
`python -m tests.book`. A setting is

 - a keyword in Python: `max_length` of `tokenmill.load`, `temperature` of `engine.generate` and `SamplingParams`;
 - an option of the command line, with dashes: `--max-length`; one that is true by default has `--no-…` too;
 - for a text also a field of a request over HTTP, and `/set` in `tokenmill chat`.

Other names that are taken are listed with each. Values are checked by type and range before anything is loaded; a
refusal names the setting, the value, what is allowed and where it was set. [Names](names.md) tells what the values of
`program`, `scheme`, `cache_format`, `kernel` and `speculate` are.
"""
ENGINE = """## Of an engine

`tokenmill.load(model, …)`, `EngineConfig`, and the options of every verb that loads a model.
"""
TEXT = """## Of a text

`engine.generate(prompt, …)`, `SamplingParams`, the options of `generate`, `chat`, `decode` and `batch`, and the fields
of requests. Constraints (`json_schema`, `regex`, `grammar`, `choice`) have other names over HTTP:
[structured output](structured-output.md) has the table.
"""


def page() -> str:
    """The whole page."""
    engine = table(
        ("setting", "what it is", "default", "also on the command line"), map(engine_row, settings(EngineConfig))
    )
    text = table(("setting", "what it is", "default", "over HTTP", "also"), map(text_row, settings(SamplingParams)))
    return "\n".join([HEAD, ENGINE, engine, TEXT, text])


def settings(kind: type[Any]) -> Iterator[Field[Any]]:
    """The fields that are options; EngineConfig's model is the MODEL of a verb."""
    return (field for field in fields(kind) if setting_of(field).help)


def engine_row(field: Field[Any]) -> tuple[str, ...]:
    """The row of a setting of EngineConfig."""
    told = setting_of(field)
    return f"`{field.name}`", told.help, default(field), code(*told.options)


def text_row(field: Field[Any]) -> tuple[str, ...]:
    """The row of a setting of SamplingParams."""
    told = setting_of(field)
    http = [name] if (name := HTTP_FIELDS.get(field.name)) else []
    also = [*told.aliases, *filter(None, [told.short]), *told.options]
    return f"`{field.name}`", told.help, default(field), code(*http, *told.http_aliases), code(*also)


def default(field: Field[Any]) -> str:
    """The default as one would write it; empty where the help tells what happens without a value."""
    value = field.default_factory() if field.default_factory is not MISSING else field.default
    if value is None or value in ((), "") or isinstance(value, Mapping):
        return ""
    return f"`{value}`"
