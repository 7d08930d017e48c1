"""`generate --show-draft`: the text as it comes, with the tokens in colour that were drafted and accepted."""

import os
import sys
from collections.abc import Iterator, Sequence

from tokenmill.cli.process.display import for_stdout, write_text
from tokenmill.engine.engine import Engine
from tokenmill.engine.loop import Observer
from tokenmill.engine.outputs import Completion, Piece
from tokenmill.schedule.sequence import Plan
from tokenmill.schedule.sequence import Sequence as Text
from tokenmill.text.detokenize import Detokenizer

COLOUR, UNDERLINED = 32, 4  # of a terminal; 32 is green


class DraftMarks(Observer):
    """An observer of one text. of: for each token that the text got, whether it was an accepted draft."""

    def __init__(self) -> None:
        self.of: list[bool] = []
        self._text: Text | None = None
        self._drafts: Sequence[int] = ()
        self._before = 0

    def phase(self, name: str, plan: Plan | None) -> None:
        if name == "plan" and plan is not None and plan.work:
            work = plan.work[0]
            self._text, self._drafts, self._before = work.sequence, work.drafts, len(work.sequence.tokens)
        if name == "deliver" and self._text is not None:
            new = self._text.tokens[self._before :]
            right = [draft == token for draft, token in zip(self._drafts, new, strict=False)]
            num_accepted = (*right, False).index(False)
            self.of += [True] * num_accepted + [False] * (len(new) - num_accepted)
            self._drafts, self._before = (), len(self._text.tokens)


def _marked(text: str) -> str:
    """Colour the text; underline it where NO_COLOR is set (no-color.org); leave it where stdout is no terminal."""
    if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{UNDERLINED if os.environ.get('NO_COLOR') else COLOUR}m{text}\x1b[0m"


def colour_drafts(engine: Engine, prompt: Sequence[int], pieces: Iterator[Piece], marks: DraftMarks) -> Completion:
    """Print pieces as they come, token by token, and return the completion."""
    assert engine.tokenizer is not None, "checked with the options"
    detokenizer, num_tokens, num_shown = Detokenizer(engine.tokenizer, prompt=prompt), 0, 0
    done = None
    for piece in pieces:
        length = num_shown + len(piece.text)
        for token in piece.tokens:
            is_draft = num_tokens < len(marks.of) and marks.of[num_tokens]
            text = detokenizer.push([token])[: length - num_shown]
            shown = for_stdout(text)
            sys.stdout.write(_marked(shown) if is_draft else shown)
            sys.stdout.flush()
            num_tokens, num_shown = num_tokens + 1, num_shown + len(text)
        done = piece.done
    write_text(f"{done.text[num_shown:] if done else ''}\n")
    assert done is not None, "the last piece carries the completion"
    return done
