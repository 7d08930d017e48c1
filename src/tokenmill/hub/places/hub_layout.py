"""The layout of a repository in the hub's cache, and what lies in one that its client has not provably written there.

The client writes blobs that are named by their digest, refs that hold a commit, snapshots named by a commit with links
to those blobs, and empty notes of what does not exist. A blob may be a link itself: to the store that all repositories
share. On a file system without links the client puts files into snapshots, which nothing tells from a user's own.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from shlex import quote

from tokenmill.errors import RequestError
from tokenmill.hub.places.entry import real_path
from tokenmill.hub.places.hub_cache import hub_folder

_BLOB = re.compile(r"[0-9a-f]{32,64}(\.[\w.-]*incomplete)?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHARED = re.compile(r"[0-9a-f]{64}")
_SHARED_MARK = ".huggingface-shared-blobs"


def check_layout(folder: Path) -> None:
    """RequestError that names what lies in a repository's folder and was not provably written by the hub's client."""
    for path in _foreign(folder):
        raise RequestError(
            f"{path} was not written by the hub's client, or cannot be told from a file of yours, so {folder} is not "
            f"deleted: move that away first; `rm -r {quote(str(folder))}` deletes all of it"
        )


def check_links(folder: Path, path: Path) -> None:
    """The same of a snapshot, or one file of it, and the blobs that are deleted with it."""
    for foreign in _foreign_above(folder, path) or _foreign_links(folder, path):
        raise RequestError(
            f"{foreign} is no link of the hub's client to a blob of its repository: nothing is deleted; "
            f"`rm -r {quote(str(path))}` deletes {path} alone"
        )


def _foreign(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_symlink() or not path.is_dir() or path.name not in ("blobs", "refs", "snapshots", ".no_exist"):
            yield path
    for blob in _inside(folder / "blobs"):
        if not _is_blob(folder, blob):
            yield blob
    for ref in _inside(folder / "refs"):
        if not _is_folder(ref) and not (_is_file(ref) and _is_commit(ref)):
            yield ref
    for note in _inside(folder / ".no_exist"):
        if not _is_folder(note) and not (_is_file(note) and note.stat().st_size == 0):
            yield note
    yield from _foreign_links(folder, folder / "snapshots")


def _foreign_above(folder: Path, path: Path) -> list[Path]:
    """The folders from a repository's to a path in its snapshots, and that of its blobs, if they are elsewhere."""
    between = [each for each in path.parents if folder in (each, *each.parents)]
    wrong = [each for each in (*between, folder / "blobs") if not _is_folder(each)]
    commit = path.relative_to(folder).parts[1]
    return wrong if _COMMIT.fullmatch(commit) else [*wrong, folder / "snapshots" / commit]


def _foreign_links(folder: Path, path: Path) -> Iterator[Path]:
    """What lies at a path in the snapshots, or below it, and is no link to a blob of this repository."""
    if path == folder / "snapshots" and _is_folder(path):
        yield from (each for each in sorted(path.iterdir()) if not _COMMIT.fullmatch(each.name))
    for each in _inside(path) if _is_folder(path) else [path]:
        if _is_folder(each):
            continue
        target = each.parent / each.readlink() if each.is_symlink() else each
        is_inside = real_path(target.parent) == real_path(folder / "blobs")
        if not each.is_symlink() or not is_inside or not _is_blob(folder, folder / "blobs" / target.name):
            yield each


def _is_blob(folder: Path, blob: Path) -> bool:
    """Whether a blob has a name of the client's, and is a file or a link into the store that repositories share."""
    if (folder / "blobs").is_symlink() or not _BLOB.fullmatch(blob.name):
        return False
    if not blob.is_symlink():
        return blob.is_file()
    target, store = blob.parent / blob.readlink(), hub_folder() / "blobs"
    is_shared = real_path(target.parent.parent) == real_path(store) and _SHARED.fullmatch(target.name) is not None
    return is_shared and _is_file(store / _SHARED_MARK) and _is_file(target)


def _is_commit(ref: Path) -> bool:
    """Whether a ref holds a commit, and nothing else."""
    return ref.stat().st_size < 100 and _COMMIT.fullmatch(ref.read_text(errors="replace").strip()) is not None


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _inside(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*")) if _is_folder(folder) else []
