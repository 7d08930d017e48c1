"""The parser of answers: text that comes in pieces becomes text, thinking and calls, and nothing of it is lost.

It needs no grammar: whatever is no call of a function that may be called is text. An answer that a grammar made holds
only whole calls, so its arguments are shown as they come; in any other a call is shown when it is complete, since until
then it may turn out to be text. What is held back is the beginning of a mark, or of such a call.
"""

from collections.abc import Callable, Collection, Generator, Sequence

from tokenmill.text.parts import CallArguments, CallBegin, Part, TextPart, ThinkingPart
from tokenmill.text.thinking import Thinking
from tokenmill.text.tools.functions import Function
from tokenmill.text.tools.source import Reading, Source, begun
from tokenmill.text.tools.tool_format import CallBody, ToolFormat

Reads = Generator[None, None, None]
MAX_BREAKS = 2  # after the mark that ends thinking


class Parser:
    """The parser of one answer. functions: all that may be called; without any, or without a format, there are no
    calls.

    thinking: the marks of thinking. is_open: the answer begins inside it. is_trusted: a grammar made the answer.
    """

    def __init__(
        self,
        form: ToolFormat | None,
        functions: Sequence[Function] = (),
        *,
        thinking: Thinking | None = None,
        is_open: bool = False,
        is_trusted: bool = False,
    ) -> None:
        self._form, self._functions = form, {function.name: function for function in functions}
        self._thinking, self._is_open, self._is_trusted = thinking, is_open, is_trusted
        self.source, self._parts = Source(), list[Part]()
        self.names: Collection[str] = self._functions.keys()
        self._ids: list[str] = []  # of the calls that are shown
        self._reading = self._read()

    def push(self, text: str, *, is_last: bool = False) -> list[Part]:
        """Take in more of the answer; return the parts that are safe to show by now, neighbours of a kind joined."""
        self.source.feed(text)
        next(self._reading, None)
        if is_last:
            self.source.ended = True
            next(self._reading, None)
        parts, self._parts = self._parts, []
        return parts

    def finish(self) -> list[Part]:
        """Return the parts that were held back, now that the answer is at its end."""
        return self.push("", is_last=True)

    def _read(self) -> Reads:
        if self._form is not None and self._form.reader is not None:
            yield from self._form.reader(self)
            return
        if self._thinking is not None:
            yield from self._read_thinking(self._thinking)
        form = self._form
        if form is None or not self._functions:
            yield from self.read_up_to((), "", self.show_text)
        elif form.is_alone:
            yield from self._read_alone(form, form.marks(self._functions))
        else:
            yield from self._read_among_text(form, form.marks(self._functions))

    def _read_thinking(self, thinking: Thinking) -> Reads:
        """Read the thinking that the answer begins with, if it does, without the line breaks beside its marks."""
        source = self.source
        if not self._is_open:
            source.kept = source.at
            yield from source.spaces()
            if not (yield from source.literal(thinking.begin)):
                source.at, source.kept = source.kept, None
                return
            source.kept = None
        yield from source.literal("\n")
        if (yield from self.read_up_to((thinking.end,), "\n", self.show_thinking)):
            yield from source.literal("\n")
            yield from source.literal(thinking.end)
            for _ in range(MAX_BREAKS):
                yield from source.literal("\n")

    def _read_among_text(self, form: ToolFormat, marks: Sequence[str]) -> Reads:
        """Read to the end: text and, from each mark on, calls."""
        source = self.source
        while (yield from self.read_up_to(marks, form.lead, self.show_text)):
            source.kept, num_shown = source.at, len(self._ids)
            if not (yield from self._read_frame(form)) and source.kept is not None:
                first, source.at, source.kept = source.kept, source.kept, None
                if len(self._ids) == num_shown:  # the mark is text, and perhaps more; inside it another may begin
                    source.at += 1 + len(form.lead) * source.text.startswith(form.lead, first)
                self.show_text(source.text[first : source.at])
            source.kept = None

    def _read_alone(self, form: ToolFormat, marks: Sequence[str]) -> Reads:
        """Read to the end an answer that begins with calls, or is text."""
        source = self.source
        source.kept = source.at
        yield from source.spaces()
        for mark in marks if self._is_trusted else {mark[0] for mark in marks}:
            place = source.at - source.kept
            if (yield from source.literal(mark)):
                source.at = source.kept + place
                if not (yield from self._read_frame(form)) and source.kept is not None:
                    break
                source.kept = None
                yield from self.read_up_to((), "", self.show_text)
                return
        source.at, source.kept = source.kept, None
        yield from self.read_up_to((), "", self.show_text)

    def _read_frame(self, form: ToolFormat) -> Reading:
        """Read calls from the mark on, after white space; return whether they are complete.

        As far as they are shown, the source keeps nothing.
        """
        source = self.source
        waiting: list[_Taken] = []
        if not (yield from source.frame(form.lead + form.opening)):
            return False
        while True:
            waiting.append(taken := self._new_call())
            if not (yield from form.body.read(source, taken)):
                return False
            length = source.at - (source.kept or 0)  # from what is kept to the end of the call
            goes_on = bool(form.comma and form.comma.strip()) and (yield from source.frame(form.comma or ""))
            if not goes_on and not (yield from source.frame(form.closing, may_end=True)):
                if form.comma is None or form.comma.strip():
                    return False
                goes_on = True
            if not goes_on or not form.is_alone:
                after = source.at if source.kept is None else source.kept + length
                for each in waiting:
                    each.show(self._begin)
                waiting.clear()
                source.kept = after if goes_on else None
            if not goes_on:
                return True

    def read_call(self, body: CallBody, name: str) -> Reading:
        """Read and show a call of this function; return whether it is complete. See AnswerReader."""
        taken = self._new_call()
        taken.begin(name)
        is_complete = yield from body.read(self.source, taken)
        if is_complete:
            taken.show(self._begin)
            self.source.kept = None
        return is_complete

    def _new_call(self) -> "_Taken":
        return _Taken(self._functions, self._begin if self._is_trusted else None, self._show)

    def read_up_to(self, marks: Sequence[str], lead: str, show: Callable[[str], None]) -> Generator[None, None, bool]:
        """See AnswerReader."""
        source = self.source
        while True:
            text, at = source.text, source.at
            places = [place for mark in marks if (place := text.find(mark, at)) >= 0]
            if places:
                end = min(places)
                if lead and text.endswith(lead, at, end):
                    end -= len(lead)
            elif source.ended:
                end = len(text)
            else:
                end = len(text) - begun(text, at, *marks, *(lead + mark for mark in marks))
            source.at = end
            show(text[at:end])
            if places or source.ended:
                return bool(places)
            yield

    def _begin(self, name: str, given_id: str | None) -> int:
        """Show that a call begins; return its number. It can be taken back no more."""
        assert self._form is not None
        number = len(self._ids)
        self._ids.append(self._form.new_id() if given_id is None or given_id in self._ids else given_id)
        self.source.kept = None
        self._parts.append(CallBegin(number, self._ids[number], name))
        return number

    def _show(self, number: int, text: str) -> None:
        last = self._parts[-1] if self._parts else None
        if isinstance(last, CallArguments) and last.index == number:
            self._parts[-1] = CallArguments(number, last.text + text)
        elif text:
            self._parts.append(CallArguments(number, text))

    def show_text(self, text: str) -> None:
        last = self._parts[-1] if self._parts else None
        if isinstance(last, TextPart):
            self._parts[-1] = TextPart(last.text + text)
        elif text:
            self._parts.append(TextPart(text))

    def show_thinking(self, text: str) -> None:
        last = self._parts[-1] if self._parts else None
        if isinstance(last, ThinkingPart):
            self._parts[-1] = ThinkingPart(last.text + text)
        elif text:
            self._parts.append(ThinkingPart(text))


class _Taken:
    """A call that is read: shown at once where `begin` is given, else kept until it is complete."""

    def __init__(
        self,
        functions: dict[str, Function],
        begin: Callable[[str, str | None], int] | None,
        show: Callable[[int, str], None],
    ) -> None:
        self._functions, self._begin, self._show = functions, begin, show
        self._name, self._pieces = "", list[str]()
        self._given_id: str | None = None
        self._number: int | None = None

    def function(self, name: str) -> Function | None:
        return self._functions.get(name)

    def begin(self, name: str, given_id: str | None = None) -> None:
        self._name, self._given_id = name, given_id
        if self._begin is not None:
            self._number = self._begin(name, given_id)

    def append(self, text: str, /) -> None:
        if self._number is None:
            self._pieces.append(text)
        else:
            self._show(self._number, text)

    def show(self, begin: Callable[[str, str | None], int]) -> None:
        """Show the call, which is complete."""
        if self._number is None:
            self._number = begin(self._name, self._given_id)
            self._show(self._number, "".join(self._pieces))
