"""`tokenmill chat`: a conversation on one session; only what is new is computed."""

import os
import sys
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tokenmill.cli.chat.conversation import LEAVE, Conversation
from tokenmill.cli.chat.typed import Read, Typed, from_pipe, from_terminal, read_typed
from tokenmill.cli.models import check_model, load_engine, looks_saved, read_model_config
from tokenmill.cli.parser.command import Context
from tokenmill.cli.parser.config_file import PRESET
from tokenmill.cli.parser.options import CHAT_TEMPLATE, MODEL_NAME, PROMPT, QUIET, SAMPLING, option, with_defaults
from tokenmill.cli.process.display import echo, progress_on_stderr, remark, write_text
from tokenmill.cli.watch import prompt_progress
from tokenmill.errors import TokenmillError
from tokenmill.hub.progress import Progress
from tokenmill.memory.interrupts import held_interrupts
from tokenmill.settings.engine_config import DEFAULT_MAX_LENGTH, EngineConfig
from tokenmill.settings.recommended import Recommended
from tokenmill.settings.sampling_params import SamplingParams

if TYPE_CHECKING:
    from tokenmill.engine.engine import Engine

EXAMPLES = (
    "tokenmill chat",
    'tokenmill chat Qwen/Qwen3-0.6B --system "You are a miller." --temperature 0.7',
    "tokenmill chat --open yesterday.kv",
    "tokenmill chat --preset miller",
)

BLOCK_SIZE = 32
"""Tokens per cache block, so that a fork shares the blocks before it; no model's context is smaller."""
FORK_TOKENS = 8192
"""The cache has at most this many slots for what two forks do not share."""
LEAVING = ("exit", "quit")  # typed alone, they hardly are a message
WORDS = {
    "max_new_tokens": "Maximum number of new tokens of an answer. Default: all that the context leaves.",
    "cache_tokens": f"Slots in the cache. Default: max-length, and as much again, at most {FORK_TOKENS}, for /fork.",
    "seed": "The same seed gives the same tokens. Default: a new one for each answer.",
}
WITHOUT = ("n", "logprobs", "max_sequences", "max_waiting", "skip_special_tokens", "generation_config")


def command(
    context: Context,
    sampling: SamplingParams,
    engine: EngineConfig,
    model: str = MODEL_NAME,
    system: str | None = option(None, "System message.", PROMPT),
    start: Path | None = option(None, "Go on with a conversation that /save wrote.", PROMPT, "--open"),
    chat_template: Path | None = CHAT_TEMPLATE,
    generation_config: bool = option(
        True, "Sample as the model or its maker recommends, unless an option says otherwise; else greedily.", SAMPLING
    ),
    preset: str | None = PRESET,
    plain: bool = option(False, "Show answers as the model writes them, not rendered as Markdown."),
    quiet: bool = QUIET,
) -> None:
    """Talk with a model. Each answer is followed by a line of figures; /help lists what else can be typed.

    What was computed once is not computed again, turn after turn. Without -n an answer may fill the context. Ctrl-C
    stops an answer; Ctrl-D or /bye ends the conversation. Where stdin is no terminal, each line of it is a message.
    On a terminal answers are rendered as Markdown; piped, they are the model's text as it is.
    """
    if start is not None and system is not None:
        raise TokenmillError("--system and --open exclude each other: a saved conversation has its own system message")
    if looks_saved(Path(model)):
        raise TokenmillError(f"{model} is a saved conversation, not a model: `tokenmill chat --open {model}`")
    if start is not None and "model" not in context.origins:
        with held_interrupts():
            from tokenmill.cache.header import read_facts
        model = str(read_facts(start)["model"])

    def open_model(name: str) -> tuple["Engine", SamplingParams]:
        settings = replace(engine, model=name, generation_config=generation_config)
        with progress_on_stderr(quiet) as progress:
            loaded = _load(settings, progress, chat_template)
        recommended = loaded.core.inputs.defaults
        if sys.stdin.isatty() and not quiet:
            remark(_greeting(loaded))
        if recommended and not quiet:
            remark(_recommended(recommended))
        return loaded, with_defaults(context.origins, sampling, recommended)

    is_typed = sys.stdin.isatty()
    talk = Conversation(*open_model(model), system, open_model)
    if start is not None:
        said = talk.open(str(start))
        if not quiet:
            remark(said)
    with from_terminal() if is_typed else from_pipe() as read:
        went_well = _converse(talk, read, is_typed, plain, quiet)
    if not (went_well or is_typed):
        sys.exit(2)


