"""A verb as the parser has it: what was typed for it, its help page, and refusals that name what was typed."""

import inspect
import os
import re
import shutil
from argparse import SUPPRESS, ArgumentError, ArgumentParser
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from textwrap import wrap
from typing import Any, NoReturn

from tokenmill.cli.parser.options import OTHERS, Option, Parameter, built_settings, setting_options
from tokenmill.cli.parser.other_names import ALIASES, ELSEWHERE
from tokenmill.cli.process.display import echo, worded_by
from tokenmill.errors import (
    AS_IDS,
    AS_TEXT,
    CapacityError,
    ConfigError,
    NoKernel,
    RequestError,
    SnapshotError,
    TokenmillError,
)
from tokenmill.registry import VERBS, lookup
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.settings.sampling_params import SamplingParams

WIDEST, NARROWEST, WIDEST_NAME = 100, 40, 28
HELP_ROW = ("-h, --help", "Show this message and exit.")
EXTRAS = {
    "httpx2": "bench",
    "matplotlib": "bench",
    "fastapi": "serve",
    "prometheus_client": "serve",
    "uvicorn": "serve",
    "ray": "ray",
    **dict.fromkeys(("lm_eval", "datasets", "evaluate", "yaml", "tqdm"), "eval"),
}
"""Package → the extra of tokenmill that installs it."""
_SETTING = re.compile(r"(?<!['\w])[a-z]+_\w+")  # a word with "_", outside quotes; one without may be just a word
# As Python has it: dtype='float32', convert=True; and as a warning has it: threads = 5 is ignored.
_KEYWORD = re.compile(r"\b([a-z]\w*)(?:=| = (?=\S+ is ignored))(True|False|'[^']*'|[0-9.]+)")


class UsageError(TokenmillError):
    """A command line that the parser cannot read. hint: what to type instead."""

    def __init__(self, path: str, message: str, hint: str = "") -> None:
        said = message.rstrip(".") + hint
        where = f"tokenmill {path}".rstrip()
        super().__init__(f"{said}{' See' if said.endswith('?') else '; see'} `{where} --help`")


@dataclass(frozen=True)
class Context:
    """The call of a verb. values: of all its parameters. origins: where each given parameter was set."""

    values: Mapping[str, Any]
    origins: Mapping[str, str]


class _Parser(ArgumentParser):
    """A parser that raises its errors."""

    def error(self, message: str) -> NoReturn:
        raise ArgumentError(None, message)


