"""The log of an agent's requests: a file with a JSON object in each line, as `tokenmill serve --record` writes it.

Each line has the path of a route and the body that was sent there. What else a line may have is in OPTIONAL.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenmill.errors import TokenmillError
from tokenmill.value_reader import ValueReader, path_of

OPTIONAL = ("headers", "time")
SECRET = ("authorization", "proxy-authorization", "x-api-key", "api-key", "cookie")
PASSED_ON = ("anthropic-version", "anthropic-beta", "session-id", "x-session-id", "x-claude-code-session-id")


@dataclass(frozen=True)
class Recorded:
    """One request. number: of its line. headers: the recorded headers that say something about the session."""

    number: int
    path: str
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)


def read_log(file: Path) -> list[Recorded]:
    """Read the requests of a log in their order; TokenmillError for any other file."""
    try:
        lines = path_of(file).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise TokenmillError(f"{file} cannot be read: {why}") from None
    found = list(_requests(file, lines))
    if not found:
        raise TokenmillError(f"{file} has no requests: record some with `tokenmill serve --record FILE`")
    return found


def _requests(file: Path, lines: list[str]) -> Iterator[Recorded]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{file}, line {number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            raise TokenmillError(f"{where} is no JSON") from None
        yield _request(ValueReader(value, where, TokenmillError), number)


def _request(reader: ValueReader, number: int) -> Recorded:
    path, body = reader.text("path"), reader.inside("body", required=True)
    headers = reader.inside("headers")
    reader.take("time", 0)
    if unknown := [name for name in reader.values if name not in reader.read]:
        known = ", ".join(("path", "body", *OPTIONAL))
        raise TokenmillError(f"{reader.where} has {unknown[0]!r}, which is not known: a line has {known}")
    told = {name.lower(): headers.text(name) for name in headers.values if name.lower() in PASSED_ON}
    return Recorded(number, path.partition("?")[0], dict(body.values), told)
