"""Settings as options, shared by the verbs. The fields of EngineConfig and SamplingParams become options by themselves.

Everything of such an option comes from its field. A verb decorated with `with_settings` is handed finished settings
objects.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import typer

from tokenmill.cli.parser.command import is_given
from tokenmill.cli.process.imports import uninterrupted
from tokenmill.errors import ConfigError
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.settings.field import setting_of
from tokenmill.settings.sampling_params import SamplingParams

MODEL, PROMPT, SAMPLING, ENGINE, OUTPUT = "Model", "Prompt", "Sampling", "Engine", "Output"


def option(panel: str, *names: str, help: str, **more: Any) -> Any:
    """An option of a verb in a panel of its help page. more: as typer.Option takes it."""
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Directory in Hugging Face layout, .gguf file, short name, hub name (owner/name[:file.gguf]), or "
        "ollama:NAME. `tokenmill list` shows what is here.",
        show_default=True,
        rich_help_panel=MODEL,
    ),
]
ChatTemplate = Annotated[
    Path | None,
    option(
        PROMPT, "--chat-template", metavar="FILE", help="A chat template, in Jinja, in the place of the model's own."
    ),
]
Json = Annotated[bool, option(OUTPUT, "--json", help="Print one JSON document on stdout.")]
Quiet = Annotated[bool, option(OUTPUT, "--quiet", "-q", help="Nothing on stderr but warnings and errors.")]


def option_name(field: str) -> str:
    """--max-length for max_length."""
    return "--" + field.replace("_", "-")


def examples(*lines: str) -> str:
    """An epilog, one example to a line, to be copied as it stands."""
    return "Examples:\n" + "".join(f"  {line}\n" for line in lines)


def parse_ids(texts: Iterable[str], name: str) -> list[int]:
    """Token ids out of "1,2,3", or several such."""
    words = [word.strip() for text in texts for word in text.split(",")]
    try:
        return [int(word) for word in words]
    except ValueError:
        raise ConfigError(name, ",".join(words), "integers separated by commas, as 1,2,3") from None


def with_settings(
    without: tuple[str, ...] = (),
    only: tuple[str, ...] = (),
    words: Mapping[str, str] = MappingProxyType({}),
    **kinds: type[Any],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a verb the options of each settings class; it gets the finished object under the keyword.

    EngineConfig's model is the verb's MODEL argument. `without` are fields that the verb sets by itself; `only`, if it
    is given, are the fields that are options. `words` are the help of fields that mean something else here.
    """

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(verb).parameters
        parameters = [parameter for name, parameter in own.items() if name not in kinds]
        left_out = without if SamplingParams in kinds.values() else (*without, "generation_config")
        options = [each for kind in kinds.values() for each in _options(kind, words)]
        parameters += [each for each in options if each.name not in left_out and (not only or each.name in only)]

        def run(**values: Any) -> None:
            settings = {keyword: built_settings(kind, values) for keyword, kind in kinds.items()}
            verb(**{name: values[name] for name in own if name not in kinds}, **settings)

        run.__doc__ = verb.__doc__
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
        )
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def _options(kind: type[Any], words: Mapping[str, str]) -> list[inspect.Parameter]:
    """The options of a settings class in the order of its fields. EngineConfig's model is no option."""
    parameters = []
    for field in fields(kind):
        told, name = setting_of(field), option_name(field.name)
        listed, default = LISTED.get(field.type), field.default
        shown = words.get(field.name, told.help)
        if default is True:
            name += f"/--no-{name[2:]}"
        metavar = told.metavar or (listed.metavar if listed else "NAME" if field.type in (str, str | None) else None)
        made = option(
            ENGINE if kind is EngineConfig else SAMPLING,
            *filter(None, (name, told.short)),
            help=shown,
            metavar=metavar,
            show_default=not (default is None or isinstance(default, bool) or listed or "Default:" in shown),
        )
        annotation: Any = Annotated[list[str] if listed else field.type, made]
        given = [] if listed else default
        if field.name != "model":
            only_keyword = inspect.Parameter.KEYWORD_ONLY
            parameters.append(inspect.Parameter(field.name, only_keyword, default=given, annotation=annotation))
    return parameters


def with_defaults(context: typer.Context, sampling: SamplingParams, defaults: Mapping[str, Any]) -> SamplingParams:
    """The settings with a model's defaults in the place of options that were not typed."""
    return replace(sampling, **{name: value for name, value in defaults.items() if not is_given(context, name)})


def built_settings(kind: type[Any], values: Mapping[str, Any]) -> Any:
    """The settings object, its names checked before anything is loaded."""
    settings = {}
    for field in fields(kind):
        value, listed = values.get(field.name), LISTED.get(field.type)
        if listed is not None and value:
            settings[field.name] = listed.parse(value, option_name(field.name))
        elif listed is None and value is not None:
            marks = setting_of(field).reads_file
            settings[field.name] = read_value(field.name, value, marks) if marks else value
    built = kind(**settings)
    if settings.get("device", "auto") not in ("auto", "cpu"):
        with uninterrupted():
            from tokenmill.kernels.devices import find_device
        find_device(settings["device"])
    return built


def read_value(name: str, value: str, marks: tuple[str, ...]) -> str:
    """The text of a file, or the value itself, which holds one of `marks`; see Setting."""
    path = Path(value)
    try:
        if "\n" not in value and path.is_file():
            return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ConfigError(name, value, f"a file that can be read ({why})", option_name(name)) from None
    if any(mark in value for mark in marks):
        return value
    raise ConfigError(name, value, "the name of a file, which is not there, or the text itself", option_name(name))


def _parse_bias(texts: Iterable[str], name: str) -> dict[int, float]:
    biases = {}
    for text in texts:
        token, _, amount = text.partition("=")
        try:
            biases[int(token)] = float(amount)
        except ValueError:
            raise ConfigError(name, text, "ID=AMOUNT, a token id and a number, as 42=-5") from None
    return biases


class _Listed(NamedTuple):
    """An option that may be repeated: how its values are called, and what is made of them."""

    metavar: str
    parse: Callable[[list[str], str], Any]


_IDS = _Listed("IDS", parse_ids)
LISTED: Mapping[Any, _Listed] = {
    tuple[str, ...]: _Listed("TEXT", lambda texts, _: texts),
    tuple[str, ...] | None: _Listed("TEXT", lambda texts, _: texts),
    tuple[int, ...]: _IDS,
    tuple[int, ...] | None: _IDS,
    Mapping[int, float]: _Listed("ID=AMOUNT", _parse_bias),
}
"""The options that may be repeated, by the type of their settings."""
