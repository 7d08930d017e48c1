"""Files with receipts: one in JSON, one in each line, a list of them, or answers of a server that have some, also
answers that were saved as they were streamed; and whether what an answer shows is what its receipt says.
"""

import json
import re
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from tokenmill.errors import ConfigError, ReceiptError
from tokenmill.memory.atomic_file import writing
from tokenmill.receipts.read import MAX_SIZE, checked_receipt, parsed
from tokenmill.receipts.receipt import Receipt
from tokenmill.receipts.verification import Finding
from tokenmill.units import counted
from tokenmill.value_reader import brief

NO_RECEIPT = 'this choice of an answer has no receipt (a request asks for it with "receipt": true)'
_LINE = re.compile(rb"(data|event|id|retry)?:")
_END = b"[DONE]"
ELSEWHERE = ("reasoning", "reasoning_content", "tool_calls")
"""Parts of a message whose text is not literally what the model wrote."""


class ShownText(NamedTuple):
    """The outcome of comparing. finding: the shown text is another one. note: why it was not compared."""

    finding: Finding | None = None
    note: str | None = None


class ReceiptEntry(NamedTuple):
    """One receipt of a file, or what is wrong with it. where: the file and the line. shown: by the answer it is in."""

    where: str
    receipt: Receipt | None
    error: str | None = None
    shown: ShownText = ShownText()


def write_receipts(path: Path, receipts: Iterable[Receipt], setting: str) -> None:
    """Write a receipt in each line of a file, which appears when it is whole."""
    try:
        with writing(path) as out:
            for receipt in receipts:
                out.write(f"{receipt}\n".encode())
    except OSError as error:
        raise ConfigError(setting, str(path), f"a file that can be written ({error.strerror})") from None


def read_receipts(path: Path) -> Iterator[ReceiptEntry]:
    """Yield the receipts of a file in their order. ReceiptError if it cannot be read or holds none; what is wrong with
    one of several is in its entry.
    """
    is_empty = True
    try:
        if path.exists() and not path.is_file():
            raise ReceiptError(f"{path} is no file")
        with path.open("rb") as opened:
            for number, text in _texts(opened, path):
                for entry in _entries(text, f"{path}:{number}"):
                    is_empty = False
                    yield entry
    except OSError as error:
        raise ReceiptError(f"{path} cannot be read: {error.strerror}") from None
    if is_empty:
        raise ReceiptError(f"{path} is empty: a receipt is written by generate --receipt")


