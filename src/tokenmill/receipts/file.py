"""Files with receipts: one in JSON, one in each line, a list of them, or answers of a server that have some."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tokenmill.errors import ConfigError, ReceiptError
from tokenmill.memory.atomic_file import writing
from tokenmill.receipts.read import MAX_SIZE, checked_receipt, parsed
from tokenmill.receipts.receipt import Receipt


class Entry(NamedTuple):
    """One receipt of a file, or what is wrong with it. where: the file and the line."""

    where: str
    receipt: Receipt | None
    error: str | None = None


def write_receipts(path: Path, receipts: Iterable[Receipt], setting: str) -> None:
    """Write a receipt in each line of a file, which appears when it is whole."""
    try:
        with writing(path) as out:
            for receipt in receipts:
                out.write(f"{receipt}\n".encode())
    except OSError as error:
        raise ConfigError(setting, str(path), f"a file that can be written ({error.strerror})") from None


def read_receipts(path: Path) -> Iterator[Entry]:
    """The receipts of a file in their order. ReceiptError if it cannot be read or holds none; what is wrong with one of
    several lines is in its entry.
    """
    is_empty = True
    try:
        if path.exists() and not path.is_file():
            raise ReceiptError(f"{path} is no file")
        with path.open("rb") as opened:
            for number, line in enumerate(_lines(opened, path), 1):
                for entry in _entries(line, f"{path}:{number}"):
                    is_empty = False
                    yield entry
    except OSError as error:
        raise ReceiptError(f"{path} cannot be read: {error.strerror}") from None
    if is_empty:
        raise ReceiptError(f"{path} is empty: a receipt is written by generate --receipt")


def _lines(opened: Any, path: Path) -> Iterator[bytes]:
    """The lines of a file; all of it as one if its first line alone is no JSON, as where it was written indented."""
    first = opened.readline(MAX_SIZE + 1)
    if first.strip() in (b"{", b"[") or (first.strip() and not _is_json(first)):
        yield first + opened.read(MAX_SIZE + 1 - min(len(first), MAX_SIZE))
        return
    while first:
        if len(first) > MAX_SIZE:
            raise ReceiptError(f"{path} has a line of more than {MAX_SIZE:,} characters, which is no receipt")
        if first.strip():
            yield first
        first = opened.readline(MAX_SIZE + 1)


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _entries(text: bytes, where: str) -> Iterator[Entry]:
    try:
        found = _receipts_in(parsed(text, where))
    except ReceiptError as error:
        yield Entry(where, None, str(error))
        return
    for number, each in enumerate(found, 1):
        place = where if len(found) == 1 else f"{where}, number {number}"
        try:
            yield Entry(place, checked_receipt(each, place))
        except ReceiptError as error:
            yield Entry(place, None, str(error))


def _receipts_in(document: Any) -> list[Any]:
    """A receipt, those of a list, or those of the choices of a server's answer."""
    if isinstance(document, list):
        return document
    if isinstance(document, dict) and isinstance(choices := document.get("choices"), list):
        return [each["receipt"] for each in choices if isinstance(each, dict) and each.get("receipt") is not None]
    return [document]
