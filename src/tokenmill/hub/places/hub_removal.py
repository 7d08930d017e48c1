"""Models deleted from the cache of Hugging Face's client, by the client's own `delete_revisions` and `delete_files`."""

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from tokenmill.errors import RequestError
from tokenmill.hub.places.entry import FoundModel, real_path, reason_of
from tokenmill.hub.places.hub_cache import hub_folder, scan
from tokenmill.hub.places.removal import Removal


def remove_from_hub(entries: list[FoundModel], is_whole: bool) -> Removal:
    """Find what the client deletes for the entries of one repository, or for all of the repository.

    Snapshots go where all of their files are named. Of other snapshots the named files go, and the rest stays.
    """
    repository, named = repository_of(entries[0]), {path for entry in entries for path in entry.files}
    try:
        found = scan()
    except OSError as error:
        raise RequestError(f"{hub_folder()} cannot be read: {reason_of(error)}") from error
    repos = [each for each in (found.repos if found else ()) if (each.repo_id, each.repo_type) == (repository, "model")]
    if found is None or not repos:
        raise RequestError(f"{repository} is no repository that the hub's client recognises in {hub_folder()}")
    # With this repository alone: another one may have a snapshot of the same commit.
    alone, revisions = replace(found, repos=frozenset(repos)), repos[0].revisions
    files = [file for each in revisions for file in each.files if is_whole or file.file_path in named]
    whole = [each for each in revisions if is_whole or (each.files and each.files <= set(files))]
    if not whole and not hasattr(alone, "delete_files"):
        raise RequestError(f"this client of the hub deletes whole snapshots alone: `tokenmill rm {repository}`")
    if whole and not set(files) <= {file for each in whole for file in each.files}:
        raise RequestError(f"{repository} has several snapshots of this: delete them one by one")
    strategy = alone.delete_revisions(*(each.commit_hash for each in whole)) if whole else alone.delete_files(*files)
    cache = real_path(hub_folder())
    if strays := [blob for blob in strategy.blobs if cache not in blob.parents]:
        raise RequestError(f"{repository} has a link to {strays[0]}, which is not in {cache}: move the link away first")
    paths = tuple(sorted({*strategy.repos, *strategy.snapshots, *getattr(strategy, "files", ())}))
    blobs = tuple({real_path(file.file_path) for file in files})
    return Removal(repository, paths, blobs, strategy.expected_freed_size, lambda: _run(strategy.execute, paths))


def repository_of(entry: FoundModel) -> str:
    """The repository of an entry: its name is owner/name:file, owner/name/tree/commit, owner/name/blob/commit/file."""
    return re.split(r":|/tree/|/blob/", entry.name)[0]


def _run(execute: Callable[[], None], paths: Iterable[Path]) -> None:
    """Delete. RequestError for what is still there: the client logs what it cannot delete, and goes on."""
    execute()
    if left := [str(path) for path in paths if path.exists() or path.is_symlink()]:
        raise RequestError(f"{', '.join(left[:3])} could not be deleted: who may write there must do it")
