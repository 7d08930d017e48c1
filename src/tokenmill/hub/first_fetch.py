"""The sha256 of files of the hub that short names stand for: computed at the first fetch, and remembered.

It is compared with the pinned sha256. Where no sha256 is pinned, the file that was fetched first counts, since a hub
can change what lies under a name: its commit is fetched again later, and a file with another sha256 is refused. The
record lies in the cache folder and may be deleted with all of it; the next fetch is then a first one again.
"""

import json
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

from tokenmill.errors import CheckpointError, file_errors
from tokenmill.hub.download import cache_folder, sha256_of
from tokenmill.hub.progress import Progress
from tokenmill.memory.atomic_file import make_folder, writing
from tokenmill.memory.file_lock import locked_file

FILE = "first-fetches.json"
WAIT_S = 5.0
_SHA256 = re.compile(r"[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}")


class Fetched(NamedTuple):
    """A record of a first fetch. commit: of the repository; "" if unknown. date: of the first fetch, as 2026-11-26."""

    sha256: str
    commit: str
    num_bytes: int
    date: str


def record_file() -> Path:
    return cache_folder() / FILE


def records() -> dict[str, Fetched]:
    """Read what was fetched first, by the name that the hub has for it. CheckpointError for a file that is damaged."""
    path = record_file()
    if not path.is_file():
        return {}
    with file_errors(path, "read"):
        text = path.read_bytes()
    try:
        return {str(name): _checked(values) for name, values in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        advice = "delete it, and the next fetch is a first one again"
        raise CheckpointError(f"{path} is damaged ({error}): {advice}") from None


def _checked(values: Any) -> Fetched:
    sha256, commit, num_bytes, date = values
    if not all(isinstance(each, str) for each in (sha256, commit, date)) or type(num_bytes) is not int:
        raise ValueError("a record has values of other types")
    if not _SHA256.fullmatch(sha256) or not _COMMIT.fullmatch(commit or "0" * 40):
        raise ValueError("a record has no sha256, or no commit")
    return Fetched(sha256, commit, num_bytes, date)


def sha256_of_file(path: Path, progress: Progress) -> str:
    """Compute the sha256 of all bytes of a file, whatever its name in the hub's cache says."""
    progress.stage(f"computing the sha256 of {path.name}")
    with file_errors(path, "read"):
        return sha256_of(path)


def remember(name: str, path: Path, sha256: str) -> None:
    """Remember a file that was fetched for the first time, unless another process has. CheckpointError."""
    commits = [part for part in path.parts if _COMMIT.fullmatch(part)]
    file = record_file()
    with file_errors(file, "written"):
        made = Fetched(sha256, (commits or [""])[-1], path.stat().st_size, time.strftime("%Y-%m-%d"))
        make_folder(file.parent)
        with locked_file(file.with_name(f".{FILE}.lock"), WAIT_S):
            known = records()
            if known.get(name, made).sha256 != sha256 or name not in known:
                with writing(file) as out:
                    out.write(json.dumps({**known, name: made}, indent=1).encode())


def check(short: str, name: str, path: Path, wanted: str, since: str, found: str = "") -> None:
    """Raise CheckpointError unless the file has that sha256. since: where the sha256 comes from, as a part of a
    sentence.

    found: the file's sha256, if it was computed. Otherwise the name of its blob counts, which the hub's client has
    checked; where the blob's name is no sha256, as on file systems without links, all bytes are read.
    """
    blob = path.resolve().name
    with file_errors(path, "read"):
        found = found or (blob if _SHA256.fullmatch(blob) else sha256_of(path))
    if found != wanted:
        raise CheckpointError(
            f"{short} is {name} with sha256 {wanted} ({since}), and {path} has {found}: the repository has another "
            f"file now, or this one is damaged; `{name}` in the place of the short name takes it as it is"
        )
