"""The parser classes of the verbs: help, hidden aliases, and errors that name the option that was typed; a group
imports the module of a verb when the verb runs.
"""

import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from tokenmill.cli.parser.other_names import ALIASES, VERBS_ELSEWHERE
from tokenmill.cli.process.display import worded_by
from tokenmill.errors import AS_IDS, AS_TEXT, CapacityError, ConfigError, NoKernel, RequestError, SnapshotError
from tokenmill.registry import VERBS, lookup

WIDEST, NARROWEST = 100, 40
ORIGINS = "tokenmill.origins"
"""In a context's meta: the files that its defaults come from, by parameter."""
_SETTING = re.compile(r"(?<!['\w])[a-z]+_\w+")  # a word with "_", outside quotes; one without may be just a word
# As Python has it: dtype='float32', convert=True; and as a warning has it: threads = 5 is ignored.
_KEYWORD = re.compile(r"\b([a-z]\w*)(?:=| = (?=\S+ is ignored))(True|False|'[^']*'|[0-9.]+)")
_KINDS = {
    "str": "TEXT",
    "int": "N",
    "integer": "N",
    "float": "X",
    "path": "PATH",
}  # how --help calls the types of values


def is_given(context: typer.Context, name: str) -> bool:
    """Whether an option was typed, or stands in the file of --config or --preset."""
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _set_in(context: typer.Context, name: str, option: str) -> str:
    """The origin of an option's value: the option itself, or the file of --config or --preset."""
    source = context.get_parameter_source(name)
    from_file = source is not None and source.name == "DEFAULT_MAP"
    return str(context.meta.get(ORIGINS, {}).get(name, option)) if from_file else option


