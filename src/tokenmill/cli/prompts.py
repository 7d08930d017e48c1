"""Prompts as they are given: options, files and stdin, made into texts, token ids or conversations."""

import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from tokenmill.cli.parser.options import PROMPT, option, parse_ids
from tokenmill.errors import ConfigError, RequestError
from tokenmill.settings.engine_config import DEFAULT_MODEL, EngineConfig
from tokenmill.units import size

MAX_BYTES = 64_000_000
"""The longest prompt in bytes, which is more than any context holds."""

TEXTS = option(None, "Text to continue; - reads stdin. Repeat for a batch.", PROMPT, "-p")
TEXT = option(None, "Text to continue; - reads stdin.", PROMPT, "-p")
FILES = option(None, "Text to continue, from a file in UTF-8; - reads stdin.", PROMPT)
IDS = option(None, "A prompt as token ids separated by commas, as 1,2,3.", PROMPT, metavar="IDS")
CHAT = option(False, "Ask through the model's chat template.", PROMPT)
SYSTEM = option(None, "System message, with --chat.", PROMPT)


def gather(
    texts: Sequence[str] | None,
    files: Sequence[Path] | None,
    ids: Sequence[str] | None,
    chat: bool = False,
    system: str | None = None,
    model: str = DEFAULT_MODEL,
) -> list[Any]:
    """Collect every prompt that was given, in the order text, files, ids; with chat, each as a conversation.

    Without any, what stdin holds, unless that is a terminal. model: what MODEL was, in case it was meant as a prompt.
    """
    if system is not None and not chat:
        raise ConfigError("system", system, "only together with --chat, since it is part of a conversation")
    if chat and ids:
        raise ConfigError("--tokens", ",".join(ids), "only without --chat, which renders text")
    if not (texts or files or ids):
        texts = _from_stdin(model)
    prompts: list[Any] = [
        _check_text(read_stdin().removesuffix("\n") if text == "-" else text, "--prompt") for text in texts or []
    ]
    for path in files or []:
        text = read_stdin() if str(path) == "-" else read_text(path)
        prompts.append(_check_text(text.removesuffix("\n"), str(path)))
    prompts += [parse_ids([text], "--tokens") for text in ids or []]
    if not chat:
        return prompts
    first = [] if system is None else [{"role": "system", "content": system}]
    return [[*first, {"role": "user", "content": text}] for text in prompts]


def check_waiting(engine: EngineConfig, num_texts: int) -> None:
    """Refuse a queue that has fewer places than there are texts with ConfigError, before a model is loaded."""
    if engine.max_waiting is not None and num_texts > engine.max_waiting:
        allowed = f"at least {num_texts}, since all texts of a run wait at first; or leave it out"
        raise ConfigError("max_waiting", engine.max_waiting, allowed)


def _from_stdin(model: str) -> list[str]:
    """Read the prompt that was piped in. RequestError if there is none."""
    from tokenmill.hub.names import is_there

    misread = model != DEFAULT_MODEL and "/" not in model and not is_there(Path(model))
    hint = f"{model!r} was read as the name of a model; if it is the prompt, type -p {shlex.quote(model)}"
    if misread and " " in model.strip():
        raise RequestError(f"no prompt: {hint}")
    data = b""
    if not sys.stdin.isatty():
        with suppress(OSError):  # there may be nothing that can be read
            data = _all_of(sys.stdin.buffer, "the input", MAX_BYTES)
    text = _decode(data, "the input").removesuffix("\n")
    if not text:
        raise RequestError(
            f"no prompt: give one with -p TEXT, with --prompt-file FILE, or on stdin{f' ({hint})' if misread else ''}"
        )
    return [text]


def read_stdin(max_bytes: int = MAX_BYTES) -> str:
    """Read all of stdin, which is UTF-8 whatever the locale says."""
    try:
        return _decode(_all_of(sys.stdin.buffer, "the input", max_bytes), "the input")
    except OSError as error:
        raise RequestError(f"the input cannot be read: {error.strerror}") from None


def read_text(path: Path, max_bytes: int = MAX_BYTES) -> str:
    """Read a file in UTF-8. RequestError, with its name, for one that cannot be read."""
    try:
        with path.open("rb") as file:
            return _decode(_all_of(file, str(path), max_bytes), str(path))
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}") from None


def _all_of(file: BinaryIO, source: str, max_bytes: int) -> bytes:
    """Read all of a file. RequestError for one without an end, such as /dev/zero."""
    data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise RequestError(f"{source} has more than {size(max_bytes)}, which is no text to be read at once: shorten it")
    return data


def _decode(data: bytes, source: str, encoding: str = "utf-8-sig") -> str:
    """Decode the bytes, without the byte order mark that some editors put before the text."""
    try:
        return data.decode(encoding)
    except UnicodeDecodeError:
        raise RequestError(f"{source} is not valid UTF-8") from None


def _check_text(text: str, source: str) -> str:
    """Check a prompt from an option or a file. An option that is not UTF-8 has surrogates in it."""
    text = _decode(os.fsencode(text), source, "utf-8").removesuffix("\n")
    if not text:
        raise RequestError(f"the prompt of {source} is empty: give a text of at least one character")
    return text


def shown_ids(tokens: Sequence[int]) -> str:
    """Spell the ids as they are shown for a model that has no tokenizer."""
    return "".join(f"{token} " for token in tokens)


def split(texts: Sequence[Any], each_line: bool) -> list[Any]:
    """Divide texts into their lines that are not empty, if that is asked for."""
    if not each_line:
        return list(texts)
    if ids := [text for text in texts if not isinstance(text, str)]:
        raise ConfigError("--tokens", ",".join(map(str, ids[0])), "only without --each-line, which divides text")
    return [line for text in texts for line in text.splitlines() if line.strip()]
