"""JSON that stays one line for every reader: U+0085, U+2028 and U+2029 are escaped.

JSON allows all three within a text, and only escapes what is below U+0020. But Python's `str.splitlines`, and with it
the `iter_lines` of httpx, ends a line at each of them, so a client that reads lines would get halves of an object.
"""

ESCAPED = {"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_TABLE = str.maketrans(ESCAPED)


def one_line(json_text: str) -> str:
    """Escape the ends of lines in a text that is JSON already, where they can only stand within its strings."""
    return json_text.translate(_TABLE)
