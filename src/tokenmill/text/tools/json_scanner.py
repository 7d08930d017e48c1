"""An incremental JSON scanner: it finds the end of a value, or the first character that is no JSON."""

import re
from typing import Protocol

from tokenmill.text.tools.source import Reading, Source

_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_SPACE = re.compile(r"[ \t\r\n]*")
_WORD = re.compile(r"[-+.0-9A-Za-z]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_BEGUN = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*|(?:\.[0-9]+)?[eE][-+]?[0-9]*)?)?")  # of a number
_NAMES = ("true", "false", "null")
_HEX = frozenset("0123456789abcdefABCDEF")
MAX_DEPTH = 100_000  # of lists and objects: no grammar of a schema that refers to itself has a limit


class JsonScanner:
    """Reads one value. is_done: it was read to its end. is_wrong: there is no value."""

    def __init__(self) -> None:
        self.is_done = self.is_wrong = False
        self._open: list[str] = []  # the brackets that are open
        self._expects = "value"
        self._is_key = False  # the string that is read
        self._word = ""  # of a number or name that is not at its end
        self._hex = 0  # digits of an escape that are missing

    def scan(self, text: str, at: int) -> int:
        """Read on; the place after what belongs to the value. A number alone ends with the text after it."""
        while at < len(text) and not (self.is_done or self.is_wrong):
            if self._expects == "string":
                at = self._in_string(text, at)
            elif self._expects == "word":
                at = self._in_word(text, at)
            elif (after := _SPACE.match(text, at).end()) > at:  # type: ignore[union-attr]  # it matches nothing too
                at = after
            else:
                at = self._step(text, at)
        return at

    def end(self) -> None:
        """No more text comes: a number or name alone is at its end."""
        if self._expects == "word" and not self.is_wrong:
            self._close_word()
        self.is_wrong = not self.is_done

    def _step(self, text: str, at: int) -> int:
        """Read the character that begins or ends something."""
        letter, expects = text[at], self._expects
        if letter in "]}" and self._open and self._open[-1] + letter in ("[]", "{}") and "end" in expects:
            self._open.pop()
            self._after_value()
        elif letter == "," and expects == "comma or end":
            self._expects = "key" if self._open[-1] == "{" else "value"
        elif letter == ":" and expects == "colon":
            self._expects = "value"
        elif letter == '"' and ("key" in expects or "value" in expects):
            self._is_key, self._expects = "key" in expects, "string"
        elif "value" not in expects:
            self.is_wrong = True
            return at
        elif letter in "[{" and len(self._open) < MAX_DEPTH:
            self._open.append(letter)
            self._expects = "value or end" if letter == "[" else "key or end"
        elif letter in "-0123456789tfn":
            self._word, self._expects = "", "word"
            return at
        else:
            self.is_wrong = True
            return at
        return at + 1

    def _in_string(self, text: str, at: int) -> int:
        if self._hex:
            if self._hex == 5:  # the letter after the backslash
                self._hex = 4 if text[at] == "u" else 0
                self.is_wrong = text[at] not in '"\\/bfnrtu'
            else:
                self._hex -= 1
                self.is_wrong = text[at] not in _HEX
            return at if self.is_wrong else at + 1
        at = _PLAIN.match(text, at).end()  # type: ignore[union-attr]  # it matches nothing too
        if at == len(text):
            return at
        if text[at] == '"':
            if self._is_key:
                self._expects = "colon"
            else:
                self._after_value()
        elif text[at] == "\\":
            self._hex = 5
        else:
            self.is_wrong = True
            return at
        return at + 1

    def _in_word(self, text: str, at: int) -> int:
        end, begun = _WORD.match(text, at).end(), len(self._word)  # type: ignore[union-attr]  # it matches nothing too
        self._word += text[at:end]
        if not _is_begun(self._word):
            # Up to the first letter that does not fit, however much of the word came at once.
            fits = next(length for length in range(len(self._word) - 1, -1, -1) if _is_begun(self._word[:length]))
            self.is_wrong = True
            return at + fits - begun
        if end < len(text):
            self._close_word()
        return end

    def _close_word(self) -> None:
        if self._word in _NAMES or _NUMBER.fullmatch(self._word):
            self._after_value()
        else:
            self.is_wrong = True

    def _after_value(self) -> None:
        self._expects = "comma or end"
        self.is_done = not self._open


def _is_begun(word: str) -> bool:
    """Whether a number or name may begin so."""
    return bool(_BEGUN.fullmatch(word)) or any(name.startswith(word) for name in _NAMES)


class Sink(Protocol):
    """Takes pieces of text, such as a list."""

    def append(self, text: str, /) -> None:
        """Take one."""


def read_json(source: Source, pieces: Sink) -> Reading:
    """Read a JSON value from a source; its text, as it comes, is added to the pieces."""
    scanner = JsonScanner()
    while True:
        end = scanner.scan(source.text, source.at)
        if end > source.at:
            pieces.append(source.text[source.at : end])
            source.at = end
        if source.ended:
            scanner.end()
        if scanner.is_done or scanner.is_wrong:
            return scanner.is_done
        yield
