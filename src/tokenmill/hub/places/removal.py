"""Models that `tokenmill rm` deletes: what a name means, and the deletion of a file that tokenmill has fetched."""

import fcntl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from tokenmill.errors import RequestError
from tokenmill.hub.download import cache_folder, sha256_of
from tokenmill.hub.names import nearest
from tokenmill.hub.places.entry import FOLDER, HUB, OURS, FoundModel, reason_of
from tokenmill.hub.short_names import HUB_NAMES, SHORT_NAMES
from tokenmill.value_reader import with_home


@dataclass(frozen=True)
class Removal:
    """A deletion of one name. paths: as they are told. files: that a process may use. run: deletes them."""

    name: str
    paths: tuple[Path, ...]
    files: tuple[Path, ...]
    num_bytes: int
    run: Callable[[], None]


def entries_named(name: str, entries: Sequence[FoundModel]) -> list[FoundModel]:
    """Find the entries that a name means: one, or all of a repository of the hub.

    RequestError for a name that means none or several, which lists them.
    """
    typed = HUB_NAMES[name].hub_name if name in HUB_NAMES else name
    path = with_home(typed)
    exact = [each for each in entries if typed == each.name] or [each for each in entries if path == each.path]
    if len(exact) > 1:
        raise RequestError(f"{name} is ambiguous: {_listed(exact)}")
    of_repository = [each for each in entries if each.origin == HUB and each.repository == typed]
    if exact and not (of_repository and exact[0] in of_repository):
        return exact
    if of_repository:
        return of_repository
    ends = {each.repository: each for each in entries if typed.lower() in _ends(each)}
    if len(ends) > 1:
        raise RequestError(f"{name} is ambiguous: {_listed(list(ends.values()))}; give one of these names in full")
    near = next(iter(ends), "") or nearest(name, [each.name for each in entries])
    hint = f" (did you mean {near!r}?)" if near else ""
    raise RequestError(f"'{name}' is no model on this machine{hint}: `tokenmill list` shows all")


def remove_own(entry: FoundModel) -> Removal:
    """Plan the deletion of a model that tokenmill fetched. Its sha256 proves that now, and before the deletion."""
    model, path = SHORT_NAMES[entry.name], cache_folder() / SHORT_NAMES[entry.name].file_name

    def check() -> None:
        _check_own(entry.name, path, model.sha256)

    check()
    return Removal(entry.name, (path,), (path,), path.stat().st_size, lambda: _unlink(path, check))


def _check_own(name: str, path: Path, sha256: str) -> None:
    """Raise RequestError for a file that tokenmill has not fetched."""
    by_hand = f"`rm {quote(str(path))}`"
    if path.is_symlink() or not path.is_file():
        raise RequestError(f"{path} is no regular file, so tokenmill has not fetched it: {by_hand} deletes it")
    try:
        digest = sha256_of(path)
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {reason_of(error)}") from error
    if digest != sha256:
        raise RequestError(f"{path} has sha256 {digest}, unlike {name}, so it is not deleted: {by_hand} does")


def refuse_others(entry: FoundModel) -> None:
    """Raise RequestError for what tokenmill does not delete, with the command that does."""
    if not entry.elsewhere:
        return
    if entry.origin in (OURS, HUB):
        why = entry.problem or entry.note
    else:
        why = "lies in a folder of yours" if entry.origin == FOLDER else f"belongs to {entry.origin}"
    raise RequestError(f"{entry.name} {why}, and tokenmill does not delete it; `{entry.elsewhere}` does")


def _unlink(path: Path, check: Callable[[], None]) -> None:
    """Delete a fetched file while nobody fetches it, if it still is what it was."""
    lock = path.with_name(f".{path.name}.lock")
    try:
        with lock.open("a") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            check()
            path.unlink(missing_ok=True)
            lock.unlink(missing_ok=True)
    except BlockingIOError:
        raise RequestError(f"{path.name} is being fetched by another process: wait, or end it") from None
    except OSError as error:
        raise RequestError(f"{path} cannot be deleted: {reason_of(error)}") from error


def _ends(entry: FoundModel) -> set[str]:
    """Return the parts of a name that a person may type for an entry, in small letters."""
    name, file = entry.repository.lower(), entry.name.lower().rpartition("/")[2]
    ends = {name.rpartition("/")[2], name.partition(":")[2], file, file.partition(":")[2], file.removesuffix(".gguf")}
    return ends - {""}


def _listed(entries: Sequence[FoundModel]) -> str:
    return " or ".join(f"{entry.name} (in {entry.place})" for entry in entries)
