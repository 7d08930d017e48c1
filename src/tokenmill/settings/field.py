"""A setting as one field of a settings class: its metadata has its help, limits and names on every face.

Checks, command line, chat, HTTP, page, evaluation tasks and model files read the Setting of a field. Type and default
are the field's own.
"""

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from functools import wraps
from typing import Any, Literal, NamedTuple, TypeVar

from tokenmill.errors import ConfigError
from tokenmill.registry import Entry, check_name, either
from tokenmill.value_reader import CHECKS

Settings = TypeVar("Settings")


class Shown(NamedTuple):
    """A field on the server's page: its label, its place (small ones first), what it says when it is empty."""

    label: str
    place: int
    empty: str = "server's"


@dataclass(frozen=True)
class Setting:
    """The facts that are told of one setting.

    help: a line; {names} stands for the names of `names`, the table of allowed values in the registry. limits: keywords
    of the check: minimum, maximum, exclusive; choices. aliases: other keywords in Python. short, metavar: on the
    command line; options: what other programs call the option. in_chat: `/set` takes it. http: the field of a request
    body, "" for the same name, None for no field; http_aliases: other names of it. page: its field on the server's
    page, if it has one. model_files: its key in general.sampling of a GGUF file, if a model's files may recommend it.
    stage: a "draw" setting says nothing where the likeliest token is taken, a "penalty" depends on earlier tokens.
    """

    help: str = ""
    limits: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, Entry | str] | None = None
    aliases: tuple[str, ...] = ()
    short: str = ""
    metavar: str | None = None
    options: tuple[str, ...] = ()
    reads_file: tuple[str, ...] = ()
    in_chat: bool = True
    http: str | None = ""
    http_aliases: tuple[str, ...] = ()
    page: Shown | None = None
    model_files: str = ""
    stage: Literal["", "draw", "penalty"] = ""


_LIMITS = ("minimum", "maximum", "exclusive", "choices")


def setting(default: Any, help: str, **more: Any) -> Any:
    """Declare a field with its Setting. more: limits, and fields of Setting."""
    help = help.replace("{names}", either(["auto", *(more.get("names") or ())]))
    limits = {name: more.pop(name) for name in _LIMITS if name in more}
    start = {"default_factory": default} if callable(default) else {"default": default}
    return field(**start, metadata={"setting": Setting(help, limits, **more)})


def setting_of(entry: Field[Any]) -> Setting:
    """Return the Setting of a field; an empty one for a field that is no setting."""
    found: Setting = entry.metadata.get("setting", Setting())
    return found


def settings_of(kind: type[Any]) -> dict[str, Setting]:
    """Return the Setting of each field by its name, in the order of the fields."""
    return {entry.name: setting_of(entry) for entry in fields(kind)}


def aliases_of(kind: type[Any]) -> dict[str, str]:
    """Map other keywords to settings."""
    return {alias: name for name, told in settings_of(kind).items() for alias in told.aliases}


def check_fields(settings: Any) -> None:
    """Check every field by its type and its limits. A whole number is at least 1 unless its field says otherwise."""
    for entry in fields(settings):
        value, told = getattr(settings, entry.name), setting_of(entry)
        if value is None and entry.default is None:
            continue
        value = CHECKS[entry.type](entry.name, value, **told.limits)
        if told.names is not None:
            check_name(entry.name, value, told.names)
        object.__setattr__(settings, entry.name, value)


def by_any_name(kind: type[Settings]) -> type[Settings]:
    """Take aliases as keywords too. An unknown keyword is an error that names the nearest and lists the valid ones."""
    names, make = list(settings_of(kind)), kind.__init__
    aliases = aliases_of(kind)

    @wraps(make)
    def named(self: Settings, /, *given: Any, **keywords: Any) -> None:
        values: dict[str, Any] = {}
        for word, value in keywords.items():
            name = aliases.get(word, word)
            if name not in names:
                hint = "".join(f"; did you mean {near!r}?" for near in get_close_matches(word, names, n=1))
                raise ConfigError(word, value, f"no such setting{hint}; {kind.__name__} has {', '.join(names)}")
            if (first := values.setdefault(name, value)) is not value and first != value:
                words = " or ".join(each for each in keywords if aliases.get(each, each) == name)
                raise ConfigError(word, value, f"give {words}, not both with different values ({first} and {value})")
        make(self, *given, **values)

    kind.__init__ = named  # type: ignore[assignment, method-assign]
    return kind
