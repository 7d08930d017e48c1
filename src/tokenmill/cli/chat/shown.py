"""What `/show` and `/history` print: the model, the settings in force, and the messages so far."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from tokenmill.cli.chat.messages import Message
from tokenmill.errors import TokenmillError
from tokenmill.settings.sampling_params import SamplingParams

if TYPE_CHECKING:
    from tokenmill.cli.chat.turns import Turns

PARTS = ("model", "settings", "system", "template")
ELSEWHERE = {"info": "model", "parameters": "settings", "modelfile": "model"}
"""What Ollama's /show calls these parts."""


def show(talk: "Turns", words: str) -> str:
    """One part of what is in force, or all but the template, a line each. TokenmillError for an unknown part."""
    part = ELSEWHERE.get(words.lower(), words.lower())
    if part and part not in PARTS:
        raise TokenmillError(f"/show {words} is not known: /show, or one of {', '.join(PARTS)} after it")
    if part == "template":
        return (talk.engine.tokenizer and talk.engine.tokenizer.chat_template) or "no chat template"
    texts = {"model": _model(talk), "settings": sampling_text(talk.params), "system": _system(talk.messages)}
    return texts[part] if part else "\n".join(f"{name}: {text}" for name, text in texts.items())


def history(messages: Sequence[Message]) -> str:
    """Every message with its role, as it was written."""
    return "\n".join(f"{message['role']}: {message['content']}" for message in messages) or "there is no message yet"


def sampling_text(params: SamplingParams) -> str:
    """The sampling settings that differ from their defaults."""
    plain = asdict(SamplingParams())
    changed = {name: value for name, value in asdict(params).items() if value != plain[name]}
    return ", ".join(f"{name} {value}" for name, value in changed.items()) or "greedy"


def _model(talk: "Turns") -> str:
    engine = talk.engine
    return (
        f"{engine.config.model}, {engine.model_config.family}, {engine.program_name} {engine.config.dtype}, "
        f"{talk.context.num_tokens} tokens of context"
    )


def _system(messages: Sequence[Message]) -> str:
    return messages[0]["content"] if messages and messages[0]["role"] == "system" else "no system message"
