"""`/set`, `/show` and `/history` in `chat`: settings are read, and what is in force and was said is shown."""

from collections.abc import Sequence
from dataclasses import asdict, fields
from difflib import get_close_matches
from typing import Any

from tokenmill.cli.chat.messages import Message
from tokenmill.cli.chat.turns import Turns
from tokenmill.errors import TokenmillError
from tokenmill.settings.field import setting_of, settings_of
from tokenmill.settings.sampling_params import ALIASES, SamplingParams

KINDS = {field.name: field.type for field in fields(SamplingParams) if setting_of(field).in_chat}
OF_OLLAMA = {
    "system": "/system TEXT sets the system message",
    "format": "`tokenmill chat --json-schema` has every answer keep to a schema",
    "noformat": "`tokenmill chat` without --json-schema has answers of any form",
    "history": "lines that you type are always kept, in a file of the data folder",
    "nohistory": "lines that you type are always kept, in a file of the data folder",
    "wordwrap": "text is always wrapped at words, and code never",
    "nowordwrap": "text is always wrapped at words, and code never; `tokenmill chat --plain` shows it as it comes",
    "verbose": "a line of figures follows every answer",
    "quiet": "`tokenmill chat --quiet` leaves the figures out",
    "think": "/set thinking_budget N bounds how much a model thinks",
    "nothink": "/set thinking_budget 0 keeps a model from thinking",
    "num_ctx": "`tokenmill chat --max-length N` sets the context when a conversation begins",
    "num_gpu": "`tokenmill chat --device` chooses the device",
    "num_thread": "`tokenmill chat --threads N` sets the threads",
}
"""What Ollama's /set has and ours has not, and where it is here."""
SAME_AS = {
    option.lstrip("-").replace("-", "_"): name
    for name, told in settings_of(SamplingParams).items()
    for option in told.options
}
"""Settings by the names that other programs have for them."""


def read_setting(words: str) -> tuple[str, Any]:
    """Read name and value of a sampling setting. TokenmillError for an unknown name; the value is not checked."""
    name, _, value = words.removeprefix("parameter ").strip().partition(" ")
    if name.lower() in OF_OLLAMA:
        raise TokenmillError(f"/set {name} is another program's: {OF_OLLAMA[name.lower()]}")
    name, value = name.replace("-", "_").lstrip("_"), value.strip()
    name = (ALIASES | SAME_AS).get(name, name)
    known = sorted(KINDS)
    if name not in known or not value:
        problem = f"no setting {name!r}{meant(name, known)}" if name and name not in known else "/set NAME VALUE"
        raise TokenmillError(f"{problem}; the settings are {', '.join(known)}")
    if KINDS[name] == tuple[str, ...]:
        return name, () if value.lower() == "none" else (value,)
    return name, _parse(value)


def meant(word: str, known: list[str]) -> str:
    """Ask whether the nearest of the known words was meant; empty if no word is near."""
    near = get_close_matches(word, known, n=1) or [each for each in known if word and each.startswith(word)]
    return f" (did you mean {near[0]}?)" if near else ""


def _parse(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False, "none": None}.get(text.lower(), text)


PARTS = ("model", "settings", "system", "template")
ELSEWHERE = {"info": "model", "parameters": "settings", "modelfile": "model"}
"""What Ollama's /show calls these parts."""


def show(talk: Turns, words: str) -> str:
    """Describe one part of what is in force, or all but the template. TokenmillError for an unknown part."""
    part = ELSEWHERE.get(words.lower(), words.lower())
    if part and part not in PARTS:
        raise TokenmillError(f"/show {words} is not known: /show, or one of {', '.join(PARTS)} after it")
    if part == "template":
        return (talk.engine.tokenizer and talk.engine.tokenizer.chat_template) or "no chat template"
    texts = {"model": _model(talk), "settings": sampling_text(talk.params), "system": _system(talk.messages)}
    return texts[part] if part else "\n".join(f"{name}: {text}" for name, text in texts.items())


def history(messages: Sequence[Message]) -> str:
    """Show every message with its role, as it was written."""
    return "\n".join(f"{message['role']}: {message['content']}" for message in messages) or "there is no message yet"


def sampling_text(params: SamplingParams) -> str:
    """List the sampling settings that differ from their defaults."""
    plain = asdict(SamplingParams())
    changed = {name: value for name, value in asdict(params).items() if value != plain[name]}
    return ", ".join(f"{name} {value}" for name, value in changed.items()) or "greedy"


def _model(talk: Turns) -> str:
    engine = talk.engine
    return (
        f"{engine.config.model}, {engine.model_config.family}, {engine.program_name} {engine.config.dtype}, "
        f"{talk.context.num_tokens} tokens of context"
    )


def _system(messages: Sequence[Message]) -> str:
    return messages[0]["content"] if messages and messages[0]["role"] == "system" else "no system message"
