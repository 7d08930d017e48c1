"""The command `tokenmill`: the names of its verbs, and every error as one line and an exit code.

Exit codes: 0, 2 for what the user can put right, 130 for Ctrl-C, 1 for a text that a benchmark finds wrong, and 1 with
a traceback for a bug of ours. A reader that goes away (`| head -1`) has got what it wanted: 0.
"""

import gc
import os
import re
import sys
import threading
from typing import Annotated, Any

import typer

from tokenmill.cli.parser.command import VerbGroup
from tokenmill.cli.parser.other_names import ALIASES, ELSEWHERE
from tokenmill.cli.process.display import remark
from tokenmill.cli.process.streams import Unwritable, prepare_streams, silence_stdout
from tokenmill.errors import RankLost, TokenmillError, WrongText

app = typer.Typer(
    cls=VerbGroup,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    # Options may be written with underscores, as their settings are.
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda word: word.replace("_", "-"),
    },
)

# The class of all usage errors. Typer carries its own copy of click since 0.2x; both have this name.
UsageError: type[Exception] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "UsageError")


def _print_version(wanted: bool) -> None:
    if wanted:
        from tokenmill.cli.process.version_text import version_text

        typer.echo(version_text())
        raise typer.Exit


@app.callback()
def _tokenmill(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the versions, and what the native program runs on.",
        ),
    ] = False,
) -> None:
    """Turns prompts into tokens: the same text however it was computed.

    Start with: tokenmill generate -p "Hello"
    """


def main(arguments: list[str]) -> int:
    """Run one verb; returns the exit code."""
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        silence_stdout()
        return 0
    except Unwritable as error:
        silence_stdout()
        return _refuse(str(error))
    except OSError as error:  # a name that is too long, or lies in a folder that may not be searched
        if not isinstance(error.filename, str):
            raise
        return _refuse(f"{error.filename} cannot be used: {error.strerror}")
    return code


def _run(arguments: list[str]) -> int:
    command = typer.main.get_command(app)
    try:
        # Not through command.main, which has ways of its own with Ctrl-C and broken pipes. Of a copy, since words that
        # are read are taken out of the list.
        with command.make_context("tokenmill", list(arguments) or ["--help"]) as context:
            command.invoke(context)
    except typer.Exit as done:
        return done.exit_code
    except (WrongText, RankLost) as error:
        _refuse(str(error))
        return 1
    except TokenmillError as error:
        return _refuse(str(error))
    except UsageError as error:
        return _refuse(_usage(error, arguments))
    except (KeyboardInterrupt, typer.Abort):
        return 130
    return 0


def _usage(error: Exception, arguments: list[str]) -> str:
    """One line that says what is wrong with the command line."""
    context: Any = getattr(error, "ctx", None)
    where = context.command_path if context else "tokenmill"
    known = {option for param in context.command.params for option in param.opts} if context else set()
    if context and context.parent and (theirs := _hint_of_others(arguments, known)):
        return f"No such option: {theirs}; see `{where} --help`"
    near = list(getattr(error, "possibilities", None) or ())  # of an unknown option, the nearest first
    meant = ELSEWHERE.get(getattr(error, "option_name", ""))
    near = [meant] if meant in known else near
    if context and context.parent is None and arguments[0].startswith("-") and not near:
        first = arguments[0].partition("=")[0]
        return f"No such option: {first}. A verb comes first, as in `{where} generate -p …`; see `{where} --help`"
    message = _number_wanted(error) or (error.message if near else error.format_message())  # type: ignore[attr-defined]
    hint = f" (did you mean {near[0]}?)" if near else ""
    if "unexpected extra argument" in message and "-p" in known:
        hint = ": a prompt is given with -p"
    elif "unexpected extra argument" in message and context and context.info_name == "chat":
        hint = ": `tokenmill generate --chat -p TEXT` answers one message"
    if "Missing argument" in message and context:
        usage = " ".join(context.command.collect_usage_pieces(context))
        hint = f": {where} {usage.replace('{', '').replace('}', '')}"
    said = message.rstrip(".") + hint
    return f"{said}{' See' if said.endswith('?') else '; see'} `{where} --help`"


def _hint_of_others(arguments: list[str], known: set[str]) -> str:
    """What an option of another program is here; empty where none was typed that this verb lacks."""
    from tokenmill.cli.elsewhere.hints import option_hint  # long tables, of use after a mistake alone

    taken = {alias for alias, name in ALIASES.items() if name in (*known, "--model")}
    return option_hint(arguments, {*known, *taken, "--model"})


def _number_wanted(error: Any) -> str:
    """The message for a word in the place of a number; empty if the error is another."""
    kind = re.search("valid (number|float|integer)", error.message)
    causes = getattr(error.__cause__, "errors", None)
    word = causes()[0]["input"] if causes else error.message.partition("'")[2].partition("'")[0]
    if kind is None or getattr(error, "param", None) is None:
        return ""
    return f"{max(error.param.opts, key=len)} needs a {'whole ' * (kind[1] == 'integer')}number, not {word!r}"


def _refuse(message: str) -> int:
    remark(f"error: {' '.join(message.split())}")
    return 2


def run() -> None:
    """The whole command: arguments, streams, exit code."""
    prepare_streams()
    gc.set_threshold(50_000)  # torch alone makes a million objects that live on: looking at them again costs 0.1 s
    code = main(sys.argv[1:])
    if threading.active_count() > 1:  # something is still compiled in the background, for nobody
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
