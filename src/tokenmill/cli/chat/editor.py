"""A text changed in the user's editor, for `/edit` in `chat`."""

import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from tokenmill.errors import TokenmillError

VARIABLES = ("VISUAL", "EDITOR")


def edited(text: str) -> str:
    """The text as the editor leaves it. TokenmillError where no editor is set, or where it fails."""
    command = next((os.environ[name] for name in VARIABLES if os.environ.get(name)), None)
    if command is None:
        raise TokenmillError("/edit needs the new question, /edit TEXT, or an editor: set EDITOR, to nano for example")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "question.md")
        file.write_text(text, encoding="utf-8")
        try:
            subprocess.run([*shlex.split(command), str(file)], check=True)  # noqa: S603  (the user's own editor)
            return file.read_text(encoding="utf-8")
        except (OSError, ValueError, subprocess.CalledProcessError) as error:  # ValueError: quotes, or no UTF-8
            raise TokenmillError(f"the editor {command!r} failed: {error}; /edit TEXT does without one") from None
