"""The `tokenmill` command: collects the verbs, and prints every error as one line and an exit code.

Exit codes: 0, 2 for what the user can put right, 130 for Ctrl-C, 1 for a text that a benchmark finds wrong, and 1 with
a traceback for a bug of ours. A reader that goes away (`| head -1`) has got what it wanted: 0.
"""

import gc
import os
import sys
import threading
from typing import Annotated

import typer

from tokenmill.cli import chat, compile, decode, generate, image, info, pack, plan, prefill, profile, pull, quantize
from tokenmill.cli.bench import bench
from tokenmill.cli.display import remark
from tokenmill.cli.eval import evaluate
from tokenmill.errors import TokenmillError, WrongText
from tokenmill.version import __version__

__all__ = ["app", "main", "run"]

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verb in (generate, chat, prefill, decode, pull, quantize, pack, compile, info, plan, profile):
    app.command(verb.__name__.rpartition(".")[2], epilog=verb.EXAMPLES)(verb.command)
app.command("image", hidden=True)(image.command)
app.add_typer(bench, name="bench")
app.add_typer(evaluate, name="eval")

# The class of all usage errors. Typer carries its own copy of click since 0.2x; both have this name.
UsageError: type[Exception] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "UsageError")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tokenmill {__version__}")
        raise typer.Exit


@app.callback()
def _tokenmill(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Turns prompts into tokens: the same text however it was computed. Start with: tokenmill generate -p "Hello"."""


def main(arguments: list[str]) -> int:
    """Run one verb; returns the exit code."""
    command = typer.main.get_command(app)
    try:
        # Not through command.main, which has ways of its own with Ctrl-C and broken pipes.
        with command.make_context("tokenmill", arguments or ["--help"]) as context:
            command.invoke(context)
        sys.stdout.flush()
    except typer.Exit as done:
        return done.exit_code
    except TokenmillError as error:
        return _refuse(str(error))
    except WrongText as error:
        _refuse(str(error))
        return 1
    except UsageError as error:
        where = error.ctx.command_path if error.ctx else "tokenmill"  # type: ignore[attr-defined]
        return _refuse(f"{error.format_message().rstrip('.')}; see `{where} --help`")  # type: ignore[attr-defined]
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        # What is still buffered must go nowhere, or the interpreter complains at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _refuse(message: str) -> int:
    remark(f"error: {' '.join(message.split())}")
    return 2


def run() -> None:
    """Entry point of the `tokenmill` script."""
    # A text may hold characters that the terminal's encoding has not: a "?" is better than to end in the middle.
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    gc.set_threshold(50_000)  # torch alone makes a million objects that live on: looking at them again costs 0.1 s
    code = main(sys.argv[1:])
    if threading.active_count() > 1:  # something is still compiled in the background, for nobody
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