class Command:
    """One verb, by the words that are typed for it. Its module has `command`, a function, and EXAMPLES.

    Parameters of that function are options and arguments, settings objects, and `context`. For settings the module may
    have WITHOUT, fields that are no options; ONLY, fields that alone are; WORDS, the help of fields that mean something
    else there.
    """

    def __init__(self, path: str) -> None:
        self.path, self.module = path, lookup(VERBS, path, "verb")
        given = inspect.signature(self.module.command).parameters.values()
        self.kinds = {each.name: each.annotation for each in given if each.annotation in (SamplingParams, EngineConfig)}
        self.takes_context = any(each.annotation is Context for each in given)
        without, only, words = (getattr(self.module, name, {}) for name in ("WITHOUT", "ONLY", "WORDS"))
        left_out = {*without, *(() if SamplingParams in self.kinds.values() else ("generation_config",))}
        options = [each for each in given if isinstance(each.default, Option)]
        self.own = [Parameter(each.name, each.annotation, each.default) for each in options]
        settings = [each for kind in self.kinds.values() for each in setting_options(kind, words)]
        kept = [each for each in settings if each.name not in left_out and (not only or each.name in only)]
        self.parameters = [*self.own, *kept]
        self.arguments = [each for each in self.parameters if each.told.is_argument]
        self.options = [each for each in self.parameters if not each.told.is_argument]
        self.shown_names = {each.name: each.shown_name for each in self.parameters}
        self.known = [name for each in self.options for name in (*each.names, *each.off)]

    @property
    def usage(self) -> str:
        """How it is called: [OPTIONS], and its arguments."""
        return " ".join(["[OPTIONS]", *map(_usage_of, self.arguments)])

    def run(self, words: Sequence[str]) -> None:
        """Read what was typed, and call the verb; or show its help page."""
        typed = self.parse(words)
        if typed is None:
            echo(self.help_page())
        else:
            self.call(self.context(typed))

    # ---- what was typed

    def parse(self, words: Sequence[str]) -> dict[str, Any] | None:
        """Map each parameter to what was typed for it; None for --help. UsageError for what cannot be read."""
        parser = _Parser(add_help=False, allow_abbrev=False, exit_on_error=False, argument_default=SUPPRESS)
        parser.add_argument("-h", "--help", action="store_true")
        taking = set[str]()
        for each in self.options:
            names = self._with_aliases(each.names)
            if each.kind is bool:
                parser.add_argument(*names, dest=each.name, action="store_const", const=True)
                off = self._with_aliases(each.off)
                if off:
                    parser.add_argument(*off, dest=each.name, action="store_const", const=False)
                continue
            taking.update(names)
            parser.add_argument(*names, dest=each.name, type=each.read, action="append" if each.is_list else "store")
        if "model" in self.shown_names and "--model" not in self.known:  # -m MODEL in the place of the argument
            taking.update(("--model", "-m"))
            parser.add_argument("--model", "-m", dest="model")
        try:
            ready, rest = self._joined(words, taking)
            found, more = parser.parse_known_args(ready)
        except ArgumentError as error:
            name = (error.argument_name or "").partition("/")[0]
            raise self._refusal(words, f"{name} {error.message}".strip()) from None
        typed = vars(found)
        if typed.pop("help", False):
            return None
        for word in more:
            if word.startswith("-") and len(word) > 1:
                raise self._unknown(words, word.partition("=")[0])
        return self._with_arguments(words, typed, [*more, *rest])

    def _with_aliases(self, names: Iterable[str]) -> list[str]:
        found = list(names)
        return found + [alias for alias, name in ALIASES.items() if name in found and alias not in self.known]

    def _joined(self, words: Sequence[str], taking: set[str]) -> tuple[list[str], list[str]]:
        """Join each value to its option, since argparse reads no value that begins with a dash; return also the words
        after `--`. Options may have underscores, as settings have.
        """
        ready, left = list[str](), iter(words)
        for word in left:
            if word == "--":
                break
            name, mark, value = word.partition("=")
            name = name.replace("_", "-") if name.startswith("--") else name
            if name in taking and not mark:
                if (next_word := next(left, None)) is None:
                    raise ArgumentError(None, f"Option {name!r} requires an argument")
                mark, value = "=", next_word
            ready.append(name + mark + value)
        return ready, list(left)

    def _with_arguments(self, words: Sequence[str], typed: dict[str, Any], rest: list[str]) -> dict[str, Any]:
        for each in self.arguments:
            if rest and each.name in typed:
                raise self._refusal(words, f"{each.told.metavar} is given twice: {rest[0]!r} and {typed[each.name]!r}")
            if rest:
                taken = rest if each.is_list else rest[:1]
                found, rest = [each.kind(word) for word in taken], rest[len(taken) :]
                typed[each.name] = found if each.is_list else found[0]
        if rest:
            hint = ""
            if "-p" in self.known:
                hint = ": a prompt is given with -p"
            elif self.path == "chat":
                hint = ": `tokenmill generate --chat -p TEXT` answers one message"
            raise self._refusal(words, f"unexpected extra argument ({' '.join(rest)})", hint)
        return typed

    def _unknown(self, words: Sequence[str], name: str) -> UsageError:
        meant = ELSEWHERE.get(name)
        near = [meant] if meant in self.known else get_close_matches(name, self.known, n=1)
        return self._refusal(words, f"No such option: {name}", f" (did you mean {near[0]}?)" if near else "")

    def _refusal(self, words: Sequence[str], message: str, hint: str = "") -> UsageError:
        """Make the error; where an option of another program was typed, it says what that option is here."""
        from tokenmill.cli.elsewhere.hints import option_hint  # long tables, of use after a mistake alone

        theirs = option_hint(words, self._with_aliases([*self.known, "--model"]))
        return UsageError(self.path, f"No such option: {theirs}") if theirs else UsageError(self.path, message, hint)

    # ---- the call

    def context(self, typed: Mapping[str, Any]) -> Context:
        """Find the value of every parameter: as it was typed, else as a file or a preset has it, else its default."""
        given = dict[str, tuple[Any, str]]()
        for each in reversed(self.own):  # what --config says goes over a --preset, which a verb has after it
            if each.told.reads is not None and each.name in typed:
                given |= each.told.reads(self, typed[each.name])
            elif variable := os.environ.get(each.told.variable):
                given[each.name] = variable, each.told.variable
        for each in self.parameters:
            if each.name in typed:
                value = typed[each.name] if each.is_list else each.check(typed[each.name], each.shown_name)
                given[each.name] = value, each.shown_name
            elif each.told.default is ... and each.name not in given:
                what = "argument" if each.told.is_argument else "option"
                usage = f": tokenmill {self.path} {self.usage}"
                raise UsageError(self.path, f"Missing {what} {each.shown_name!r}", usage)
        values = {each.name: each.told.default for each in self.parameters}
        values |= {name: value for name, (value, _) in given.items()}
        return Context(values, {name: origin for name, (_, origin) in given.items()})

    def call(self, context: Context) -> None:
        """Call the verb. What is refused is named by its option, not by its setting."""
        values, origins, options = context.values, context.origins, self.shown_names
        try:
            _check_output(values.get("output"))
            given = {name: built_settings(kind, values) for name, kind in self.kinds.items()}
            given |= {each.name: values[each.name] for each in self.own}
            given |= {"context": context} if self.takes_context else {}
            with worded_by(lambda text: in_options(text, options)):
                self.module.command(**given)
        except (RequestError, CapacityError, SnapshotError, NoKernel) as error:
            error.args = (in_options(str(error), options, bool(values.get("chat"))),)
            raise
        except ConfigError as error:
            field = error.name.partition("[")[0].partition(" ")[0]
            # Of several words that are allowed one may be the name of a setting too, as draft_model is.
            is_list = error.allowed.startswith("use one of ")
            allowed = error.allowed if is_list else in_options(error.allowed, options)
            raise ConfigError(error.name, error.value, allowed, error.where or origins.get(field, "")) from error
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in EXTRAS:
                raise
            install = f"pip install 'tokenmill[{EXTRAS[package]}]'"
            raise TokenmillError(f"{self.path} needs {package}: {install}") from None

    # ---- help

    def help_page(self) -> str:
        """Write usage, description, options by panel, and examples, as wide as the terminal."""
        panels = dict[str, list[tuple[str, str]]]()
        for each in self.parameters:
            panels.setdefault(each.told.panel, []).append(each.help_row())
        panels[OTHERS] = [*panels.pop(OTHERS, []), HELP_ROW]
        return page(f"tokenmill {self.path} {self.usage}", self.module.command.__doc__, panels, self.module.EXAMPLES)


