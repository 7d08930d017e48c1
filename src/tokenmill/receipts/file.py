"""Files with receipts: one in JSON, one in each line, a list of them, or answers of a server that have some."""

import json
import re
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from tokenmill.errors import ConfigError, ReceiptError
from tokenmill.memory.atomic_file import writing
from tokenmill.receipts.answer import NO_RECEIPT, ShownText, choices_of, compare
from tokenmill.receipts.read import MAX_SIZE, checked_receipt, parsed
from tokenmill.receipts.receipt import Receipt
from tokenmill.receipts.stream import answer_of, is_stream
from tokenmill.units import counted
from tokenmill.value_reader import brief


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
    """The receipts of a file in their order. ReceiptError if it cannot be read or holds none; what is wrong with one of
    several is in its entry.
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
    """The lines of a file that are not blank, with their numbers; all of it as one if it was written indented."""
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
    """Whether a text that is no JSON has a line that begins an object of its own, as no indented object has."""
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
    """The entry of a receipt, or those of the choices of an answer."""
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