def _texts(opened: BinaryIO, path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file that are not blank, with their numbers; all of it as one if it was written indented."""
    lines = _lines(opened, path)
    first = next(lines, None)
    if first is None:
        return
    number, text = first
    if not _is_json(text):
        start = opened.tell()
        rest = opened.read(MAX_SIZE + 1 - min(len(text), MAX_SIZE))
        if is_stream(text) or _is_json(text + rest) or not _has_lines(rest):
            yield number, text + rest
            return
        opened.seek(start)
        lines = _lines(opened, path, number + 1)
    yield number, text
    yield from lines


def _lines(opened: BinaryIO, path: Path, start: int = 1) -> Iterator[tuple[int, bytes]]:
    for number in count(start):
        line = opened.readline(MAX_SIZE + 1)
        if not line:
            return
        if len(line) > MAX_SIZE:
            raise ReceiptError(f"{path} has a line of more than {MAX_SIZE:,} characters, which is no receipt")
        if line.strip():
            yield number, line


def _has_lines(text: bytes) -> bool:
    """Tell whether a text that is no JSON has a line that begins an object of its own, as no indented object has."""
    return re.search(rb"^\{[^\r\n]", text, re.MULTILINE) is not None


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _entries(text: bytes, where: str) -> Iterator[ReceiptEntry]:
    try:
        document = answer_of(text, where) if is_stream(text) else parsed(text, where)
    except ReceiptError as error:
        yield ReceiptEntry(where, None, str(error))
        return
    if not isinstance(document, list):
        yield from _of_one(document, where)
        return
    strange = list[int]()
    for number, each in enumerate(document, 1):
        if isinstance(each, dict):
            yield from _of_one(each, where if len(document) == 1 else f"{where}, number {number}")
        else:
            strange.append(number)
    if strange:
        told = f"the first is number {strange[0]:,}: {brief(document[strange[0] - 1])}"
        yield ReceiptEntry(where, None, f"{where} has {counted(len(strange), 'value')} that must be an object; {told}")


def _of_one(document: Any, where: str) -> Iterator[ReceiptEntry]:
    """Yield the entry of a receipt, or the entries of the choices of an answer."""
    choices = choices_of(document)
    if choices is None:
        yield _entry(document, where)
        return
    if not choices:
        yield ReceiptEntry(where, None, f"{where} is an answer without choices")
    for number, choice in enumerate(choices, 1):
        place = where if len(choices) == 1 else f"{where}, choice {number}"
        if not isinstance(choice, dict) or choice.get("receipt") is None:
            yield ReceiptEntry(place, None, f"{place}: {NO_RECEIPT}")
            continue
        entry = _entry(choice["receipt"], place)
        yield entry if entry.receipt is None else entry._replace(shown=compare(choice, entry.receipt))


def _entry(document: Any, where: str) -> ReceiptEntry:
    try:
        return ReceiptEntry(where, checked_receipt(document, where))
    except ReceiptError as error:
        return ReceiptEntry(where, None, str(error))


def choices_of(document: Any) -> list[Any] | None:
    """Return the choices of an answer, or of a line of a batch's answers; None for any other document."""
    if not isinstance(document, dict) or "receipt" in document:
        return None
    response = document.get("response")
    body = response.get("body") if isinstance(response, dict) else document
    found = body.get("choices") if isinstance(body, dict) else None
    return found if isinstance(found, list) else None


def compare(choice: dict[str, Any], receipt: Receipt) -> ShownText:
    """Compare what a choice shows with its receipt's text, where that can be seen without the request."""
    message = choice.get("message")
    if not isinstance(message, dict):
        shown, others = choice.get("text"), []
    else:
        shown, others = message.get("content"), [name for name in ELSEWHERE if message.get(name)]
    if others:
        return _not_compared(f"its parts stand in {' and '.join(others)}, too")
    if not isinstance(shown, str):
        return _not_compared("there is none where an answer has it")
    if shown == receipt.text:
        return ShownText()
    if message is None and receipt.text and shown.endswith(receipt.text):
        return _not_compared("something stands before the receipt's text, as the prompt does with echo")
    if message is not None and shown.strip() in receipt.text:
        return _not_compared("it is a part of the receipt's text, as where the marks of thinking are left out")
    claimed, found = brief(shown), brief(receipt.text)
    message = f"the answer shows {claimed}, and the receipt is of {found}"
    return ShownText(Finding("shown", message, None, shown, receipt.text))


def _not_compared(why: str) -> ShownText:
    return ShownText(None, f"the shown text was not compared with the receipt: {why}")


def is_stream(text: bytes) -> bool:
    """Tell whether a text begins as a stream of events does."""
    return _LINE.match(text) is not None


def answer_of(text: bytes, where: str) -> dict[str, Any]:
    """Put the choices of all chunks of a saved stream together. ReceiptError where a chunk is damaged."""
    choices: dict[tuple[str, ...], _Pieces] = {}
    for line in text.splitlines():
        data = line.removeprefix(b"data:").strip()
        if not line.startswith(b"data:") or data == _END:
            continue
        chunk = parsed(data, where)
        pieces = chunk.get("choices") if isinstance(chunk, dict) else None
        for piece in pieces if isinstance(pieces, list) else []:
            if isinstance(piece, dict):
                names = (chunk.get("id"), piece.get("index"))
                place = tuple(str(value) for value in names if type(value) in (str, int))
                choices.setdefault(place, _Pieces()).add(piece)
    return {"choices": [each.choice() for each in choices.values()]}


class _Pieces:
    """The pieces of one choice so far."""

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
        """Return the choice as a whole answer has it."""
        text = "".join(self._texts)
        shown = {"text": text} if self._message is None else {"message": {**self._message, "content": text}}
        return {**shown, "receipt": self._receipt}
