"""A conversation: its turns, and what the commands of `chat` do with them."""

import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from tokenmill.cli.chat.context_limit import context_limit_of
from tokenmill.cli.chat.messages import (
    Message,
    brief,
    check_messages,
    holds_conversation,
    is_answer,
    is_question,
    template_messages,
    turns,
)
from tokenmill.cli.chat.settings import history, meant, read_setting, sampling_text, show
from tokenmill.cli.chat.turns import Turns
from tokenmill.cli.parser.command import help_width
from tokenmill.errors import TokenmillError
from tokenmill.settings.sampling_params import SamplingParams
from tokenmill.units import counted
from tokenmill.value_reader import path_of

if TYPE_CHECKING:
    from tokenmill.engine.engine import Engine

LEAVE = ("bye", "quit", "exit")
ELSEWHERE = {"?": "help", "load": "model", "new": "clear", "reset": "clear", "regen": "retry"}
"""Names that other programs have for commands of ours."""
OpenModel = Callable[[str], tuple["Engine", SamplingParams]]
"""Load another model by its name; typed settings go over the settings that its files recommend."""
COMMANDS = {
    "/retry": "answer the last question again, with a new seed",
    "/continue": "go on with an answer that was stopped",
    "/edit TEXT": "ask the last question anew, with this text or in an editor",
    "/undo": "forget the last question and its answer, or take back /clear, /system, /edit or /compact",
    "/history": "show the messages so far",
    "/clear": "forget everything but the system message",
    "/compact": "drop the oldest turns, to make room",
    "/system TEXT": "set the system message, and begin anew",
    "/save FILE": "keep the conversation, its computed rows too",
    "/open FILE": "go on with a saved conversation",
    "/fork": "try something; /back returns to this point",
    "/back": "drop what came since /fork",
    "/model NAME": "go on with another model",
    "/set NAME VALUE": "change temperature, top_p, seed, max_new_tokens, ...",
    "/show": "show model, settings and system message; /show template the template",
    "/stats": "show tokens, cache and settings",
    "/help": "show this text (also /?)",
    "/bye": "leave (also /quit, /exit, Ctrl-D)",
}
AFTER = (
    'Ctrl-C stops an answer. A message of several lines: end a line with \\, or type """ before and after it, or paste '
    "it. A space before / makes it a message."
)


def edited(text: str) -> str:
    """Have the user change a text in an editor. TokenmillError where no editor is set, or where it fails."""
    command = next((os.environ[name] for name in ("VISUAL", "EDITOR") if os.environ.get(name)), None)
    if command is None:
        raise TokenmillError("/edit needs the new question, /edit TEXT, or an editor: set EDITOR, to nano for example")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "question.md")
        file.write_text(text, encoding="utf-8")
        try:
            subprocess.run([*shlex.split(command), str(file)], check=True)  # noqa: S603  (the user's own editor)
            return file.read_text(encoding="utf-8")
        except (OSError, ValueError, subprocess.CalledProcessError) as error:  # ValueError: quotes, or no UTF-8
            raise TokenmillError(f"the editor {command!r} failed: {error}; /edit TEXT does without one") from None


def chat_help() -> str:
    """Describe every command, and how messages are typed, as wide as the terminal."""
    width, indent = help_width(), 2 + max(map(len, COMMANDS)) + 2
    lines = [
        fill(f"  {name}".ljust(indent) + text, width, subsequent_indent=" " * indent, break_on_hyphens=False)
        for name, text in COMMANDS.items()
    ]
    return "\n".join(["Type a message, or one of these:", *lines, fill(AFTER, width, break_on_hyphens=False)])


