"""Options of verbs: how one is declared, the options that verbs share, and settings as options.

An option is the default of a parameter of a verb's function. The fields of EngineConfig and SamplingParams become
options by themselves, and everything of such an option comes from its field.
"""

from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NamedTuple, get_args, get_origin

from tokenmill.errors import ConfigError
from tokenmill.memory.interrupts import held_interrupts
from tokenmill.settings.engine_config import DEFAULT_MODEL, EngineConfig
from tokenmill.settings.field import setting_of
from tokenmill.settings.sampling_params import SamplingParams

MODEL, PROMPT, SAMPLING, ENGINE, OUTPUT, OTHERS = "Model", "Prompt", "Sampling", "Engine", "Output", "Options"
Given = dict[str, tuple[Any, str]]
"""Parameter → its value, and where that was set: an option, or a file."""
METAVARS = {str: "TEXT", int: "N", float: "X", Path: "PATH", bool: ""}
IN_FILES: Mapping[Any, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    str: ((str,), "a text, in quotes"),
    Path: ((str,), "a text, in quotes"),
}
"""The type of an option → the types of values that it may have in a TOML file, and how they are called."""


@dataclass(frozen=True)
class Option:
    """An option of a verb. default: ... where it must be given. names: beside its parameter's, or long ones instead.

    metavar: how help calls the value. minimum, maximum: of a number. variable: of the environment, which is its value
    where no value is typed. reads: the options that its value, the name of a file or preset, stands for.
    """

    default: Any
    help: str
    panel: str = OTHERS
    names: tuple[str, ...] = ()
    metavar: str = ""
    minimum: float | None = None
    maximum: float | None = None
    variable: str = ""
    reads: Callable[[Any, Any], Given] | None = None
    is_argument: bool = False


def option(default: Any, help: str, panel: str = OTHERS, *names: str, **more: Any) -> Any:
    """Declare an option: the default of a parameter of a verb. more: fields of Option."""
    return Option(default, help, panel, names, **more)


def argument(default: Any, metavar: str, help: str, panel: str = OTHERS) -> Any:
    """Declare an argument, which is given without a name; a list takes all that are left."""
    return Option(default, help, panel, metavar=metavar, is_argument=True)


MODEL_NAME = argument(
    DEFAULT_MODEL,
    "MODEL",
    "Directory in Hugging Face layout, .gguf file, short name, hub name (owner/name[:file.gguf]), or ollama:NAME. "
    "`tokenmill list` shows what is here.",
    MODEL,
)
CHAT_TEMPLATE = option(None, "A chat template, in Jinja, in the place of the model's own.", PROMPT, metavar="FILE")
JSON = option(False, "Print one JSON document on stdout.", OUTPUT)
QUIET = option(False, "Nothing on stderr but warnings and errors.", OUTPUT, "-q")


def option_name(field: str) -> str:
    """Spell max_length as --max-length."""
    return "--" + field.replace("_", "-")