def _load(settings: EngineConfig, progress: Progress, chat_template: Path | None) -> "Engine":
    """Load a model to talk with. A base model is refused before torch is imported or a weight is read, and so is an
    encoder; a decoder without a head once it is loaded.
    """
    path = check_model(settings.model, progress)
    with held_interrupts():
        from tokenmill.weights.chat_template import has_chat_template
    if chat_template is None and not has_chat_template(path):
        if not read_model_config(settings.model, progress).has_head:
            raise _without_head(settings.model)
        raise TokenmillError(
            f"{settings.model} is a base model: its files have no chat template, so that it continues texts and "
            "answers no questions; `tokenmill generate` does that, and --chat-template FILE gives it a template"
        )
    loaded = load_engine(settings, progress, chat_template, with_room_for_forks)
    if not loaded.model_config.has_head:
        raise _without_head(settings.model)
    return loaded


def _without_head(model: str) -> TokenmillError:
    """Make the refusal of a model that writes no text."""
    return TokenmillError(f"{model} gives vectors of texts, and no text to talk with: `tokenmill embed` prints them")


def with_room_for_forks(engine: EngineConfig) -> EngineConfig:
    """Choose cache blocks that forks can share, and a cache for more than one of them."""
    length = engine.max_length or DEFAULT_MAX_LENGTH
    if engine.block_size is None and engine.kernel == "auto":
        engine = replace(engine, block_size=min(BLOCK_SIZE, length))
    if engine.cache_tokens is None:
        engine = replace(engine, cache_tokens=length + min(length, FORK_TOKENS))
    return engine


def _greeting(engine: "Engine") -> str:
    config = engine.config
    return (
        f"{config.model}, {engine.program_name} {config.dtype}, {config.max_length} tokens of context\n"
        "Type a message. /help lists the commands; /bye or Ctrl-D leaves."
    )


def _converse(talk: Conversation, read: Read, is_typed: bool, plain: bool, quiet: bool) -> bool:
    """Serve what is typed until its end, also after refusals, and tell whether there were none."""
    went_well = True
    while True:
        try:
            typed = read_typed(read)
            if typed.command in LEAVE or (is_typed and typed.text.strip() in LEAVING and _leaves(typed.text, read)):
                return went_well
            _serve(talk, typed, plain, quiet)
        except EOFError:
            if is_typed:
                echo()
            return went_well
        except KeyboardInterrupt:
            if not is_typed:
                raise
            echo()
            remark("/bye or Ctrl-D leaves")
        except TokenmillError as error:
            remark(f"error: {error}")
            went_well = False


def _leaves(word: str, read: Read) -> bool:
    """Ask whether a word that was typed alone is meant to end the conversation."""
    while True:
        answer = read(f"leave? y leaves, n sends {word.strip()!r} as a message: ").strip().lower()
        if answer in ("y", "yes"):
            return True
        if answer in ("n", "no"):
            return False


def _serve(talk: Conversation, typed: Typed, plain: bool, quiet: bool) -> None:
    """Carry out a command, or ask a question; show the answer if there is one."""
    if typed.command is not None:
        if said := talk.do(typed.command, typed.argument):
            remark(said)
    elif typed.text.strip():
        talk.ask(typed.text)
    if not talk.pending:
        return
    try:
        with prompt_progress(talk.engine, quiet):
            _show(talk, plain)
        said = talk.figures
    except KeyboardInterrupt:
        if not sys.stdin.isatty():
            raise
        said = talk.state
    for line in () if quiet else (said, talk.warning):
        if line:
            remark(line)


def _show(talk: Conversation, plain: bool) -> None:
    """Write an answer as it comes, on a terminal as Markdown. Its line ends also where it is stopped."""
    with closing(talk.answer()) as texts:
        if plain or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
            _write(texts)
            return
        from tokenmill.cli.chat.rendered import RenderedMarkdown

        with RenderedMarkdown() as rendered:
            for text in texts:
                rendered.write(text)


def _write(texts: Iterable[str]) -> None:
    is_begun = False
    try:
        for text in texts:
            is_begun = True
            write_text(text)
    finally:
        if is_begun:
            echo()


def _recommended(defaults: Recommended) -> str:
    said = ", ".join(f"{name} {value}" for name, value in defaults.items())
    return f"Sampling: {said} ({defaults.origin}). --no-generation-config is greedy."
