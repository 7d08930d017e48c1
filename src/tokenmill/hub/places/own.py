"""Models that tokenmill has fetched into its own cache folder, and other model files that lie there."""

from collections.abc import Iterator
from pathlib import Path
from shlex import quote

from tokenmill.hub.download import Packaged, cache_folder
from tokenmill.hub.places.entry import OURS, FoundModel, is_folder, real_path, reason_of, shown
from tokenmill.hub.short_names import SHORT_NAMES


def all_entries() -> Iterator[FoundModel]:
    """What lies at the top of the cache folder: other programs' files in it are told apart from ours."""
    folder = cache_folder()
    ours = {model.file_name: (name, model) for name, model in SHORT_NAMES.items()}
    try:
        paths = sorted(folder.iterdir()) if is_folder(folder) else []
    except OSError as error:
        yield FoundModel(str(folder), OURS, folder, problem=f"cannot be read: {reason_of(error)}")
        return
    for path in paths:
        if path.name in ours:
            yield _fetched(folder, path, *ours[path.name])
        elif path.suffix == ".gguf" and not path.name.startswith("."):
            note = "lies in the cache folder of tokenmill, which has not fetched it"
            yield FoundModel(shown(path), OURS, folder, path, (path,), note=note, elsewhere=f"rm {quote(str(path))}")


def _fetched(folder: Path, path: Path, name: str, model: Packaged) -> FoundModel:
    wanted = model.num_bytes
    try:
        there = path.stat().st_size
    except OSError as error:
        problem = f"is {path}, which cannot be read: {reason_of(error)}"
        return FoundModel(name, OURS, folder, None, (path,), problem, elsewhere=f"rm {quote(str(path))}")
    if there != wanted:
        problem = f"is {path} of {there:,} bytes, and has {wanted:,}: `tokenmill pull {name}` fetches it again"
        return FoundModel(name, OURS, folder, None, (path,), problem, elsewhere=f"rm {quote(str(path))}")
    note = f"is a link to {real_path(path)}" if path.is_symlink() else ""
    return FoundModel(
        name, OURS, folder, path, (path,), note=note, elsewhere=f"rm {quote(str(path))}" if path.is_symlink() else ""
    )
