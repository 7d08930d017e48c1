"""Models deleted from the cache of Hugging Face's client, by the client itself, where all that goes is its own.

The client deletes a repository as a folder, with whatever lies in it. So its layout is compared first: blobs, refs that
hold a commit, snapshots of links to those blobs, and empty notes of what does not exist. Anything else refuses it.
"""

import fcntl
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from huggingface_hub import CachedFileInfo, CachedRepoInfo, CachedRevisionInfo, HFCacheInfo

from tokenmill.errors import RequestError
from tokenmill.hub.places.entry import Entry, reason_of
from tokenmill.hub.places.hub_cache import hub_folder, scan
from tokenmill.hub.places.removal import Removal

_BLOB = re.compile(r"[0-9a-f]{32,64}(\.[\w.-]*incomplete)?")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def remove_from_hub(entries: list[Entry], is_whole: bool) -> Removal:
    """What would be deleted for the entries of one repository, or for all of it; RequestError for what may not be the
    client's own.
    """
    repository = repository_of(entries[0])
    try:
        found = scan()
    except OSError as error:
        raise RequestError(f"{hub_folder()} cannot be read: {reason_of(error)}") from error
    repos = [
        repo for repo in (found.repos if found else ()) if repo.repo_id == repository and repo.repo_type == "model"
    ]
    if found is None or not repos:
        raise RequestError(f"{repository} is no repository that the hub's client recognises in {hub_folder()}")
    # With this repository alone: another one may have a snapshot of the same commit.
    alone, repo = replace(found, repos=frozenset(repos)), repos[0]
    if repo.repo_path.is_symlink():
        raise RequestError(f"{repo.repo_path} is a link, which the hub's client has not made: nothing is deleted")
    _refuse_while_fetched(repo)
    files = {path for entry in entries for path in entry.files}
    whole = [rev for rev in repo.revisions if not _others(rev, files)]
    if is_whole or len(whole) == len(repo.revisions):
        return _of_repository(alone, repo)
    return _of_parts(alone, repo, whole, files)


def repository_of(entry: Entry) -> str:
    """The repository of an entry: its name is owner/name:file, owner/name/tree/commit, owner/name/blob/commit/file."""
    return re.split(r":|/tree/|/blob/", entry.name)[0]


def _others(revision: CachedRevisionInfo, files: set[Path]) -> list[Path]:
    """The weights of a revision that are not to go: with none of them, the rest of the revision goes as well."""
    weights = (".gguf", ".safetensors", ".bin")
    return [
        each.file_path for each in revision.files if each.file_path not in files and each.file_name.endswith(weights)
    ]


def _of_repository(alone: HFCacheInfo, repo: CachedRepoInfo) -> Removal:
    _check_layout(repo.repo_path)
    strategy = alone.delete_revisions(*(revision.commit_hash for revision in repo.revisions))
    there = [path for path in repo.repo_path.rglob("*") if path.is_file() and not path.is_symlink()]
    num_bytes = sum(path.stat().st_size for path in there)
    return Removal(
        repo.repo_id, (repo.repo_path,), tuple(there), num_bytes, _executed(strategy.execute, [repo.repo_path])
    )


def _of_parts(alone: HFCacheInfo, repo: CachedRepoInfo, whole: list[CachedRevisionInfo], files: set[Path]) -> Removal:
    """Revisions of which nothing is left, or single files of others."""
    parts = [each for revision in repo.revisions if revision not in whole for each in _given(revision, files)]
    if whole and parts:
        raise RequestError(f"{repo.repo_id} has several snapshots of this: delete them one by one")
    for path in [each.snapshot_path for each in whole] or [each.file_path for each in parts]:
        _check_links(repo.repo_path, path)
    if whole:
        strategy = alone.delete_revisions(*(revision.commit_hash for revision in whole))
        gone = [each.file_path for revision in whole for each in revision.files]
    elif hasattr(alone, "delete_files"):
        strategy, gone = alone.delete_files(*parts), [each.file_path for each in parts]
    else:
        raise RequestError(f"this client of the hub deletes whole snapshots alone: `tokenmill rm {repo.repo_id}`")
    blobs = tuple(path.resolve() for path in gone)
    return Removal(repo.repo_id, tuple(gone), blobs, strategy.expected_freed_size, _executed(strategy.execute, gone))


def _given(revision: CachedRevisionInfo, files: set[Path]) -> list[CachedFileInfo]:
    return [each for each in revision.files if each.file_path in files]


def _executed(execute: Callable[[], None], gone: Iterable[Path]) -> Callable[[], None]:
    """Delete, and say what is left: the client logs what it cannot delete, and goes on."""
    paths = list(gone)

    def run() -> None:
        execute()
        if left := [str(path) for path in paths if path.exists() or path.is_symlink()]:
            raise RequestError(f"{', '.join(left[:3])} could not be deleted: who may write there must do it")

    return run


def _refuse_while_fetched(repo: CachedRepoInfo) -> None:
    """RequestError while a process holds a lock of the repository."""
    for lock in sorted((hub_folder() / ".locks" / repo.repo_path.name).glob("*.lock")):
        try:
            with lock.open("rb") as opened:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.flock(opened, fcntl.LOCK_UN)
        except BlockingIOError:
            raise RequestError(f"{repo.repo_id} is being fetched by another process: wait, or end it") from None
        except OSError:
            continue


def _check_layout(folder: Path) -> None:
    """RequestError that names what lies in a repository's folder and was not written by the hub's client."""
    for path in _foreign(folder):
        raise RequestError(
            f"{path} was not written by the hub's client, so {folder} is not deleted: move that file away first"
        )


def _foreign(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_symlink() or not path.is_dir() or path.name not in ("blobs", "refs", "snapshots", ".no_exist"):
            yield path
    for blob in _inside(folder / "blobs"):
        if blob.is_dir() or not _BLOB.fullmatch(blob.name):
            yield blob
    for ref in _inside(folder / "refs"):
        if ref.is_symlink() or (ref.is_file() and not _COMMIT.fullmatch(ref.read_text(errors="replace").strip())):
            yield ref
    for note in _inside(folder / ".no_exist"):
        if note.is_symlink() or (note.is_file() and note.stat().st_size):
            yield note
    yield from _foreign_links(folder, folder / "snapshots")


def _inside(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*")) if folder.is_dir() else []


def _foreign_links(folder: Path, snapshots: Path) -> Iterator[Path]:
    """What lies in snapshots and is no link to a blob of this repository. A file system without links has files."""
    has_links = any(path.is_symlink() for path in _inside(folder / "snapshots"))
    for path in [snapshots] if snapshots.is_symlink() or snapshots.is_file() else _inside(snapshots):
        if path.is_symlink():
            if (path.parent / path.readlink()).parent.resolve() != (folder / "blobs").resolve():
                yield path
        elif path.is_file() and has_links:
            yield path


def _check_links(folder: Path, path: Path) -> None:
    for foreign in _foreign_links(folder, path):
        raise RequestError(f"{foreign} is no link of the hub's client to a blob of its repository: nothing is deleted")