class Verb(TyperCommand):
    """One verb."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Arguments and options."""
        return _without_pydantic(super().get_params(ctx))

    def make_parser(self, ctx: Any) -> Any:
        """The parser, which knows the aliases too."""
        parser: Any = super().make_parser(ctx)
        options = {name: param for param in self.params for name in (*param.opts, *param.secondary_opts)}
        if "model" in options:  # the argument MODEL
            _add_model_option(parser, ctx, self.get_help_option(ctx))
        for alias, name in ALIASES.items():
            param: Any = options.get(name)
            if param is None or alias in options:
                continue
            if param.is_flag:
                is_on = name in param.opts
                parser.add_option(obj=param, opts=[alias], dest=param.name, action="store_const", const=is_on)
            else:
                action = "append" if param.multiple else "store"
                parser.add_option(obj=param, opts=[alias], dest=param.name, action=action, nargs=1)
        return parser

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as click does; an error that has no context gets that of this verb."""
        with _naming(ctx):
            return super().parse_args(ctx, args)

    def get_help(self, ctx: Any) -> str:
        """The help page."""
        return _help_page(self, ctx)

    def invoke(self, ctx: Any) -> Any:
        """Run the verb. What is refused is named by its option, not by its setting."""
        options = {param.name: _shown_name(param) for param in self.params}
        try:
            _check_output(ctx.params.get("output"))
            with worded_by(lambda text: _in_options(text, options)):
                return super().invoke(ctx)
        except (RequestError, CapacityError, SnapshotError, NoKernel) as error:
            error.args = (_in_options(str(error), options, bool(ctx.params.get("chat"))),)
            raise
        except ConfigError as error:
            field = error.name.partition("[")[0].partition(" ")[0]
            is_typed = field in options and is_given(ctx, field)
            where = error.where or (_set_in(ctx, field, options[field]) if is_typed else "")
            # Of several words that are allowed one may be the name of a setting too, as draft_model is.
            is_list = error.allowed.startswith("use one of ")
            allowed = error.allowed if is_list else _in_options(error.allowed, options)
            raise ConfigError(error.name, error.value, allowed, where) from error


class VerbGroup(TyperGroup):
    """The verbs that VERBS has under the name of this group, or all others, if it has none there.

    The module of a verb is imported when it is asked for. It has `command`, a function or another group, and beside a
    function EXAMPLES, which --help shows.
    """

    def __init__(self, **settings: Any) -> None:
        """Take the settings of typer's group."""
        super().__init__(**settings)
        within = [word for word in VERBS if word.startswith(f"{self.name} ")]
        self._places = {word.split()[-1]: word for word in within or VERBS if within or " " not in word}

    @property
    def names(self) -> list[str]:
        """The names of the verbs."""
        return list(self._places)

    def module(self, name: str) -> Any:
        """The module of a verb."""
        return lookup(VERBS, self._places[name], "verb")

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of the verbs."""
        return self.names

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The verb that typer makes of a module's function, or the group that the module has; None without one."""
        if cmd_name not in self._places:
            return None
        module = self.module(cmd_name)
        if isinstance(module.command, VerbGroup):
            return module.command
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        alone.command(cmd_name, cls=Verb, epilog=module.EXAMPLES)(module.command)
        return typer.main.get_command(alone)

    def get_params(self, ctx: Any) -> list[Any]:
        """The options."""
        return _without_pydantic(super().get_params(ctx))

    def get_help(self, ctx: Any) -> str:
        """The help page."""
        return _help_page(self, ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The verb that the first word names."""
        if args and not args[0].startswith("-") and args[0] not in self.names:
            self.suggest(ctx, args[0])
        return super().resolve_command(ctx, args)

    def suggest(self, ctx: Any, name: str) -> None:
        """A usage error for what is nearly the name of a verb."""
        elsewhere = [verb for verb in VERBS_ELSEWHERE.get(name, []) if verb in self.names or verb.startswith("-")]
        if not elsewhere and "generate" in self.names:
            from tokenmill.cli.elsewhere.hints import verb_hint  # long tables, of use after a mistake alone

            if hint := verb_hint(name):
                ctx.fail(f"No such command {name!r}: {hint}")
        near = elsewhere or get_close_matches(name, self.names, n=1)
        if near:
            ctx.fail(f"No such command {name!r}. Did you mean {' or '.join(map(repr, near))}?")
        if " " in name and "generate" in self.names:
            ctx.fail(f"No such command {name!r}. To continue that text, type {ctx.command_path} generate -p …")


# ---- values


_PLAIN = {
    str: re.compile(".*", re.DOTALL),
    int: re.compile("-?[0-9]{1,15}"),
    float: re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?"),
}
"""Values that their type itself reads as typer does."""


def _without_pydantic(params: list[Any]) -> list[Any]:
    """The same parameters; defaults, words and plain numbers do without pydantic, which takes 60 ms to import.

    Typers that read every value with it, 0.29 for one, have parameters with a type_descriptor. Others need no help.
    """
    for param in params:
        if hasattr(param, "type_descriptor"):
            param.process_value = partial(_read, param)
    return params


def _read(param: Any, ctx: Any, value: Any) -> Any:
    """The value that was typed, as its type, or the default. This replaces the parameter's own process_value."""
    kind, is_typed = param.type_descriptor.annotation, is_given(ctx, param.name)
    if not is_typed and not param.required:
        return value
    if is_typed and not param.callback and not param.type_descriptor.is_ranged:
        if kind == list[str]:
            return list(value)
        if kind in _PLAIN and isinstance(value, str) and _PLAIN[kind].fullmatch(value):
            return kind(value)
    return type(param).process_value(param, ctx, value)


# ---- names


def _shown_name(param: Any) -> str:
    """The name of a parameter in messages: --output, MODEL."""
    is_argument = param.param_type_name == "argument"
    return str(param.metavar or param.name.upper() if is_argument else max(param.opts, key=len))


def _check_output(path: Path | None) -> None:
    """ConfigError for an output path of `-`, or one that is not UTF-8 and could not be printed."""
    if str(path) == "-":
        raise ConfigError("output", "-", "the name of a file or directory; nothing of it can go to stdout")
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise ConfigError("output", str(path), "a name in UTF-8") from None


def _in_options(message: str, options: Mapping[str, str], chat: bool = False) -> str:
    """A message in the words of Python's interface, with settings and keywords as this verb's options.

    chat: whether --chat was typed.
    """
    if "chat" in options:
        message = message.replace(AS_TEXT, "leave out --chat")
    if "tokens" in options:
        message = message.replace(AS_IDS, f"give {options['tokens']}{' without --chat' * chat}")
    message = _KEYWORD.sub(lambda found: _typed(options, found), message)
    return _SETTING.sub(lambda name: options.get(name[0], name[0]), message)


def _typed(options: Mapping[str, str], found: re.Match[str]) -> str:
    """A keyword of Python as one would type it here; as it stands if the verb has no such option."""
    name, value = found.groups()
    if name not in options:
        return found[0]
    option = "--" + options[name].lstrip("-")
    if value == "False":
        return f"--no-{option[2:]}"
    return option if value == "True" else f"{option} {value.strip(chr(39))}"


@contextmanager
def _naming(ctx: Any) -> Iterator[None]:
    """Give the parser's errors the context of this verb, so that they point to its own --help."""
    try:
        yield
    except Exception as error:
        if getattr(error, "ctx", ctx) is None:
            error.ctx = ctx  # type: ignore[attr-defined]
        raise


def _add_model_option(parser: Any, ctx: Any, some_option: Any) -> None:
    """-m MODEL and --model MODEL in the place of the argument, which cannot stand for an option itself."""
    parser.add_option(obj=some_option, opts=["-m", "--model"], dest="--model", action="store", nargs=1)
    parse: Callable[..., Any] = parser.parse_args

    def parse_args(args: list[str]) -> Any:
        values, rest, order = parse(args=args)
        given = values.pop("--model", None)
        if given is not None and isinstance(values.get("model"), str):
            ctx.fail(f"MODEL is given twice: {values['model']!r} and {given!r}")
        if given is not None:
            values["model"] = given
        return values, rest, order

    parser.parse_args = parse_args


# ---- help


def help_width() -> int:
    """Columns of a help page: those of the terminal, within limits."""
    return min(max(shutil.get_terminal_size().columns, NARROWEST), WIDEST)


def _help_page(command: Any, ctx: Any) -> str:
    """Usage, description, options by panel, and examples, as wide as the terminal."""
    page = ctx.formatter_class(width=help_width())
    usage = " ".join(command.collect_usage_pieces(ctx))
    page.write_usage(ctx.command_path, usage.replace("{", "").replace("}", ""))
    page.write_paragraph()
    page.write_text(_join_lines(command.help or ""))
    panels: dict[str, list[tuple[str, str]]] = {}
    for param in command.get_params(ctx):
        if record := param.get_help_record(ctx):
            panel = getattr(param, "rich_help_panel", None) or "Options"
            panels.setdefault(panel, []).append(_in_plain_words(param, *record))
    if other := panels.pop("Options", None):
        panels["Options"] = other  # --help, after what the verb is about
    for name, rows in panels.items():
        _write_rows(page, name, rows)
    if isinstance(command, VerbGroup):
        _write_rows(page, "Commands", [(name, _summary(command.module(name).command)) for name in command.names])
    if command.epilog:
        page.write_paragraph()
        page.write(command.epilog)
    return str(page.getvalue()).rstrip("\n")


def _summary(command: Any) -> str:
    """The first paragraph of what a verb says of itself."""
    text = command.help if isinstance(command, VerbGroup) else command.__doc__
    return _join_lines(text or "").partition("\n")[0]


def _in_plain_words(param: Any, name: str, text: str) -> tuple[str, str]:
    """A row in which types of values and ranges are called as people call them."""
    if param.param_type_name == "argument":
        name = param.metavar or param.name.upper()
    name = re.sub(r"<(?:list\[)?(\w+)\]?(?: range)?>", lambda kind: _KINDS.get(kind[1].lower(), kind[1]), name)
    name = re.sub(r"\b(INTEGER|FLOAT)( RANGE)?", lambda kind: _KINDS[kind[1].lower()], name)  # of older typers
    return name, re.sub(r"x>=([\d.]+)", r"at least \1", text.replace("\\[", "["))


def _write_rows(page: Any, title: str, rows: Iterable[tuple[str, str]]) -> None:
    with page.section(typer.style(title, bold=True)):
        page.write_dl(list(rows), col_max=min(28, page.width // 3))


def _join_lines(text: str) -> str:
    """Paragraphs without the line breaks that they have in the source."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
