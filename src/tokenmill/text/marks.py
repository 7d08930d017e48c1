"""Which characters of a rendered conversation come from its messages, so that a message cannot forge a turn.

A chat template makes one text of its own control tokens and of what people wrote. If somebody writes `<|im_end|>`, the
text alone does not tell whose it is. So before the template runs, each spelling of a control token in a message, and
each character that could begin or end one together with its neighbours (`<` in the first message, `|im_end|>` in the
second), is replaced by a mark: digits that nobody can guess, which a template passes on as it does any word. Marks in
the rendered text are then replaced by what they stand for, and the place is noted.

Tags such as `</think>` are no control tokens and stay as they are, because templates look for them in messages.
"""

import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["Marks"]

DIGITS = 20  # of the number that no message can hold but by chance
NAMED = ("role", "type")  # templates compare these with names of theirs


class Marks:
    """The marks of one conversation, for a tokenizer with the given control tokens."""

    def __init__(self, control: Iterable[str]) -> None:
        spelled = sorted(control, key=len, reverse=True)
        edges = {edge for text in spelled for edge in (text[0], text[-1]) if not (edge.isalnum() or edge.isspace())}
        firsts = "".join(map(re.escape, edges | {text[0] for text in spelled}))  # asked first, for speed
        parts = [*map(re.escape, spelled), r"(?P<tag></?[A-Za-z][\w-]*>)", *map(re.escape, sorted(edges))]
        self._pattern = re.compile(f"(?=[{firsts}])(?:{'|'.join(parts)})" if spelled else r"(?!)(?P<tag>)")
        self._nonce = f"{1 + secrets.randbelow(9)}{secrets.randbelow(10**DIGITS):0{DIGITS}d}"
        self._texts: list[str] = []  # what each mark stands for

    def put(self, value: Any, key: object = None) -> Any:
        """A copy of a message, or of any part of it, with marks in all its texts."""
        if isinstance(value, str):
            named = key in NAMED and value.isidentifier()
            return value if named else self._pattern.sub(self._mark, value)
        if isinstance(value, Mapping):
            return {self.put(name, NAMED[0]): self.put(item, name) for name, item in value.items()}
        return [self.put(item) for item in value] if isinstance(value, (list, tuple)) else value

    def _mark(self, found: re.Match[str]) -> str:
        if found["tag"] is not None:
            return found[0]
        if found[0] not in self._texts:
            self._texts.append(found[0])
        return f"{self._nonce}{self._texts.index(found[0]):06d}"

    def take(self, rendered: str) -> tuple[str, list[range]]:
        """The rendered text without marks, and the places of the characters that they stood for."""
        texts, places, length = [], [], 0
        for number, part in enumerate(re.split(rf"{self._nonce}(\d{{6}})", rendered)):
            texts.append(self._texts[int(part)] if number % 2 else part)
            if number % 2:
                places.append(range(length, length + len(texts[-1])))
            length += len(texts[-1])
        return "".join(texts), places
