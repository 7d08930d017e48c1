"""A conversation: its messages, the session that holds them, and what the commands of `chat` do with both.

Every turn renders all messages with the model's own template; the session keeps what the new text has in common with
the old, and computes the rest.
"""

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import asdict, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any, cast

from tokenmill.cli.chat.context_limit import context_limit_of
from tokenmill.cli.chat.help import chat_help
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
from tokenmill.cli.chat.settings import meant, read_setting
from tokenmill.cli.report import cut_by
from tokenmill.errors import TokenmillError
from tokenmill.settings.sampling_params import SamplingParams
from tokenmill.units import counted
from tokenmill.value_reader import path_of

if TYPE_CHECKING:
    from tokenmill.engine.engine import Engine
    from tokenmill.engine.outputs import Completion, Piece

LEAVE = ("bye", "quit", "exit")
STOPPED = "stopped by Ctrl-C"
UNFINISHED = "\ufffd"  # what a decoder shows for bytes that are no character yet
MAX_HELD = 32  # tokens of a stopped answer that were held back at its end


class Conversation:
    """messages: see cli/chat/messages.py. pending: whether the model was asked to answer, by a question, /retry or
    /continue. figures: of the last answer, one line. context: how many tokens it may have."""

    def __init__(self, engine: "Engine", params: SamplingParams, system: str | None = None) -> None:
        self.engine, self.params, self.context = engine, params, context_limit_of(engine)
        self.session = engine.session()
        self.messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self.pending = False
        self.figures = ""
        self._kept: list[tuple[Any, list[Message]]] = []  # what /back returns to
        self.commands: dict[str, Callable[[str], str]] = {
            "retry": self.retry,
            "continue": self.go_on,
            "undo": self.undo,
            "clear": self.clear,
            "compact": self.compact,
            "system": self.begin,
            "save": self.save,
            "open": self.open,
            "fork": self.fork,
            "back": self.back,
            "set": self.set,
            "stats": self.stats,
            "help": lambda _: chat_help(),
        }

    # ---- questions and answers

    def ask(self, text: str) -> None:
        """Add a question, in the place of one that has no answer."""
        if is_question(self.messages):
            self.messages.pop()
        self.messages.append({"role": "user", "content": text})
        self.pending = True

    def answer(self) -> Generator[str, None, None]:
        """The answer to the last question, or the rest of one that was stopped, as it comes.

        Closed early, what was shown is the answer, and `go_on` asks for the rest of it.
        """
        from tokenmill.cli.prompt_progress import Known

        self.pending = False
        question, part = (
            (self.messages, None) if is_question(self.messages) else (self.messages[:-1], self.messages[-1])
        )
        prompt = self.engine.chat_prompt(template_messages(question)) + (part["tokens"] if part else [])
        compacted = self._count_compacted(question, part) if len(prompt) >= self.context.num_tokens else None
        params = self.context.for_answer(self.params, len(prompt), compacted, is_rest=part is not None)
        settings = asdict(params)
        if part and params.seed is None:
            del settings["seed"]  # the session's own: the whole answer has one seed
        self.session.revise(prompt)
        known, why = Known(), STOPPED
        tokens: list[int] = []
        text = ""
        try:
            stream = cast("Generator[Piece, None, None]", self.session.stream(**settings))
            with self.engine.core.observed_by(known), closing(stream) as pieces:
                for piece in pieces:
                    tokens += piece.tokens
                    text += piece.text
                    if piece.done is not None:
                        tokens = list(piece.done.tokens)
                        why = cut_by(piece.done, self.params, self.engine.config)
                        self.figures = self._figures(piece.done, known.num_tokens or 0, why)
                    yield piece.text
        except TokenmillError:
            why = "stopped by an error"
            raise
        finally:
            if tokens or not why:
                self.messages = [*question, self._as_answer(prompt, part, tokens, text, why)]

    def _as_answer(self, prompt: list[int], part: Message | None, tokens: list[int], text: str, why: str) -> Message:
        """The message of an answer: the part that was there before, if any, and what is new.

        If it was stopped, a character or a stop text at its end that is not complete is left out: it comes again with
        the rest.
        """
        before = part["content"] if part else ""
        if not why:
            return {"role": "assistant", "content": before + text}
        tokenizer = self.engine.tokenizer
        assert tokenizer is not None, "without one there is no template"
        continues, whole = tokenizer.is_text(prompt), text.rstrip(UNFINISHED)
        for length in range(len(tokens), max(len(tokens) - MAX_HELD, 0), -1):
            kept = tokenizer.decode(tokens[:length], continues=continues)
            if whole.startswith(kept):
                tokens, text = tokens[:length], kept
                break
        ids = [*(part["tokens"] if part else []), *tokens]
        return {"role": "assistant", "content": before + text, "tokens": ids, "cut": why}

    def _figures(self, done: "Completion", known: int, why: str) -> str:
        timing = done.timing
        more = "" if self.context.is_full(len(self.session)) else "; /continue goes on"
        return " · ".join(
            [
                f"{done.num_prompt_tokens - known} + {len(done.tokens)} tokens, {known} known",
                f"first token {timing.ttft_s:.2f} s",
                *([f"{timing.tokens_per_s:.1f} tokens/s"] if timing.tokens_per_s else []),  # one token has none
                f"{len(self.session)} of {self.context.num_tokens} tokens used",
                *([why + more] if why else []),
            ]
        )

    @property
    def state(self) -> str:
        """The remark that the last question or answer is not complete, and what to type then; empty if it is."""
        if is_question(self.messages):
            return "there is no answer: /retry asks again, /undo forgets the question"
        why = self.messages[-1].get("cut") if self.messages else None
        return f"{why}: /continue goes on, /retry begins again" if why else ""

    @property
    def warning(self) -> str:
        """The remark that the end of the context is near, and what to type then; empty if it is not."""
        return self.context.warning(len(self.session), len(turns(self.messages)), self._count_compacted(self.messages))

    def _count_compacted(self, messages: list[Message], part: Message | None = None) -> int | None:
        """Tokens of a conversation of which only the last turn is kept; None if it has no more than that.

        part: of the answer that is to go on.
        """
        starts = turns(messages)
        if len(starts) < 2:
            return None
        kept = [*messages[: starts[0]], *messages[starts[-1] :]]
        return len(self.engine.chat_prompt(template_messages(kept))) + (len(part["tokens"]) if part else 0)

    # ---- commands: each takes what was typed after its name, and gives what there is to say

    def do(self, name: str, argument: str = "") -> str:
        """Carry out a command. TokenmillError for one that there is not."""
        self.pending = False
        command = self.commands.get(name or "help", self.commands["help"] if name == "?" else None)
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

    def undo(self, _: str) -> str:
        """Forget the last question and its answer."""
        if is_answer(self.messages):
            self.messages.pop()
        if not is_question(self.messages):
            return "there is nothing to undo"
        forgotten = self.messages.pop()
        self._forget()
        return f"forgot: {brief(forgotten)}"

    def _forget(self) -> None:
        """Remove from the session what the messages do not hold any more."""
        kept = self.engine.chat_prompt(template_messages(self.messages)) if turns(self.messages) else []
        pairs = zip(self.session.tokens, kept, strict=False)
        self.session.rewind(sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)))

    def clear(self, _: str) -> str:
        """Forget everything but the system message."""
        self.messages = [message for message in self.messages[:1] if message["role"] == "system"]
        self._forget()
        return "a new conversation" + (", with the system message" if self.messages else "")

    def begin(self, text: str) -> str:
        """Forget everything, and take a new system message."""
        self.messages = [{"role": "system", "content": text}] if text else []
        self._forget()
        return "a new conversation" + ("" if text else ", without a system message")

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
        self.messages = kept
        self._forget()
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

    def set(self, words: str) -> str:
        """Change a sampling setting for the answers that follow."""
        name, value = read_setting(words)
        self.params = replace(self.params, **{name: value})
        return f"{name} {getattr(self.params, name)}"

    def stats(self, _: str) -> str:
        """Tokens, cache and settings in one line."""
        plain = asdict(SamplingParams())
        changed = {name: value for name, value in asdict(self.params).items() if value != plain[name]}
        engine, spec = self.engine, self.engine.core.loaded.pool.spec
        computed = self.session.num_cached  # 0 after Ctrl-C in a step: how many rows are found again shows then
        parts = [
            counted(len(self.messages), "message")
            + f", {counted(len(self.session), 'token')} of {self.context.num_tokens}",
            *([f"{computed} computed"] if computed or not len(self.session) else []),
            f"{engine.core.num_used_blocks} of {spec.num_blocks} blocks of {spec.block_size} tokens in use",
            f"{engine.program_name} {engine.config.dtype}",
            ", ".join(f"{name} {value}" for name, value in changed.items()) or "greedy",
        ]
        return " · ".join(parts)
