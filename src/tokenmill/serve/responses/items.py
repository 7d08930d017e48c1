"""The items of a response: text, thinking, calls of functions and of custom tools, each with its events."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

from tokenmill.serve.request.custom_tools import input_of
from tokenmill.serve.responses.tools import Named

Json = dict[str, Any]


class Item(ABC):
    """One item. place: its index in the output. answer: the id of the response. status: of its text."""

    prefix: str

    def __init__(self, place: int, answer: str) -> None:
        self._place, self._pieces, self.status = place, list[str](), "in_progress"
        digest = blake2b(f"{answer}:{place}".encode(), digest_size=12).hexdigest()
        self._id = f"{self.prefix}_{digest}"

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._pieces)

    def begin(self) -> Iterator[Json]:
        """The first events."""
        yield self._about("response.output_item.added", item=self.whole(is_empty=True))

    def add(self, text: str) -> Iterator[Json]:
        """The events for more text."""
        self._pieces.append(text)
        yield self._delta(text)

    def end(self, is_cut: bool = False) -> Iterator[Json]:
        """The last events. is_cut: a limit has ended the text."""
        self.status = "incomplete" if is_cut else "completed"
        yield from self._ending()
        yield self._about("response.output_item.done", item=self.whole())

    @abstractmethod
    def whole(self, is_empty: bool = False) -> Json:
        """The item, with what is there of it."""

    @abstractmethod
    def _delta(self, text: str) -> Json:
        """The event for more text."""

    @abstractmethod
    def _ending(self) -> Iterator[Json]:
        """The events before the one that has the whole item."""

    def _about(self, kind: str, **more: Any) -> Json:
        item = {} if "item" in more else {"item_id": self._id}
        return {"type": kind, **item, "output_index": self._place, **more}


class TextItem(Item):
    """A message."""

    prefix = "msg"

    def whole(self, is_empty: bool = False) -> Json:
        """See Item."""
        content = [] if is_empty else [_part(self.text)]
        return {"type": "message", "id": self._id, "role": "assistant", "status": self.status, "content": content}

    def begin(self) -> Iterator[Json]:
        """See Item."""
        yield from super().begin()
        yield self._about("response.content_part.added", content_index=0, part=_part(""))

    def _delta(self, text: str) -> Json:
        return self._about("response.output_text.delta", content_index=0, delta=text, logprobs=[])

    def _ending(self) -> Iterator[Json]:
        yield self._about("response.output_text.done", content_index=0, text=self.text, logprobs=[])
        yield self._about("response.content_part.done", content_index=0, part=_part(self.text))


class ThinkingItem(Item):
    """What the model thought."""

    prefix = "rs"

    def whole(self, is_empty: bool = False) -> Json:
        """See Item."""
        content = [] if is_empty else [{"type": "reasoning_text", "text": self.text}]
        return {"type": "reasoning", "id": self._id, "summary": [], "content": content, "encrypted_content": None}

    def _delta(self, text: str) -> Json:
        return self._about("response.reasoning_text.delta", content_index=0, delta=text)

    def _ending(self) -> Iterator[Json]:
        yield self._about("response.reasoning_text.done", content_index=0, text=self.text)


class FunctionItem(Item):
    """A call of a function, whose arguments are JSON text."""

    prefix = "fc"

    def __init__(self, place: int, answer: str, call: str, named: Named) -> None:
        super().__init__(place, answer)
        space = {} if named.space is None else {"namespace": named.space}
        self._named = {"call_id": call, "name": named.name} | space

    def whole(self, is_empty: bool = False) -> Json:
        """See Item."""
        return {"type": "function_call", "id": self._id, **self._named, "arguments": self.text, "status": self.status}

    def _delta(self, text: str) -> Json:
        return self._about("response.function_call_arguments.delta", delta=text)

    def _ending(self) -> Iterator[Json]:
        name = self._named["name"]
        yield self._about("response.function_call_arguments.done", name=name, arguments=self.text)


class CustomItem(FunctionItem):
    """A call of a custom tool. Its input stands in the JSON text of the model's call, so it is shown when that ends."""

    prefix = "ctc"

    @property
    def input(self) -> str:
        """See input_of."""
        return input_of(self.text)

    def whole(self, is_empty: bool = False) -> Json:
        """See Item."""
        given = "" if is_empty else self.input
        return {"type": "custom_tool_call", "id": self._id, **self._named, "input": given, "status": self.status}

    def add(self, text: str) -> Iterator[Json]:
        """See Item."""
        self._pieces.append(text)
        yield from ()

    def _ending(self) -> Iterator[Json]:
        yield self._about("response.custom_tool_call_input.delta", delta=self.input)
        yield self._about("response.custom_tool_call_input.done", input=self.input)


def call_item(place: int, answer: str, call: str, named: Named) -> Item:
    """The item of a call."""
    return (CustomItem if named.is_custom else FunctionItem)(place, answer, call, named)


def _part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
