"""The text of a model on stdout: unchanged in a pipe, without effect on a terminal."""

import sys

# A control code of a model would move the cursor, change the title or fill the clipboard. \r is no line of its own.
_CONTROLS = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n"}
_CONTROLS |= {0x7F: "␡", ord("\r"): ""} | dict.fromkeys(range(0x80, 0xA0), "\ufffd")


def visible(text: str) -> str:
    """The text with a picture for each control code, so that a terminal obeys none."""
    return text.translate(_CONTROLS)


def for_stdout(text: str) -> str:
    """The text with visible control codes where stdout is a terminal; else the text itself."""
    return visible(text) if sys.stdout.isatty() else text


def write_text(text: str) -> None:
    """Write to stdout at once."""
    sys.stdout.write(for_stdout(text))
    sys.stdout.flush()
