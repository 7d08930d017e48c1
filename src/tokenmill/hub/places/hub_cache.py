"""Models in the cache of Hugging Face's client: models--OWNER--NAME with blobs, refs and snapshots of links to blobs.

The client itself scans it (`scan_cache_dir`), and deletes from it (`delete_revisions` and `delete_files`).
"""

import errno
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from shlex import join, quote

from huggingface_hub import CachedRepoInfo, CachedRevisionInfo, HFCacheInfo, constants, scan_cache_dir
from huggingface_hub.errors import CacheNotFound, CorruptedCacheException

from tokenmill.errors import RequestError
from tokenmill.hub.places.entry import HUB, FoundModel, is_folder, real_path, reason_of
from tokenmill.hub.places.removal import Removal
from tokenmill.hub.weight_files import find_weights, holds_adapter, missing_of_adapter, missing_shards, shards_of
from tokenmill.value_reader import with_home

MAIN = "main"


def hub_folder() -> Path:
    """Name the cache: HF_HUB_CACHE, else below HF_HOME, else in ~/.cache/huggingface, as the client has it."""
    return with_home(constants.HF_HUB_CACHE)


def scan() -> HFCacheInfo | None:
    """Have the client scan its cache; None where there is no cache. OSError where it may not, or cannot, be read."""
    if not is_folder(hub_folder()):
        return None
    for ref in (ref for folder in hub_folder().iterdir() if "--" in folder.name for ref in _refs(folder)):
        if why := _unreadable(ref):  # the client would wait for a pipe, and fail for all where one is no text
            raise OSError(errno.EINVAL, f"{ref} {why}; `rm {quote(str(ref))}` deletes it")
    try:
        return scan_cache_dir(hub_folder())
    except CacheNotFound:
        return None


def all_entries() -> Iterator[FoundModel]:
    """Yield the models of all repositories, and repositories that are damaged or hold no model."""
    try:
        found = scan()
    except OSError as error:
        yield FoundModel(str(hub_folder()), HUB, hub_folder(), problem=f"cannot be read: {reason_of(error)}")
        return
    if found is None:
        return
    for warning in found.warnings:
        yield _damaged(warning)
    for repository in sorted(found.repos, key=lambda each: each.repo_id):
        if repository.repo_type == "model":
            yield from _entries(repository)


def _damaged(warning: CorruptedCacheException) -> FoundModel:
    """Describe a repository whose layout the client does not recognise."""
    said, root = " ".join(str(warning).split()), real_path(hub_folder())
    named = [folder for folder in root.iterdir() if str(folder) in said]
    folder = max(named, key=lambda each: len(each.name), default=root)
    name = folder.name.removeprefix("models--").replace("--", "/") if named else str(root)
    why = f"is damaged in the hub's cache: {said}"
    snapshots, remove = folder / "snapshots", f"rm -r {quote(str(folder))}" if named else ""
    dangling = [ref for ref in _refs(folder) if not (snapshots / ref.read_text().strip()).is_dir()] if named else []
    if dangling and "Reference(s)" in said:  # it is loaded all the same
        mend = join(["rm", *map(str, dangling)])
        return FoundModel(name, HUB, hub_folder(), problem=f"{why}; `{mend}` mends it", elsewhere=remove)
    return FoundModel(name, HUB, hub_folder(), problem=why, elsewhere=remove)


def _refs(folder: Path) -> list[Path]:
    """List the refs of a repository: what is no folder in its folder of refs, as the client looks for them."""
    return sorted(path for path in (folder / "refs").glob("**/*") if not path.is_dir() and path.name != ".DS_Store")


def _unreadable(ref: Path) -> str:
    """Say why a ref cannot be read; "" where it can."""
    if not ref.is_file():
        return "is no regular file"
    try:
        ref.read_text()
    except ValueError:
        return "is no text"
    return ""


def _entries(repository: CachedRepoInfo) -> Iterator[FoundModel]:
    revisions = sorted(repository.revisions, key=lambda each: (MAIN not in each.refs, each.commit_hash))
    if not revisions:
        problem = "has no snapshot in the hub's cache: a fetch of it was begun, or its files were deleted"
        remove = f"rm -r {quote(str(repository.repo_path))}"
        yield FoundModel(repository.repo_id, HUB, hub_folder(), problem=problem, elsewhere=remove)
    for revision in revisions:
        yield from _models(repository.repo_id, revision)


def _models(name: str, revision: CachedRevisionInfo) -> Iterator[FoundModel]:
    """Yield the model in safetensors or `.bin` of a snapshot, or its adapter, and each of its GGUF files."""
    files = {file.file_path.relative_to(revision.snapshot_path).as_posix(): file.file_path for file in revision.files}
    is_main, commit = MAIN in revision.refs, revision.commit_hash
    whole = name if is_main else f"{name}/tree/{commit}"
    weights = find_weights([file for file in files if "/" not in file])
    others = tuple(path for file, path in files.items() if not file.endswith(".gguf"))
    firsts = _first_parts(files)
    is_adapter = holds_adapter(files)
    if is_adapter or ("config.json" in files and weights.files):
        missing = missing_of_adapter(files) if is_adapter else missing_shards(weights.files)
        again = f"hf download {name}" if is_adapter else f"tokenmill pull {name}"
        problem = f"lacks {', '.join(missing)} in the hub's cache: `{again}` goes on" * bool(missing)
        path = None if missing else revision.snapshot_path
        yield FoundModel(whole, HUB, hub_folder(), path, others, problem, commit=commit, is_adapter=is_adapter)
    elif not firsts:
        problem = "holds no weights in the hub's cache, only " + (", ".join(sorted(files)[:5]) or "an empty snapshot")
        yield FoundModel(whole, HUB, hub_folder(), None, others, problem, commit=commit)
    for first in firsts:
        parts = [part for part in shards_of(first) if part in files]
        missing = [part for part in shards_of(first) if part not in files]
        typed = f"{name}:{first}" if is_main else f"{name}/blob/{commit}/{first}"
        problem = f"lacks {', '.join(missing)} in the hub's cache" * bool(missing)
        paths = tuple(files[part] for part in parts)
        yield FoundModel(typed, HUB, hub_folder(), None if missing else paths[0], paths, problem, commit=commit)


def _first_parts(files: Iterable[str]) -> list[str]:
    """Name the first parts of all models in GGUF files, also of a model that lacks its first part."""
    ggufs = [file for file in files if file.endswith(".gguf") and not file.rpartition("/")[2].startswith("mmproj")]
    return sorted({shards_of(file)[0] for file in ggufs})


def remove_from_hub(entries: list[FoundModel], is_whole: bool) -> Removal:
    """Find what the client deletes for the entries of one repository, or for all of the repository.

    Snapshots go where all of their files are named. Of other snapshots the named files go, and the rest stays.
    """
    repository, named = entries[0].repository, {path for entry in entries for path in entry.files}
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


def _run(execute: Callable[[], None], paths: Iterable[Path]) -> None:
    """Delete. RequestError for paths that are still there: the client logs what it cannot delete, and goes on."""
    execute()
    if left := [str(path) for path in paths if path.exists() or path.is_symlink()]:
        raise RequestError(f"{', '.join(left[:3])} could not be deleted: who may write there must do it")
