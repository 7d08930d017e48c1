"""The bytes of streams: objects in one line each for every reader of lines, see text/json_lines.py; kinds, and keys of
the state of a request's scope.
"""

from typing import Any

import pydantic_core

from tokenmill.text.json_lines import ESCAPED

EVENTS, LINES = "text/event-stream", "application/x-ndjson"  # the kinds of streams
JSON = "application/json"
TEXT = "text/plain"
KEEP_ALIVE = b": keep-alive\n\n"  # a comment among server-sent events
PING = "tokenmill.ping"
"""The key of bytes that may be written between two events of a stream. Whether a client is still there that has closed
its half of the connection is only known once something is written for it.
"""
ANSWER_ID = "tokenmill.answer"
"""The key of the id of a stream's answer, which its last event needs."""
_IN_BYTES = [(end.encode(), escaped.encode()) for end, escaped in ESCAPED.items()]


def to_line(value: Any) -> bytes:
    """Write a value as JSON in one line, without a line end."""
    written: bytes = pydantic_core.to_json(value)
    for end, escaped in _IN_BYTES:
        if end in written:
            written = written.replace(end, escaped)
    return written
