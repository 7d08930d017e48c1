"""The sha256 of files of the hub that short names stand for, remembered from their first fetch where none is pinned.

A hub can change what lies under a name. What was fetched first counts: its commit is fetched again later, and a file
with another sha256 is refused. The record lies in the cache folder and may be deleted with all of it; the next fetch
is then a first one again.
"""

import json
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

from tokenmill.errors import CheckpointError, file_errors
from tokenmill.hub.download import cache_folder, sha256_of
from tokenmill.memory.atomic_file import make_folder, writing
from tokenmill.memory.file_lock import locked_file

FILE = "first-fetches.json"
WAIT_S = 5.0
_SHA256 = re.compile(r"[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}")


class Fetched(NamedTuple):
    """commit: of the repository; "" where the path does not tell it. date: of the first fetch, as 2026-11-26."""

    sha256: str
    commit: str
    num_bytes: int
    date: str


def record_file() -> Path:
    return cache_folder() / FILE


def records() -> dict[str, Fetched]:
    """What was fetched first, by the name that the hub has for it. CheckpointError for a file that is damaged."""
    path = record_file()
    if not path.is_file():
        return {}
    with file_errors(path, "read"):
        text = path.read_bytes()
    try:
        return {str(name): _checked(values) for name, values in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{path} is damaged ({error}): delete it, and the next fetch is a first one again"
        ) from None


def _checked(values: Any) -> Fetched:
    sha256, commit, num_bytes, date = values
    if not all(isinstance(each, str) for each in (sha256, commit, date)) or type(num_bytes) is not int:
        raise ValueError("a record has values of other types")
    if not _SHA256.fullmatch(sha256) or not _COMMIT.fullmatch(commit or "0" * 40):
        raise ValueError("a record has no sha256, or no commit")
    return Fetched(sha256, commit, num_bytes, date)


def sha256_in_cache(path: Path) -> str:
    """The sha256 of a file in the hub's cache: the name of its blob, or computed where that is none."""
    blob = path.resolve().name
    return blob if _SHA256.fullmatch(blob) else sha256_of(path)


def remember(name: str, path: Path) -> Fetched:
    """Remember a file that was fetched for the first time; the record of it, which another process may have made."""
    with file_errors(path, "read"):
        commits = [part for part in path.parts if _COMMIT.fullmatch(part)]
        made = Fetched(sha256_in_cache(path), (commits or [""])[-1], path.stat().st_size, time.strftime("%Y-%m-%d"))
    file = record_file()
    with file_errors(file, "written"):
        make_folder(file.parent)
        with locked_file(file.with_name(f".{FILE}.lock"), WAIT_S):
            known = records()
            if name not in known:
                with writing(file) as out:
                    out.write(json.dumps({**known, name: made}, indent=1).encode())
    return known.get(name, made)


def check(short: str, name: str, path: Path, wanted: str, since: str) -> None:
    """CheckpointError unless the file has that sha256. since: where the sha256 comes from, as a part of a sentence."""
    with file_errors(path, "read"):
        found = sha256_in_cache(path)
    if found != wanted:
        raise CheckpointError(
            f"{short} is {name} with sha256 {wanted} ({since}), and {path} has {found}: the repository has "
            f"another file now, or this one is damaged; `{name}` in the place of the short name takes it as it is"
        )