def _usage_of(argument: Parameter) -> str:
    name = argument.told.metavar if argument.told.default is ... else f"[{argument.told.metavar.strip('[].')}]"
    return f"{name}..." if argument.is_list else name


def help_width() -> int:
    """Return the columns of a help page: the terminal's, within limits."""
    return min(max(shutil.get_terminal_size().columns, NARROWEST), WIDEST)


def page(usage: str, text: str, panels: Mapping[str, Iterable[tuple[str, str]]], examples: Sequence[str]) -> str:
    """Write a help page of these sections."""
    width = help_width()
    lines = wrap(f"Usage: {usage}", width)
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        lines += ["", *wrap(" ".join(paragraph.split()), width)]
    for title, rows in panels.items():
        lines += ["", f"{title}:", *_rows(list(rows), width)]
    lines += ["", "Examples:", *(f"  {line}" for line in examples)] if examples else []
    return "\n".join(lines)


def _rows(rows: list[tuple[str, str]], width: int) -> Iterator[str]:
    """Write two columns; a name that is wider than its column has a line of its own."""
    left = min(max(len(name) for name, _ in rows), WIDEST_NAME, width // 3) + 4
    for name, text in rows:
        lines = wrap(text, width - left, break_on_hyphens=False)
        if len(name) + 4 > left:
            yield f"  {name}"
        else:
            yield f"  {name}".ljust(left) + lines.pop(0)
        yield from (" " * left + line for line in lines)


# ---- names


def _check_output(path: Path | None) -> None:
    """Raise ConfigError for an output path of `-`, or for a path that is not UTF-8 and could not be printed."""
    if str(path) == "-":
        raise ConfigError("output", "-", "the name of a file or directory; nothing of it can go to stdout")
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise ConfigError("output", str(path), "a name in UTF-8") from None


def in_options(message: str, options: Mapping[str, str], chat: bool = False) -> str:
    """Put a message of Python's interface into the words of this verb's options. chat: whether --chat was typed."""
    if "chat" in options:
        message = message.replace(AS_TEXT, "leave out --chat")
    if "tokens" in options:
        message = message.replace(AS_IDS, f"give {options['tokens']}{' without --chat' * chat}")
    message = _KEYWORD.sub(lambda found: _typed(options, found), message)
    return _SETTING.sub(lambda name: options.get(name[0], name[0]), message)


def _typed(options: Mapping[str, str], found: re.Match[str]) -> str:
    """Spell a keyword of Python as one would type it here; as it stands if the verb has no such option."""
    name, value = found.groups()
    if name not in options:
        return found[0]
    option = "--" + options[name].lstrip("-")
    if value == "False":
        return f"--no-{option[2:]}"
    return option if value == "True" else f"{option} {value.strip(chr(39))}"
