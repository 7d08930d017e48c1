"""The files of a loaded model, and the sha256 of each, which receipts have.

The files are read when the first receipt is made or checked, at some 1.5 GB/s, and only once. A file that has changed
since the model was loaded is refused: a receipt would name other weights than the weights that computed the text.
"""

import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path

from tokenmill.errors import ReceiptError
from tokenmill.weights.fingerprint import files_of

OTHER_TOKENIZER = "tokenizer of "
"""This stands before the names of the files of a tokenizer that is another model's."""

READERS = 4
"""Files that are read at the same time."""


class ModelFiles:
    """The files of the model at a path, under the names that receipts give them, with their states at this moment.

    tokenizer: the path of another model whose tokenizer is used.
    """

    def __init__(self, path: Path, tokenizer: Path | None = None) -> None:
        self._files = {file.name: file for part in files_of(path).values() for file in part}
        if tokenizer is not None:
            parts = files_of(tokenizer)
            found = parts.get("tokenizer", parts["weights"])  # a GGUF file has both
            self._files |= {f"{OTHER_TOKENIZER}{file.name}": file for file in found}
        self._states = self._now()

    @cached_property
    def digests(self) -> Mapping[str, str]:
        """The sha256 of each file in hexadecimal digits, by its name. ReceiptError if one has changed or is gone."""
        with ThreadPoolExecutor(READERS) as readers:
            try:
                found = dict(zip(self._files, readers.map(_digest, self._files.values()), strict=True))
            except OSError as error:
                raise ReceiptError(f"{error.filename} cannot be read any more: {error.strerror}") from None
        if changed := [name for name, state in self._now().items() if state != self._states[name]]:
            raise ReceiptError(f"{' and '.join(changed)} of the model changed since it was loaded: load it again")
        return found

    def _now(self) -> dict[str, tuple[int, ...] | None]:
        return {name: _state(file) for name, file in self._files.items()}


def _state(file: Path) -> tuple[int, ...] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def difference(theirs: Mapping[str, str], ours: Mapping[str, str]) -> str | None:
    """Say which files differ; None if all are the same. Where names differ, contents decide: a file may be renamed."""
    is_renamed = theirs.keys() != ours.keys() and sorted(theirs.values()) == sorted(ours.values())
    if theirs == ours or is_renamed:
        return None
    if len(theirs) == len(ours) == 1:
        ((name, digest),), ((_, found),) = theirs.items(), ours.items()
        return f"{name} has other contents: sha256 {_short(digest)} claimed, {_short(found)} here"
    parts = [f"{name} is not here" for name in theirs if name not in ours]
    parts += [f"{name} is not in the receipt" for name in ours if name not in theirs]
    for name in theirs:
        if name in ours and theirs[name] != ours[name]:
            parts.append(f"{name} has other contents: sha256 {_short(theirs[name])} claimed, {_short(ours[name])} here")
    return "; ".join(parts)


def _short(digest: str) -> str:
    return f"{digest[:12]}…"
