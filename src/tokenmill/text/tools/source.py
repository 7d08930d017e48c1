"""Text that comes in pieces, read forwards by generators: where one needs more than there is, it yields.

JSON has an incremental scanner: it finds the end of a value, or the first character that is no JSON.
"""

import re
from collections.abc import Callable, Generator

Reading = Generator[None, None, bool]
"""A generator that reads; it returns whether what it looks for stood there."""

SPACES = " \t\r\n"
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_SPACE = re.compile(r"[ \t\r\n]*")
_WORD = re.compile(r"[-+.0-9A-Za-z]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_BEGUN = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*|(?:\.[0-9]+)?[eE][-+]?[0-9]*)?)?")  # of a number
_NAMES = ("true", "false", "null")
_HEX = frozenset("0123456789abcdefABCDEF")
MAX_DEPTH = 100_000  # of lists and objects: no grammar of a schema that refers to itself has a limit


class Source:
    """Text that is read forwards. text: the part of it that is kept. at: the place in it up to which it was read.
    ended: nothing more comes.

    kept: text from this place on is needed again; None where no text before `at` is.
    """

    def __init__(self) -> None:
        self.text, self.at, self.ended = "", 0, False
        self.kept: int | None = None

    def feed(self, text: str) -> None:
        """Add more text."""
        done = self.at if self.kept is None else self.kept
        self.text, self.at = self.text[done:] + text, self.at - done
        if self.kept is not None:
            self.kept = 0

    def spaces(self) -> Generator[None, None, None]:
        """Read white space, as much as there is."""
        while True:
            while self.at < len(self.text) and self.text[self.at] in SPACES:
                self.at += 1
            if self.at < len(self.text) or self.ended:
                return
            yield

    def literal(self, wanted: str) -> Reading:
        """Read this text."""
        while not self.text.startswith(wanted, self.at):
            if self.ended or not wanted.startswith(self.text[self.at : self.at + len(wanted)]):
                return False
            yield
        self.at += len(wanted)
        return True

    def frame(self, wanted: str, may_end: bool = False) -> Reading:
        """Read this text, with any white space before its words and where it ends with some.

        may_end: the end of all text stands for the rest of it.
        """
        for word in wanted.split():
            yield from self.spaces()
            if not (yield from self.literal(word)):
                is_cut = may_end and self.ended and word.startswith(self.text[self.at :])
                self.at = len(self.text) if is_cut else self.at
                return is_cut
        if wanted[-1:].isspace():
            yield from self.spaces()
        return True


class JsonScanner:
    """A reader of one value. is_done: it was read to its end. is_wrong: there is no value."""

    def __init__(self) -> None:
        self.is_done = self.is_wrong = False
        self._open: list[str] = []  # the brackets that are open
        self._expects = "value"
        self._is_key = False  # the string that is read
        self._word = ""  # of a number or name that is not at its end
        self._hex = 0  # digits of an escape that are missing

    def scan(self, text: str, at: int) -> int:
        """Read on; return the place after what belongs to the value. A number alone ends with the text after it."""
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
        """Note that no more text comes: a number or name alone is at its end."""
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
    """Return whether a number or name may begin so."""
    return bool(_BEGUN.fullmatch(word)) or any(name.startswith(word) for name in _NAMES)


def read_json(source: Source, take: Callable[[str], None]) -> Reading:
    """Read a JSON value from a source; give its text, as it comes, to `take`."""
    scanner = JsonScanner()
    while True:
        end = scanner.scan(source.text, source.at)
        if end > source.at:
            take(source.text[source.at : end])
            source.at = end
        if source.ended:
            scanner.end()
        if scanner.is_done or scanner.is_wrong:
            return scanner.is_done
        yield


def begun(text: str, at: int, *wanted: str) -> int:
    """Return the length of the longest end of the text that is the beginning of one of these."""
    lengths = (length for word in wanted for length in range(1, len(word)) if text.endswith(word[:length], at))
    return max(lengths, default=0)
