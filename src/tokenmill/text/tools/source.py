"""Text that comes in pieces, read forwards by generators: where one needs more than there is, it yields."""

from collections.abc import Generator

Reading = Generator[None, None, bool]
"""A generator that reads; it returns whether what it looks for stood there."""

SPACES = " \t\r\n"


class Source:
    """text: what is kept. at: the place in it up to which it was read. ended: nothing more comes.

    kept: text from this place on is needed again; None where only what was not read is.
    """

    def __init__(self) -> None:
        self.text, self.at, self.ended = "", 0, False
        self.kept: int | None = None

    def feed(self, text: str) -> None:
        """More text."""
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
