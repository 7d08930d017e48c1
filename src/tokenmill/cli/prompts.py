"""Prompts as they are given: options, files and stdin, made into texts, token ids or conversations."""

import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from tokenmill.cli.options import PROMPT, parse_ids
from tokenmill.config import DEFAULT_MODEL
from tokenmill.errors import ConfigError, RequestError
from tokenmill.hub.names import is_there

__all__ = [
    "Chat",
    "Files",
    "Ids",
    "System",
    "Text",
    "Texts",
    "gather",
    "read_stdin",
    "read_text",
    "shown_ids",
]

Texts = Annotated[
    list[str] | None,
    typer.Option("--prompt", "-p", help="Text to continue; - reads stdin. Repeat for a batch.", rich_help_panel=PROMPT),
]
Text = Annotated[
    list[str] | None,
    typer.Option("--prompt", "-p", help="Text to continue; - reads stdin.", rich_help_panel=PROMPT),
]
Files = Annotated[
    list[Path] | None,
    typer.Option("--prompt-file", help="Text to continue, from a file in UTF-8.", rich_help_panel=PROMPT),
]
Ids = Annotated[
    list[str] | None,
    typer.Option(
        "--tokens", metavar="IDS", help="A prompt as token ids separated by commas, as 1,2,3.", rich_help_panel=PROMPT
    ),
]
Chat = Annotated[bool, typer.Option("--chat", help="Ask through the model's chat template.", rich_help_panel=PROMPT)]
System = Annotated[str | None, typer.Option("--system", help="System message, with --chat.", rich_help_panel=PROMPT)]


def gather(
    texts: Sequence[str] | None,
    files: Sequence[Path] | None,
    ids: Sequence[str] | None,
    chat: bool = False,
    system: str | None = None,
    model: str = DEFAULT_MODEL,
) -> list[Any]:
    """Every prompt that was given, in the order text, files, ids; with chat, each as a conversation.

    Without any, what stdin holds, unless that is a terminal. model: what MODEL was, in case it was meant as a prompt.
    """
    if system is not None and not chat:
        raise ConfigError("--system", system, "only together with --chat, since it is part of a conversation")
    if chat and ids:
        raise ConfigError("--tokens", ",".join(ids), "only without --chat, which renders text")
    if not (texts or files or ids):
        texts = _from_stdin(model)
    prompts: list[Any] = [
        _checked(read_stdin().removesuffix("\n") if text == "-" else text, "--prompt") for text in texts or []
    ]
    prompts += [_checked(read_text(path).removesuffix("\n"), str(path)) for path in files or []]
    prompts += [parse_ids([text], "--tokens") for text in ids or []]
    if not chat:
        return prompts
    first = [] if system is None else [{"role": "system", "content": system}]
    return [[*first, {"role": "user", "content": text}] for text in prompts]


def _from_stdin(model: str) -> list[str]:
    """The prompt that was piped in. RequestError if there is none."""
    misread = model != DEFAULT_MODEL and "/" not in model and not is_there(Path(model))
    hint = f"{model!r} was read as the name of a model; if it is the prompt, type -p {shlex.quote(model)}"
    if misread and " " in model.strip():
        raise RequestError(f"no prompt: {hint}")
    data = b""
    if not sys.stdin.isatty():
        with suppress(OSError):  # there may be nothing that can be read
            data = sys.stdin.buffer.read()
    text = _decoded(data, "the input").removesuffix("\n")
    if not text:
        raise RequestError(
            f"no prompt: give one with -p TEXT, with --prompt-file FILE, or on stdin{f' ({hint})' if misread else ''}"
        )
    return [text]


def read_stdin() -> str:
    """All of stdin, which is UTF-8 whatever the locale says."""
    try:
        return _decoded(sys.stdin.buffer.read(), "the input")
    except OSError as error:
        raise RequestError(f"the input cannot be read: {error.strerror}") from None


def read_text(path: Path) -> str:
    """What a file in UTF-8 holds. RequestError, with its name, for one that cannot be read."""
    try:
        return _decoded(path.read_bytes(), str(path))
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}") from None


def _decoded(data: bytes, source: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise RequestError(f"{source} is not valid UTF-8") from None


def _checked(text: str, source: str) -> str:
    """A prompt from an option or a file. Options that are not UTF-8 come from the shell with surrogates in them."""
    text = _decoded(os.fsencode(text), source).removesuffix("\n")
    if not text:
        raise RequestError(f"the prompt of {source} is empty: give a text of at least one character")
    return text


def shown_ids(tokens: Sequence[int]) -> str:
    """What is shown of a model that has no tokenizer."""
    return "".join(f"{token} " for token in tokens)
