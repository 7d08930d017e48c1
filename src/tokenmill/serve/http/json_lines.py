"""Objects as the lines and events of a stream, each in one line for every reader of lines; see text/json_lines.py."""

from typing import Any

import pydantic_core

from tokenmill.text.json_lines import ESCAPED

_IN_BYTES = [(end.encode(), escaped.encode()) for end, escaped in ESCAPED.items()]


def to_line(value: Any) -> bytes:
    """Write a value as JSON in one line, without a line end."""
    written: bytes = pydantic_core.to_json(value)
    for end, escaped in _IN_BYTES:
        if end in written:
            written = written.replace(end, escaped)
    return written