class Conversation(Turns):
    """Turns, with the commands. open_model: for /model. edit: lets the user change a text, for /edit."""

    def __init__(
        self,
        engine: "Engine",
        params: SamplingParams,
        system: str | None = None,
        open_model: OpenModel | None = None,
        edit: Callable[[str], str] = edited,
    ) -> None:
        super().__init__(engine, params, system)
        self._open_model, self._edit = open_model, edit
        self._set: dict[str, Any] = {}  # by /set
        self._kept: list[tuple[Any, list[Message]]] = []  # what /back returns to
        self._earlier: list[tuple[list[Message], list[Message]]] = []  # new and old messages: what /undo returns to
        self.commands: dict[str, Callable[[str], str]] = {
            "retry": self.retry,
            "continue": self.go_on,
            "edit": self.edit,
            "undo": self.undo,
            "history": lambda _: history(self.messages),
            "clear": self.clear,
            "compact": self.compact,
            "system": self.begin,
            "save": self.save,
            "open": self.open,
            "fork": self.fork,
            "back": self.back,
            "model": self.change_model,
            "set": self.set,
            "show": lambda words: show(self, words),
            "stats": self.stats,
            "help": lambda _: chat_help(),
        }

    # ---- commands: each takes what was typed after its name, and gives what there is to say

    def do(self, name: str, argument: str = "") -> str:
        """Carry out a command. TokenmillError for an unknown one."""
        self.pending = False
        name = ELSEWHERE.get(name, name)
        command = self.commands.get(name or "help")
        if command is None:
            known = [f"/{each}" for each in (*self.commands, *LEAVE)]
            raise TokenmillError(
                f"unknown command /{name}{meant(f'/{name}', known)}; there are {', '.join(known)}; "
                "a space before / makes it a message"
            )
        return command(argument)

    def retry(self, _: str) -> str:
        """Ask the last question again; with another seed if it had an answer."""
        if not is_question(self.messages) and not is_answer(self.messages):
            return "there is nothing to ask again"
        self.pending = True
        if is_question(self.messages):
            return ""
        self.messages.pop()
        if self.params.seed is not None:
            self.params = replace(self.params, seed=self.params.seed + 1)
        return "" if self.params.temperature else "at temperature 0 the answer is the same: /set temperature 0.8"

    def go_on(self, _: str) -> str:
        """Ask for the rest of an answer that was stopped."""
        if is_question(self.messages):
            return "the last question has no answer yet: /retry asks it again"
        if not is_answer(self.messages):
            return "there is no answer to go on with"
        if "cut" not in self.messages[-1]:
            return "the answer is complete; /retry asks for another"
        self.pending = True
        return ""

    def edit(self, text: str) -> str:
        """Ask the last question anew, with the text that is given, or as it is changed in an editor."""
        last = turns(self.messages)[-1:]
        if not last:
            return "there is no question to edit"
        old = self.messages[last[0]]["content"]
        changed = (text or self._edit(old)).strip("\n")
        if changed.strip() in ("", old.strip()):
            return "the question is left as it was; /retry asks it again"
        self._go_on_from([*self.messages[: last[0]], {"role": "user", "content": changed}])
        self.pending = True
        return ""

    def undo(self, _: str) -> str:
        """Forget the last question and its answer, or take back /clear, /system, /edit or /compact."""
        without_answer = self.messages[:-1] if is_answer(self.messages) else self.messages
        if self._earlier and self._earlier[-1][0] in (self.messages, without_answer):
            self.messages = self._earlier.pop()[1]
            self._forget()
            return f"the conversation is back: {counted(len(self.messages), 'message')}"
        if is_answer(self.messages):
            self.messages.pop()
        if not is_question(self.messages):
            return "there is nothing to undo"
        forgotten = self.messages.pop()
        self._forget()
        return f"forgot: {brief(forgotten)}"

    def _go_on_from(self, messages: list[Message]) -> str:
        """Go on from other messages; return what to say of the way back to the old ones."""
        old = self.messages
        self.messages = messages
        self._forget()
        if old == messages or not old:
            return ""
        self._earlier.append((list(messages), old))
        return "; /undo returns to the old one"

    def clear(self, _: str) -> str:
        """Forget everything but the system message."""
        way_back = self._go_on_from([message for message in self.messages[:1] if message["role"] == "system"])
        return "a new conversation" + (", with the system message" if self.messages else "") + way_back

    def begin(self, text: str) -> str:
        """Forget everything, and take a new system message."""
        way_back = self._go_on_from([{"role": "system", "content": text}] if text else [])
        return "a new conversation" + ("" if text else ", without a system message") + way_back

    def compact(self, _: str) -> str:
        """Drop the oldest turns, at num_compacted one, until half of the context is free; the last turn stays."""
        starts = turns(self.messages)
        if len(starts) < 2:
            return "there is one turn at most, which stays: /undo forgets it, /clear everything"
        num_compacted = self._count_compacted(self.messages)
        if num_compacted is not None and not self.context.has_room(num_compacted):
            return (
                f"nothing is dropped: the last turn alone has {num_compacted} tokens, and {self.context.option} is "
                f"{self.context.num_tokens}; /undo forgets it"
            )
        system, num_dropped = self.messages[: starts[0]], 0
        for start in starts[1:]:
            kept, num_dropped = [*system, *self.messages[start:]], num_dropped + 1
            num_tokens = len(self.engine.chat_prompt(template_messages(kept)))
            if num_tokens <= self.context.num_tokens // 2:
                break
        first, last = brief(self.messages[starts[0]]), brief(self.messages[starts[num_dropped - 1]])
        many = f"the {num_dropped} oldest turns, from {first} to {last}"
        what = many if num_dropped > 1 else f"the oldest turn, {first}"
        self._go_on_from(kept)
        more = "; /retry asks the last question" if is_question(kept) else ""
        return f"dropped {what}; about {num_tokens} of {self.context.num_tokens} tokens are used now{more}"

    def save(self, file: str) -> str:
        """Write the conversation to a file: a new one, or one with a conversation."""
        if not file:
            raise TokenmillError("/save needs the name of a file: /save talk.kv")
        path = path_of(file)
        if path.exists() and not holds_conversation(path):
            raise TokenmillError(f"{file} is there already and is no saved conversation: give another name")
        if not len(self.session):  # there is a system message at most, or a question that was refused
            if not self.messages:
                raise TokenmillError("there is nothing to save: the conversation has no message yet")
            self.session.append(self.engine.chat_prompt(template_messages(self.messages)))
        self.session.notes = {"messages": self.messages}
        num_bytes = self.session.save(path)
        return f"{file}: {counted(len(self.session), 'token')}, {num_bytes / 1e6:.1f} MB"

    def open(self, file: str) -> str:
        """Go on with the conversation in a file."""
        if not file:
            raise TokenmillError("/open needs the name of a file that /save wrote: /open talk.kv")
        session = self.engine.open_session(path_of(file))
        try:
            messages = check_messages(session.notes, file)
            for message in messages:
                if "tokens" in message:
                    self.engine.encode(message["tokens"])  # refuses ids that this model has not
        except TokenmillError:
            session.close()
            raise
        self.session.close()
        self.session, self.messages = session, messages
        said = (f"{counted(len(messages), 'message')}, {counted(len(session), 'token')}", self.state, self.warning)
        return "\n".join(line for line in said if line)

    def fork(self, _: str) -> str:
        """Go on with a copy, which shares what is computed."""
        self._kept.append((self.session, list(self.messages)))
        self.session = self.session.fork()
        return "/back returns to this point"

    def back(self, _: str) -> str:
        """Return to the conversation that was forked last."""
        if not self._kept:
            return "there is no /fork to go back to"
        self.session.close()
        self.session, self.messages = self._kept.pop()
        return f"back at {counted(len(self.messages), 'message')}"

    def change_model(self, name: str) -> str:
        """Go on with another model, which reads all of the conversation before its next answer."""
        if not name:
            return f"{self.engine.config.model}; /model NAME goes on with another one"
        if self._open_model is None:
            raise TokenmillError("this conversation cannot change its model: start another with `tokenmill chat NAME`")
        engine, params = self._open_model(name)
        old, self.engine, self.context = self.engine, engine, context_limit_of(engine)
        self.params = replace(params, **self._set)
        self.messages = template_messages(self.messages)
        self._kept = [(engine.session(), template_messages(messages)) for _, messages in self._kept]
        self._earlier = [(template_messages(new), template_messages(old)) for new, old in self._earlier]
        self.session = engine.session()
        old.close()
        return f"{name} goes on, {self.context.num_tokens} tokens of context; {sampling_text(self.params)}"

    def set(self, words: str) -> str:
        """Change a sampling setting for the answers that follow."""
        name, value = read_setting(words)
        self.params = replace(self.params, **{name: value})
        self._set[name] = value
        return f"{name} {getattr(self.params, name)}"

    def stats(self, _: str) -> str:
        """Show tokens, cache and settings in one line."""
        engine, spec = self.engine, self.engine.core.loaded.pool.spec
        computed = self.session.num_cached  # 0 after Ctrl-C in a step: how many rows are found again shows then
        parts = [
            counted(len(self.messages), "message")
            + f", {counted(len(self.session), 'token')} of {self.context.num_tokens}",
            *([f"{computed} computed"] if computed or not len(self.session) else []),
            f"{engine.core.num_used_blocks} of {spec.num_blocks} blocks of {spec.block_size} tokens in use",
            f"{engine.program_name} {engine.config.dtype}",
            sampling_text(self.params),
        ]
        return " · ".join(parts)
