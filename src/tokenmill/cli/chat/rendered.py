"""Answers of `chat` on a terminal: Markdown rendered while it comes, wrapped at words; control codes made visible.

Code is never wrapped, indented or cut: a line of it is one line when it is copied, and a terminal that is narrower
shows it on several rows by itself.

A block of Markdown that is followed by another one is finished: it is printed once, and scrolls like any other output.
Only the block that is being written is drawn again and again.
"""

import sys
import time
from types import TracebackType
from typing import ClassVar, Self

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.markdown import BlockQuote, CodeBlock, ListItem, Markdown, TableElement
from rich.segment import Segment
from rich.style import Style
from rich.syntax import Syntax
from rich.table import Table

from tokenmill.cli.process.display import visible
from tokenmill.memory.interrupts import held_interrupts

REDRAW_S = 0.05  # a code block of a thousand lines is not coloured anew for each token
# Raw HTML, images and definitions of links would vanish from what is shown; a model's text stays whole.
_PARSER = (
    MarkdownIt("commonmark", {"html": False})
    .enable(["strikethrough", "table"])
    .disable(["html_block", "html_inline", "image", "autolink", "reference"])
)


class _Table(TableElement):
    """A Markdown table that folds long words; rich would cut them."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for table in super().__rich_console__(console, options):
            if isinstance(table, Table):
                for column in table.columns:
                    column.overflow = "fold"
            yield table


class _Code(CodeBlock):
    """Code as it was written, whatever the width."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = Syntax(str(self.text).rstrip(), self.lexer_name, theme=self.theme)
        yield from code.highlight(code.code).render(console)


class _Item(ListItem):
    """An item of a list; rich would cut lines of code in it."""

    def render_bullet(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the item of a list without numbers."""
        yield from _beside(" • ", "   ", self, console, options, console.get_style("markdown.item.bullet"))

    def render_number(self, console: Console, options: ConsoleOptions, number: int, last_number: int) -> RenderResult:
        """Render the item of a list with numbers, which are as wide as the last one."""
        width = len(str(last_number)) + 2
        number_style = console.get_style("markdown.item.number")
        yield from _beside(f"{number}".rjust(width - 1) + " ", " " * width, self, console, options, number_style)


class _Quote(BlockQuote):
    """A quotation; rich would cut lines of code in it."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from _beside("▌ ", "▌ ", self, console, options, self.style)


def _beside(
    first: str, others: str, parent: _Item | _Quote, console: Console, options: ConsoleOptions, style: Style
) -> RenderResult:
    """Render the elements of an item or a quotation with a mark before each line; code may be wider than options."""
    inner = options.update(width=max(1, options.max_width - len(first)), height=None)
    parts = Segment.apply_style(console.render(parent.elements, inner), parent.style)
    for number, line in enumerate(Segment.split_lines(parts)):
        yield Segment(others if number else first, style)
        yield from line
        yield Segment.line()


class _Block(Markdown):
    """Markdown without links that a terminal would follow; the line breaks of the model are kept."""

    elements: ClassVar = {
        **Markdown.elements,
        "table_open": _Table,
        "fence": _Code,
        "code_block": _Code,
        "list_item_open": _Item,
        "blockquote_open": _Quote,
    }

    def __init__(self, text: str) -> None:
        super().__init__("", code_theme="ansi_dark", hyperlinks=False)
        self.parsed = _PARSER.parse(text)
        for token in self.parsed:
            for child in token.children or ():
                if child.type == "softbreak":
                    child.type = "hardbreak"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        parts = (part for part in super().__rich_console__(console, options) if isinstance(part, Segment))
        lines = [[*_without_padding(line), Segment.line()] for line in Segment.split_lines(parts)]
        inked = [at for at, line in enumerate(lines) if len(line) > 1]
        for line in lines[inked[0] : inked[-1] + 1] if inked else ():  # rich has blank lines around some blocks
            yield from line


def _without_padding(line: list[Segment]) -> list[Segment]:
    """Strip a line's padding: ^C, which the terminal writes behind it, would begin another line."""
    while line and not line[-1].text.rstrip():
        line = line[:-1]
    return [*line[:-1], Segment(line[-1].text.rstrip(), line[-1].style)] if line else line


class _Tail:
    """The last lines of a block, as many as the terminal has: the rest is shown when the block is finished."""

    def __init__(self, text: str) -> None:
        self.block = _Block(text)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self.block, options.update(height=None), pad=False, new_lines=True)
        for line in lines[-max(1, console.height - 1) :]:
            yield from line


class RenderedMarkdown:
    """Writes Markdown as it comes. Leaving the context prints the rest and gives the terminal back as it was."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(markup=False, highlight=False, emoji=False)
        self._open = ""  # the block that is being written
        self._is_first = True
        self._live = Live(
            console=self._console, transient=True, auto_refresh=False, redirect_stderr=sys.stderr.isatty()
        )  # its own thread of refreshing would move the cursor while a finished block is printed
        self._drawn_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with held_interrupts():
            self._live.stop()
            self._open += "\n"
            self._finish()
            self._print(self._open)
            self._open = ""

    def write(self, text: str) -> None:
        """Add text to the answer. Ctrl-C in the middle would leave what is drawn and what is known of it apart."""
        with held_interrupts():
            self._add(text)

    def _add(self, text: str) -> None:
        self._open += visible(text)
        if "\n" in text:
            self._finish()
        self._live.start()
        if (now_s := time.monotonic()) - self._drawn_s >= REDRAW_S:
            self._live.update(_Tail(self._open), refresh=True)
            self._drawn_s = now_s

    def _finish(self) -> None:
        """Print the blocks that another one follows. Lines that are not complete may yet change what they are."""
        complete = self._open[: self._open.rfind("\n") + 1]
        starts = [token.map[0] for token in _PARSER.parse(complete) if _begins_block(token) and token.map]
        if len(starts) < 2:
            return
        lines = complete.split("\n")
        finished = "\n".join(lines[: starts[-1]])
        self._open = self._open[len(finished) + 1 :]
        self._live.update(_Tail(self._open))
        self._print(finished)

    def _print(self, text: str) -> None:
        if not text.strip():
            return
        if not self._is_first:
            self._console.print()
        self._is_first = False
        self._console.print(_Block(text), crop=False)


def _begins_block(token: Token) -> bool:
    return token.level == 0 and token.nesting >= 0
