"""Answers of a server that were saved as they were streamed: their chunks become one answer with the whole texts."""

import re
from typing import Any

from tokenmill.receipts.read import parsed

_LINE = re.compile(rb"(data|event|id|retry)?:")
_END = b"[DONE]"


def is_stream(text: bytes) -> bool:
    """Whether a text begins as a stream of events does."""
    return _LINE.match(text) is not None


def answer_of(text: bytes, where: str) -> dict[str, Any]:
    """The choices of all chunks, put together. ReceiptError where one is damaged."""
    choices: dict[tuple[str, ...], _Pieces] = {}
    for line in text.splitlines():
        data = line.removeprefix(b"data:").strip()
        if not line.startswith(b"data:") or data == _END:
            continue
        chunk = parsed(data, where)
        pieces = chunk.get("choices") if isinstance(chunk, dict) else None
        for piece in pieces if isinstance(pieces, list) else []:
            if isinstance(piece, dict):
                place = tuple(
                    str(value) for value in (chunk.get("id"), piece.get("index")) if type(value) in (str, int)
                )
                choices.setdefault(place, _Pieces()).add(piece)
    return {"choices": [each.choice() for each in choices.values()]}


class _Pieces:
    """What came of one choice so far."""

    def __init__(self) -> None:
        self._texts = list[str]()
        self._message: dict[str, Any] | None = None
        self._receipt: Any = None

    def add(self, piece: dict[str, Any]) -> None:
        """Add a piece."""
        if piece.get("receipt") is not None:
            self._receipt = piece["receipt"]
        text = piece.get("text")
        if isinstance(delta := piece.get("delta"), dict):
            text = delta.get("content")
            self._message = {} if self._message is None else self._message
            self._message.update({name: value for name, value in delta.items() if value})
        if isinstance(text, str):
            self._texts.append(text)

    def choice(self) -> dict[str, Any]:
        """The choice as a whole answer has it."""
        text = "".join(self._texts)
        shown = {"text": text} if self._message is None else {"message": {**self._message, "content": text}}
        return {**shown, "receipt": self._receipt}
