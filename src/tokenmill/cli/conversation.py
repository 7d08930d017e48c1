"""A conversation: its messages, the session that holds them, and the commands that change both.

Every turn renders all messages with the model's own template; the session keeps what the new text has in common with
the old, and computes the rest.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenmill.config import SamplingParams, as_keywords
from tokenmill.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from tokenmill.engine.engine import Engine
    from tokenmill.engine.outputs import Completion

__all__ = ["HELP", "Conversation"]

Messages = list[dict[str, str]]

HELP = """Type a message, or one of these:
/save FILE      keep the conversation, its computed rows too      /open FILE   go on with one
/undo           forget the last question and answer               /retry       answer it again, with a new seed
/fork           try something; /back returns to this point        /back        drop what came since /fork
/system TEXT    change the system message, and start anew         /set NAME VALUE   temperature, top_p, seed, …
/stats          tokens, cache, settings                           /help        this text"""


class Conversation:
    """pending: whether the last message waits for an answer. figures: of the last answer, one line."""

    def __init__(self, engine: "Engine", params: SamplingParams, system: str | None = None) -> None:
        self.engine, self.params = engine, params
        self.session = engine.session()
        self.messages: Messages = [] if system is None else [{"role": "system", "content": system}]
        self._kept: list[tuple[Any, Messages]] = []  # what /back returns to
        self.figures = ""

    @property
    def pending(self) -> bool:
        """See the class."""
        return bool(self.messages) and self.messages[-1]["role"] == "user"

    def ask(self, text: str) -> None:
        """Add a question, in the place of one that has no answer."""
        if self.pending:
            self.messages.pop()
        self.messages.append({"role": "user", "content": text})

    def answer(self) -> Iterator[str]:
        """The answer to the last question as it comes; it belongs to the conversation once it is complete."""
        self.session.revise(self.engine.chat_prompt(self.messages))
        cached = self.session.num_cached
        for piece in self.session.stream(**as_keywords(self.params)):
            yield piece.text
            if piece.done is not None:
                self.messages.append({"role": "assistant", "content": piece.done.text})
                self.figures = self._figures(piece.done, cached)

    def _figures(self, done: "Completion", cached: int) -> str:
        timing, room = done.timing, self.engine.config.max_length
        return (
            f"{done.num_prompt_tokens - cached} + {len(done.tokens)} tokens, {cached} known · "
            f"first token {timing.ttft_s:.2f} s · {timing.tokens_per_s:.1f} tokens/s · "
            f"{len(self.session)} of {room} tokens used"
        )

    # ---- commands

    def do(self, line: str) -> str:
        """Carry out a command; what there is to say about it. ConfigError for one that there is not."""
        name, _, argument = line[1:].partition(" ")
        commands: dict[str, Callable[[str], str]] = {
            "save": self._save,
            "open": self._open,
            "undo": self._undo,
            "retry": self._retry,
            "fork": self._fork,
            "back": self._back,
            "system": self._system,
            "set": self._set,
            "stats": self._stats,
            "help": lambda _: HELP,
        }
        if name not in commands:
            raise ConfigError("command", f"/{name}", f"one of {', '.join(f'/{known}' for known in commands)}")
        return commands[name](argument.strip())

    def _save(self, file: str) -> str:
        if not file:
            raise ConfigError("/save", file, "followed by the name of a file")
        self.session.notes = {"messages": self.messages}
        num_bytes = self.session.save(Path(file).expanduser())
        return f"{file}: {len(self.session)} tokens, {num_bytes / 1e6:.1f} MB"

    def _open(self, file: str) -> str:
        session = self.engine.open(Path(file).expanduser())
        messages = session.notes.get("messages")
        if not isinstance(messages, list):
            session.close()
            raise RequestError(f"{file} holds no conversation: `tokenmill decode` goes on with plain text")
        self.session.close()
        self.session, self.messages = session, messages
        return f"{len(messages)} messages, {len(session)} tokens"

    def _undo(self, _: str) -> str:
        if self.messages and self.messages[-1]["role"] == "assistant":
            self.messages.pop()
        if not self.pending:
            return "there is nothing to undo"
        return f"forgot: {self.messages.pop()['content']}"

    def _retry(self, _: str) -> str:
        if self.messages and self.messages[-1]["role"] == "assistant":
            self.messages.pop()
        if not self.pending:
            return "there is nothing to ask again"
        if self.params.seed is not None:
            self.params = replace(self.params, seed=self.params.seed + 1)
        return "at temperature 0 the answer is the same; /set temperature 0.8" if not self.params.temperature else ""

    def _fork(self, _: str) -> str:
        self._kept.append((self.session, list(self.messages)))
        self.session = self.session.fork()
        return "/back returns to this point"

    def _back(self, _: str) -> str:
        if not self._kept:
            return "there is no /fork to go back to"
        self.session.close()
        self.session, self.messages = self._kept.pop()
        return f"back at {len(self.messages)} messages"

    def _system(self, text: str) -> str:
        self.messages = [{"role": "system", "content": text}] if text else []
        return "a new conversation"

    def _set(self, words: str) -> str:
        name, _, value = words.partition(" ")
        known = {field.name for field in fields(SamplingParams)} - {"n", "logit_bias", "logprobs", "stop_token_ids"}
        if name not in known:
            raise ConfigError("/set", name, f"one of {', '.join(sorted(known))}")
        self.params = replace(self.params, **{name: _parsed(value.strip())})
        return f"{name} {getattr(self.params, name)}"

    def _stats(self, _: str) -> str:
        changed = {k: v for k, v in asdict(self.params).items() if v != getattr(SamplingParams(), k)}
        engine, blocks = self.engine, self.engine.core.cache_use
        parts = [
            f"{len(self.messages)} messages, {len(self.session)} tokens of {engine.config.max_length}",
            f"{self.session.num_cached} computed",
            f"{blocks.used_blocks} of {blocks.num_blocks} blocks of {blocks.block_size} tokens in use",
            f"{engine.program_name} {engine.config.dtype}",
            ", ".join(f"{name} {value}" for name, value in changed.items()) or "greedy",
        ]
        return " · ".join(parts)


def _parsed(text: str) -> Any:
    """A number, a truth value or a text, as it was typed."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False, "none": None}.get(text.lower(), text)
