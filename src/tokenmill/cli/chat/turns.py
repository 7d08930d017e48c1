"""The turns of a conversation: its messages, the session that holds them, and the answers of the model.

Every turn renders all messages with the model's own template; the session keeps what the new text has in common with
the old, and computes the rest.
"""

from collections.abc import Generator
from contextlib import closing
from dataclasses import asdict
from itertools import takewhile
from typing import TYPE_CHECKING, cast

from tokenmill.cli.chat.context_limit import context_limit_of
from tokenmill.cli.chat.messages import Message, is_question, template_messages, turns
from tokenmill.cli.report import cut_by
from tokenmill.errors import TokenmillError
from tokenmill.settings.sampling_params import SamplingParams

if TYPE_CHECKING:
    from tokenmill.engine.engine import Engine
    from tokenmill.engine.outputs import Completion, Piece

STOPPED = "stopped by Ctrl-C"
UNFINISHED = "\ufffd"  # what a decoder shows for bytes that are no character yet
MAX_HELD = 32  # tokens of a stopped answer that were held back at its end


class Turns:
    """The turns of one conversation. messages: see cli/chat/messages.py. pending: whether the model was asked to
    answer, by a question, /retry or /continue. figures: one line about the last answer. context: how many tokens the
    conversation may have.
    """

    def __init__(self, engine: "Engine", params: SamplingParams, system: str | None = None) -> None:
        self.engine, self.params, self.context = engine, params, context_limit_of(engine)
        self.session = engine.session()
        self.messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self.pending = False
        self.figures = ""

    def ask(self, text: str) -> None:
        """Add a question, in the place of one that has no answer."""
        if is_question(self.messages):
            self.messages.pop()
        self.messages.append({"role": "user", "content": text})
        self.pending = True

    def answer(self) -> Generator[str, None, None]:
        """Answer the last question, or give the rest of an answer that was stopped, as it comes.

        If it is closed early, what was shown is the answer, and `go_on` asks for the rest of it.
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
        """Make the message of an answer: the part that was there before, if any, and what is new.

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
        """Count the tokens of a conversation that keeps its last turn alone, and `part`; None if it has no other
        turn.
        """
        starts = turns(messages)
        if len(starts) < 2:
            return None
        kept = [*messages[: starts[0]], *messages[starts[-1] :]]
        return len(self.engine.chat_prompt(template_messages(kept))) + (len(part["tokens"]) if part else 0)

    def _forget(self) -> None:
        """Remove from the session what the messages do not hold any more."""
        kept = self.engine.chat_prompt(template_messages(self.messages)) if turns(self.messages) else []
        pairs = zip(self.session.tokens, kept, strict=False)
        self.session.rewind(sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)))
