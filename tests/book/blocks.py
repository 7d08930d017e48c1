"""The code blocks of a page, each with what a comment before it says of how it is run.

    <!-- not run: REASON -->                the block is for the reader alone
    <!-- typed into the command above -->   lines for the stdin of the last command of the block before
    <!-- served until the end of the page -->   a server, which is started and ended by the test

A block of another language than a shell's or Python's is data or output, which other tests read.
"""

import re
from typing import NamedTuple

FENCE = re.compile(r"(?:^<!-- ([^\n]*?) -->\n+)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = ("", "sh", "bash", "console")
NOT_RUN, TYPED, SERVED = "not run: ", "typed into the command above", "served until the end of the page"


class Block(NamedTuple):
    """A block. mark: the comment before it, if that is about running."""

    language: str
    text: str
    mark: str

    @property
    def is_shell(self) -> bool:
        """Whether it holds commands."""
        return self.language in SHELL

    @property
    def reason(self) -> str:
        """Why it is not run; empty if it is."""
        return self.mark.removeprefix(NOT_RUN) if self.mark.startswith(NOT_RUN) else ""

    @property
    def commands(self) -> list[str]:
        """Its lines, with continued ones joined; in a block with prompts, only those behind one."""
        lines = self.text.replace("\\\n", " ").splitlines()
        prompted = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        return prompted or [line for line in lines if line.strip() and not line.startswith("#")]


def blocks(text: str) -> list[Block]:
    """All blocks of a page, in their order."""
    marks = (NOT_RUN, TYPED, SERVED)
    return [
        Block(language, inner, mark if mark.startswith(marks) else "") for mark, language, inner in FENCE.findall(text)
    ]


def indented(text: str) -> list[str]:
    """Lines of code that are indented and not fenced, and so would be seen by no test."""
    outside = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"(?<=\n\n)    (\S.*)$", outside, re.MULTILINE)
