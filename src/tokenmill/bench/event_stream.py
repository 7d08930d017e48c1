"""Server-sent events as their bytes come in. No network."""

from collections.abc import Iterator


class EventStream:
    """Joins blocks of bytes into the data of events.

    Lines end at "\\n" alone: U+2028 and its like may stand inside a JSON string, which a reader of lines that breaks
    there tears apart.
    """

    def __init__(self) -> None:
        self._tail, self._data = b"", list[bytes]()

    def feed(self, block: bytes) -> Iterator[bytes]:
        """The data of each event that ends in this block."""
        *lines, self._tail = (self._tail + block).split(b"\n")
        for line in lines:
            content = line.removesuffix(b"\r")
            if content.startswith(b"data:"):
                self._data.append(content[5:].strip())
            elif not content and self._data:
                data, self._data = b"\n".join(self._data), []
                yield data
