"""The folders of a prefix store, as they lie on disk: the model of each, its size, and its deletion. No torch.

Each folder holds the blocks of one compatibility header, and a note of the model that computed them, for people: a
store does not read it, and folders of older versions have no note.
"""

import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tokenmill.cache.header import FRONT, begins_with
from tokenmill.memory.atomic_file import seal, unseal, writing
from tokenmill.memory.bounded_folder import BoundedFolder

BLOCKS = re.compile(r"[0-9a-f]{16}/[0-9a-f]{32}\.kv")
LOCK = ".tokenmill-blocks"
OWN_FRONT = FRONT + rb"\"block\": "
"""The begin of a block: its name."""
NOTE, FORMAT = ".model.json", 1
_FOLDER = re.compile("[0-9a-f]{16}")


class PrefixFolder(NamedTuple):
    """A folder. model: the path of the blocks' model, as the note says; "" without a note."""

    path: Path
    model: str
    num_blocks: int
    num_bytes: int


def is_block(path: Path) -> bool:
    """Say whether a store has written the file: it begins as a block does."""
    return begins_with(path, OWN_FRONT)


def blocks_folder(root: Path, limit_bytes: float = float("inf")) -> BoundedFolder:
    """Make the folder of the blocks below a directory, of all models."""
    return BoundedFolder(root, "blocks", BLOCKS, is_block, limit_bytes, LOCK, in_folders=True)


def note_model(folder: Path, model: str) -> bool:
    """Note in a folder of blocks their model; True if that is new. If it fails, only a name is lost."""
    if (folder / NOTE).exists():
        return False
    try:
        with writing(folder / NOTE, sync=False) as out:
            out.write(seal({"model": model}, FORMAT).encode())
    except OSError:
        return False
    return True


def prefix_folders(root: Path) -> list[PrefixFolder]:
    """List the folders below a directory that hold blocks, or a note; empty where it cannot be read."""
    found: dict[Path, list[int]] = {}
    with suppress(OSError):
        for folder in sorted(root.iterdir()) if root.is_dir() else ():
            if _FOLDER.fullmatch(folder.name) and folder.is_dir() and (folder / NOTE).is_file():
                found[folder] = []
        for file in blocks_folder(root).files():
            found.setdefault(file.path.parent, []).append(file.num_bytes)
    return [PrefixFolder(folder, _model_of(folder), len(sizes), sum(sizes)) for folder, sizes in found.items()]


def delete_blocks(folder: PrefixFolder) -> None:
    """Delete the blocks of one folder, its note, and the folder if nothing else is in it; OSError."""
    for file in blocks_folder(folder.path.parent).files():
        if file.path.parent == folder.path:
            file.path.unlink(missing_ok=True)
    if _model_of(folder.path):
        (folder.path / NOTE).unlink(missing_ok=True)
    with suppress(OSError):  # other files are in it
        folder.path.rmdir()


def _model_of(folder: Path) -> str:
    try:
        return str(unseal((folder / NOTE).read_bytes(), FORMAT)["model"])
    except (OSError, ValueError, KeyError):
        return ""