class Parameter:
    """An option or argument as the parser has it. kind: the type of a value, or of a list's entries.

    names: the one in messages first. off: names by which a flag is turned off. key: its name in a file.
    """

    def __init__(self, name: str, annotation: Any, told: Option) -> None:
        self.name, self.told = name, told
        kinds = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
        (kind,) = (each for each in kinds if each is not NoneType)
        self.is_list = get_origin(kind) is list
        self.kind: Any = get_args(kind)[0] if self.is_list else kind
        is_whole = any(each.startswith("--") for each in told.names)
        self.names = () if told.is_argument else told.names if is_whole else (option_name(name), *told.names)
        has_off = self.kind is bool and told.default is not False
        self.off = (f"--no-{self.names[0][2:]}",) if has_off else ()
        self.shown_name = told.metavar if told.is_argument else self.names[0]
        self.key = name if told.is_argument else self.names[0][2:]

    def read(self, text: str) -> Any:
        """Convert the text that was typed to the option's type."""
        try:
            return self.kind(text)
        except ValueError:
            number = "whole number" if self.kind is int else "number"
            raise ArgumentTypeError(f"needs a {number}, not {text!r}") from None

    def check(self, value: Any, where: str) -> Any:
        """Return the value; ConfigError where a number is out of its range."""
        low, high = self.told.minimum, self.told.maximum
        if (low is not None and value < low) or (high is not None and value > high):
            raise ConfigError(self.key.replace("-", "_"), value, self._range(), where)
        return value

    def check_from_file(self, key: str, value: Any, where: str) -> Any:
        """Check a value out of a file; ConfigError for another type, or for a number that is out of its range."""
        types, wanted = IN_FILES[self.kind]
        entries = value if self.is_list and isinstance(value, list) else [value]
        if not all(type(each) in types for each in entries) or self.is_list != isinstance(value, list):
            raise ConfigError(key, value, "a list of texts" if self.is_list else wanted, where)
        found = [self.kind(each) for each in entries]
        return found if self.is_list else self.check(found[0], where)

    def _range(self) -> str:
        low, high = self.told.minimum, self.told.maximum
        return "" if low is None else f"at least {low}" if high is None else f"{low} to {high}"

    def help_row(self) -> tuple[str, str]:
        """Return its names with what it takes, and its help with default and range."""
        told, default = self.told, self.told.default
        short_first = ", ".join(sorted(self.names, key=lambda name: len(name) - len(name.lstrip("-"))))
        names = told.metavar if told.is_argument else " / ".join([short_first, *self.off])
        metavar = "" if told.is_argument or self.kind is bool else f" {told.metavar or METAVARS[self.kind]}"
        facts = []
        if default is ...:
            facts.append("required")
        elif default is True:
            facts.append(f"default: {self.names[0][2:]}")
        elif default not in (None, "") and default is not False and "Default:" not in told.help:
            facts.append(f"default: {default}")
        facts += [self._range()] if self._range() else []
        facts += [f"env var: {told.variable}"] if told.variable else []
        return names + metavar, told.help + (f"  [{'; '.join(facts)}]" if facts else "")


def parse_ids(texts: Iterable[str], name: str) -> list[int]:
    """Parse token ids out of "1,2,3", or out of several such texts."""
    words = [word.strip() for text in texts for word in text.split(",")]
    try:
        return [int(word) for word in words]
    except ValueError:
        raise ConfigError(name, ",".join(words), "integers separated by commas, as 1,2,3") from None


def setting_options(kind: type[Any], words: Mapping[str, str]) -> list[Parameter]:
    """Make the options of a settings class in the order of its fields. EngineConfig's model is the verb's own MODEL.

    words: the help of fields that mean something else for the verb.
    """
    panel, found = ENGINE if kind is EngineConfig else SAMPLING, []
    for field in fields(kind):
        told, listed = setting_of(field), LISTED.get(field.type)
        metavar = told.metavar or (listed.metavar if listed else "NAME" if field.type in (str, str | None) else "")
        short = (told.short,) if told.short else ()
        made = Option(None if listed else field.default, words.get(field.name, told.help), panel, short, metavar)
        if field.name != "model":
            found.append(Parameter(field.name, list[str] if listed else field.type, made))
    return found


def with_defaults(origins: Mapping[str, str], sampling: SamplingParams, defaults: Mapping[str, Any]) -> SamplingParams:
    """Put a model's defaults in the place of options that were not given."""
    return replace(sampling, **{name: value for name, value in defaults.items() if name not in origins})


def built_settings(kind: type[Any], values: Mapping[str, Any]) -> Any:
    """Build the settings object, its names checked before anything is loaded."""
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
        with held_interrupts():
            from tokenmill.kernels.devices import find_device
        find_device(settings["device"])
    return built


def read_value(name: str, value: str, marks: tuple[str, ...]) -> str:
    """Read the text of a file, or take the value itself, which holds one of `marks`; see Setting."""
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
