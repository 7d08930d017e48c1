"""gpt-oss's harmony: messages in channels, of which one is thinking, one the answer, and one has calls.

A call is a message to a function. The ends of calls and of the answer are tokens that end a text, so they are in no
grammar. The chat template writes the receiver of an old call before its channel, and the model writes the receiver of a
new one behind it: the grammar admits both.
"""

import json
import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tokenmill.text.tools.functions import Function, ToolChoice
from tokenmill.text.tools.lark import Lark, choice
from tokenmill.text.tools.lark_rules import arguments_of
from tokenmill.text.tools.source import Reading, Source, read_json
from tokenmill.text.tools.tool_format import AnswerReader, CallBody, Taker, ToolFormat

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, RETURN, CALL = "<|end|>", "<|return|>", "<|call|>"
ENDS = (END, RETURN, CALL)
RECEIVER = "functions."
MAX_HEADER = 400  # letters before a message: a channel, and the name of a function
_HEADER = re.compile(
    r"\s*(?:<\|start\|>\s*assistant)?(?P<before>(?:\s*to=[^\s<]+)?)\s*<\|channel\|>\s*"
    r"(?P<channel>analysis|commentary|final)"
    r"(?P<behind>(?:\s*to=[^\s<]+)?[\w.:/+\s-]*(?:<\|constrain\|>[\w.:/+\s-]*)?)<\|message\|>",
    re.ASCII,
)


class MessageHeader(NamedTuple):
    """The header of a message. receiver: "" for none."""

    text: str
    channel: str
    receiver: str


@dataclass(frozen=True)
class HarmonyCall(CallBody):
    """The message of a call: its header, and arguments as JSON."""

    def rule(self, lark: Lark, function: Function, name: str, before: str = "") -> str:
        receiver = f"to={RECEIVER}{function.name}"
        headers = [
            f" {receiver}{CHANNEL}commentary json{MESSAGE}",
            f"{CHANNEL}commentary {receiver} {CONSTRAIN}json{MESSAGE}",
        ]
        arguments = arguments_of(lark, function, name)
        return f"{choice(lark.literal(before + header) for header in headers)} {arguments}"

    def read(self, source: Source, taker: Taker) -> Reading:
        """Read the arguments of a call that has begun, and its end."""
        yield from source.spaces()
        while source.at == len(source.text) and not source.ended:
            yield
        if not source.text.startswith("{", source.at) or not (yield from read_json(source, taker.append)):
            return False
        yield from source.spaces()
        for end in ENDS:
            if (yield from source.literal(end)):
                return True
        return source.ended and source.at == len(source.text)

    def first(self, name: str) -> str:
        return f" to={RECEIVER}{name}"

    def texts(self) -> tuple[str, ...]:
        return START, CHANNEL, MESSAGE, CONSTRAIN, END

    def text(self, name: str, arguments: Mapping[str, Any], number: int = 0) -> str:
        return f" to={RECEIVER}{name}{CHANNEL}commentary json{MESSAGE}{json.dumps(arguments, ensure_ascii=False)}"


def answer_of(lark: Lark, functions: Sequence[Function], wanted: ToolChoice, own_text: str | None = None) -> str:
    """Return an expression for messages, the last of which is the answer or, where functions may be called, a call.

    own_text: an expression for the answer, in the place of any text.
    """
    text = lark.text()
    told = choice(lark.literal(f"{CHANNEL}{channel}{MESSAGE}") for channel in ("analysis", "commentary"))
    before = lark.rule("before", f"{told} {lark.until('told', END, text)} {lark.literal(START + 'assistant')}")
    last = [HarmonyCall().rule(lark, function, f"call_{number}") for number, function in enumerate(functions)]
    if wanted.mode != "required":
        last.append(f"{lark.literal(f'{CHANNEL}final{MESSAGE}')} {own_text or text}")
    return f"{before}* {choice(last)}"


def read_answer(reader: AnswerReader) -> Generator[None, None, None]:
    """Read messages to the end of an answer."""
    source = reader.source
    while source.at < len(source.text) or not source.ended:
        source.kept = source.at
        header = yield from _read_header(source)
        if header is None:
            source.at, source.kept = source.kept, None
            yield from _read_text(reader)
            continue
        name = header.receiver.removeprefix(RECEIVER)
        if header.receiver and (not header.receiver.startswith(RECEIVER) or name not in reader.names):
            reader.show_text(header.text)
        elif header.receiver:
            if not (yield from reader.read_call(HarmonyCall(), name)) and source.kept is not None:
                source.at, source.kept = source.kept + len(header.text), None
                reader.show_text(header.text)
                yield from reader.read_up_to(ENDS, "", reader.show_text)
            continue
        source.kept = None
        yield from reader.read_up_to(
            ENDS, "", reader.show_thinking if header.channel == "analysis" else reader.show_text
        )
        for end in ENDS:
            if (yield from source.literal(end)):
                break


def _read_text(reader: AnswerReader) -> Generator[None, None, None]:
    """Read text that is no message, up to where the next message may begin."""
    source = reader.source
    reader.show_text(source.text[source.at : source.at + 1])
    source.at = min(source.at + 1, len(source.text))
    yield from reader.read_up_to((START, CHANNEL), "", reader.show_text)


def _read_header(source: Source) -> Generator[None, None, MessageHeader | None]:
    """Read up to a message, if one begins here."""
    while True:
        text = source.text[source.at : source.at + MAX_HEADER]
        if found := _HEADER.match(text):
            if (header := _header(found)) is not None:
                source.at += found.end()
            return header
        if source.ended or len(text) == MAX_HEADER or MESSAGE in text or not _may_begin(text):
            return None
        yield


def _header(found: re.Match[str]) -> MessageHeader | None:
    """Read a header as openai-harmony 0.0.8 does: a content type may stand behind the receiver, and the receiver
    without its mark. Return None for a header with more words than these.
    """
    behind = re.sub(rf"{re.escape(CONSTRAIN)}\s*", f" {CONSTRAIN}", found["behind"])
    words = f"{found['before']} {behind}"
    *before, last = words.split() or [""]
    if before and not last.startswith("to="):
        *before, last = before
    elif not last.startswith(("to=", RECEIVER)):  # a content type alone
        last = ""
    return None if before else MessageHeader(found[0], found["channel"], last.removeprefix("to="))


def _may_begin(text: str) -> bool:
    """Return whether a header may begin so, as far as its first word tells."""
    text = text.lstrip()
    return any(text.startswith(word[: len(text)]) for word in (START, CHANNEL, "to="))


HARMONY = ToolFormat(
    name="harmony",
    words=("<|channel|>", "<|start|>", "<|message|>"),
    body=HarmonyCall(),
    is_single=True,
    reader=read_answer,
    answer=answer_of,
)
