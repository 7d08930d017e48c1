"""Models deleted from the cache of Hugging Face's client, by the client itself, where all that goes is its own.

The client deletes a repository as a folder, with whatever lies in it. So its layout is compared first (`hub_layout`),
and anything that is not provably the client's refuses it.
"""

import fcntl
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from huggingface_hub import CachedFileInfo, CachedRepoInfo, CachedRevisionInfo, HFCacheInfo

from tokenmill.errors import RequestError
from tokenmill.hub.places.entry import FoundModel, real_path, reason_of
from tokenmill.hub.places.hub_cache import hub_folder, scan
from tokenmill.hub.places.hub_layout import check_layout, check_links
from tokenmill.hub.places.removal import Removal

_BESIDE_WEIGHTS = re.compile(
    r".*\.(json|jsonl|jinja|md|txt|py)|tokenizer\.model|vocab\.\w+|merges\.\w+|\.gitattributes|\.gitignore"
    r"|(LICEN[CS]E|NOTICE|README|USE_POLICY)[\w.-]*",
    re.IGNORECASE,
)
"""Files that serve whatever weights lie beside them. All others may be weights, and count as such."""


class _Planned(NamedTuple):
    """state: of all that would go. execute: the client's deletion of it."""

    paths: tuple[Path, ...]
    files: tuple[Path, ...]
    num_bytes: int
    state: frozenset[tuple[object, ...]]
    execute: Callable[[], None]


def remove_from_hub(entries: list[FoundModel], is_whole: bool) -> Removal:
    """What would be deleted for the entries of one repository, or for all of it; RequestError for what may not be the
    client's own. All of it is looked at once more when it is deleted, since people take their time to answer.
    """
    repository = repository_of(entries[0])
    planned = _planned(repository, entries, is_whole)

    def check() -> None:
        if _planned(repository, entries, is_whole).state != planned.state:
            raise RequestError(f"{repository} is no longer what it was when this was asked: nothing of it is deleted")

    def run() -> None:
        with _locked(repository):
            check()
            planned.execute()
        _refuse_what_is_left(planned.paths)

    return Removal(repository, planned.paths, planned.files, planned.num_bytes, check, run)


def _planned(repository: str, entries: list[FoundModel], is_whole: bool) -> _Planned:
    try:
        found = scan()
        repos = [
            repo for repo in (found.repos if found else ()) if (repo.repo_id, repo.repo_type) == (repository, "model")
        ]
        if found is None or not repos:
            raise RequestError(f"{repository} is no repository that the hub's client recognises in {hub_folder()}")
        # With this repository alone: another one may have a snapshot of the same commit.
        alone, repo = replace(found, repos=frozenset(repos)), repos[0]
        if repo.repo_path.is_symlink():
            raise RequestError(f"{repo.repo_path} is a link, which the hub's client has not made: nothing is deleted")
        with _locked(repository):
            pass
        files = {path for entry in entries for path in entry.files}
        whole = [rev for rev in repo.revisions if not _others(rev, files)]
        if not is_whole and any((repo.repo_path / "blobs").glob("*incomplete")):
            whole = []  # what was begun to be fetched is of other weights, and stays
        if is_whole or len(whole) == len(repo.revisions):
            return _of_repository(alone, repo)
        return _of_parts(alone, repo, whole, files)
    except OSError as error:
        raise RequestError(f"{hub_folder()} cannot be read: {reason_of(error)}") from error


def repository_of(entry: FoundModel) -> str:
    """The repository of an entry: its name is owner/name:file, owner/name/tree/commit, owner/name/blob/commit/file."""
    return re.split(r":|/tree/|/blob/", entry.name)[0]


def _others(revision: CachedRevisionInfo, files: set[Path]) -> list[Path]:
    """What a revision has beside files that are to go and what serves any weights, such as its config: with nothing of
    that, the rest of the revision goes as well.
    """
    others = [each for each in revision.files if each.file_path not in files]
    return [each.file_path for each in others if not _BESIDE_WEIGHTS.fullmatch(each.file_name)]


def _of_repository(alone: HFCacheInfo, repo: CachedRepoInfo) -> _Planned:
    check_layout(repo.repo_path)
    strategy = alone.delete_revisions(*(revision.commit_hash for revision in repo.revisions))
    below = sorted(repo.repo_path.rglob("*"))
    there = tuple(path for path in below if path.is_file() and not path.is_symlink())
    num_bytes = sum(path.stat().st_size for path in there)
    return _Planned((repo.repo_path,), there, num_bytes, _state_of(below), strategy.execute)


def _of_parts(alone: HFCacheInfo, repo: CachedRepoInfo, whole: list[CachedRevisionInfo], files: set[Path]) -> _Planned:
    """Revisions of which nothing is left, or single files of others."""
    parts = [each for revision in repo.revisions if revision not in whole for each in _given(revision, files)]
    if whole and parts:
        raise RequestError(f"{repo.repo_id} has several snapshots of this: delete them one by one")
    for path in [each.snapshot_path for each in whole] or [each.file_path for each in parts]:
        check_links(repo.repo_path, path)
    if whole:
        strategy = alone.delete_revisions(*(revision.commit_hash for revision in whole))
        gone = [each.file_path for revision in whole for each in revision.files]
    elif hasattr(alone, "delete_files"):
        strategy, gone = alone.delete_files(*parts), [each.file_path for each in parts]
    else:
        raise RequestError(f"this client of the hub deletes whole snapshots alone: `tokenmill rm {repo.repo_id}`")
    blobs = tuple(real_path(path) for path in gone)
    inside = [path for each in whole for path in each.snapshot_path.rglob("*")]
    state = _state_of({*gone, *inside, *strategy.blobs})
    return _Planned(tuple(gone), blobs, strategy.expected_freed_size, state, strategy.execute)


def _given(revision: CachedRevisionInfo, files: set[Path]) -> list[CachedFileInfo]:
    return [each for each in revision.files if each.file_path in files]


def _state_of(paths: Iterable[Path]) -> frozenset[tuple[object, ...]]:
    """What tells files from others that are put in their place, and from themselves when they are changed."""
    status = [(path, path.lstat()) for path in paths]
    return frozenset((path, each.st_mode, each.st_ino, each.st_size, each.st_mtime_ns) for path, each in status)


def _refuse_what_is_left(paths: Iterable[Path]) -> None:
    """RequestError for what is still there: the client logs what it cannot delete, and goes on."""
    if left := [str(path) for path in paths if path.exists() or path.is_symlink()]:
        raise RequestError(f"{', '.join(left[:3])} could not be deleted: who may write there must do it")


@contextmanager
def _locked(repository: str) -> Iterator[None]:
    """Hold the locks of a repository's files; RequestError where another process has one."""
    folder = hub_folder() / ".locks" / f"models--{repository.replace('/', '--')}"
    with ExitStack() as stack:
        for lock in sorted(folder.glob("*.lock")):
            try:
                if lock.is_file():  # a pipe would be waited for
                    fcntl.flock(stack.enter_context(lock.open("rb")), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RequestError(f"{repository} is being fetched by another process: wait, or end it") from None
            except OSError:
                continue
        yield
