"""`tokenmill chat`: a conversation on one session; only what is new is computed."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from tokenmill.cli.conversation import HELP, Conversation
from tokenmill.cli.display import progress_on_stderr, remark
from tokenmill.cli.models import load_engine
from tokenmill.cli.options import PROMPT, Model, Quiet, examples, with_defaults, with_settings
from tokenmill.config import DEFAULT_MODEL, EngineConfig, SamplingParams
from tokenmill.errors import TokenmillError

__all__ = ["EXAMPLES", "command"]

EXAMPLES = examples(
    "tokenmill chat",
    'tokenmill chat Qwen/Qwen3-0.6B --system "You are a miller." --temperature 0.7',
    "tokenmill chat --open yesterday.kv",
)
HISTORY = Path("~/.cache/tokenmill/chat_history")


@with_settings(sampling=SamplingParams, engine=EngineConfig)
def command(
    context: typer.Context,
    sampling: SamplingParams,
    engine: EngineConfig,
    model: Model = DEFAULT_MODEL,
    system: Annotated[str | None, typer.Option("--system", help="System message.", rich_help_panel=PROMPT)] = None,
    start: Annotated[
        Path | None, typer.Option("--open", help="Go on with a conversation that /save wrote.", rich_help_panel=PROMPT)
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Talk with a model. Each answer is followed by a line of figures; /help lists what else can be typed.

    What was computed once is not computed again, turn after turn. Ctrl-C ends an answer, Ctrl-D the conversation.
    """
    with progress_on_stderr(quiet) as progress:
        loaded = load_engine(replace(engine, model=model), progress)
        if engine.generation_config:
            sampling = with_defaults(context, sampling, loaded.core.inputs.defaults)
    talk = Conversation(loaded, sampling, system)
    if start is not None:
        talk.do(f"/open {start}")
    if not quiet and sys.stdin.isatty():
        remark(HELP.splitlines()[0])
    for line in _typed() if sys.stdin.isatty() else _piped():
        _serve(talk, line, quiet)


def _serve(talk: Conversation, line: str, quiet: bool) -> None:
    """One line that was typed. What it cannot do is said, and the conversation goes on."""
    try:
        if line.startswith("/"):
            answer = talk.do(line)
            if answer:
                typer.echo(answer, err=True)
            if not talk.pending:
                return
        elif line.strip():
            talk.ask(line)
        else:
            return
        for text in talk.answer():
            typer.echo(text, nl=False)
        typer.echo()
        if not quiet:
            remark(talk.figures)
    except KeyboardInterrupt:
        typer.echo()
        remark("ended by Ctrl-C; /retry asks again, /undo forgets it")
    except TokenmillError as error:
        remark(f"error: {error}")


def _piped() -> Iterator[str]:
    for line in sys.stdin:
        yield line.removesuffix("\n")


def _typed() -> Iterator[str]:
    """Lines with editing, and those of earlier conversations at hand."""
    try:
        import readline  # it changes the terminal: only where lines are typed
    except ImportError:  # not on every system; lines are then typed without editing
        readline = None  # type: ignore[assignment]
    file = HISTORY.expanduser()
    if readline is not None and file.exists():
        readline.read_history_file(file)
    try:
        while True:
            try:
                yield input("> ")
            except KeyboardInterrupt:
                typer.echo()
            except EOFError:
                typer.echo()
                return
    finally:
        if readline is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            readline.set_history_length(1000)
            readline.write_history_file(file)
