"""Digests of a model's files, which tell models apart: of samples of each file, or of every byte.

"sampled" takes milliseconds: of each file it reads the size, the first 8 MiB (headers, and the tokenizer of a GGUF
file) and 256 pages spread over the rest. It tells models, trainings and quantisations apart, since they differ in
every page, but may miss a single matrix that was edited in place. "full" reads every byte, at the speed of the disk.

Receipts have the sha256 of each file. The files are read when the first receipt is made or checked, at some 1.5 GB/s,
and only once. A file that has changed since the model was loaded is refused: a receipt would name other weights than
the weights that computed the text.
"""

import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path

from tokenmill.errors import CheckpointError, ReceiptError, file_errors
from tokenmill.hub.weight_files import shards_of
from tokenmill.text.templates import FOLDER

HEAD, PAGE, PAGES = 8 << 20, 4096, 256
FULL = "full "  # begins the digests of all bytes, which digests of samples never equal
OTHER_TOKENIZER = "tokenizer of "
"""This stands before the names of the files of a tokenizer that is another model's."""

READERS = 4
"""Files that are read at the same time."""
FILES = {
    "config": ("config.json", "generation_config.json", "quantize_config.json", "quant_config.json", "params.json"),
    "weights": ("*.safetensors", "*.bin", "*.pth", "*.index.json"),
    "tokenizer": (
        "tokenizer*",
        "vocab.json",
        "vocab.txt",
        "merges.txt",
        "special_tokens_map.json",
        "added_tokens.json",
        "chat_template.jinja",
        "tekken.json",
    ),
}


def fingerprint(path: Path, how: str = "sampled") -> dict[str, str]:
    """Compute digests of config, weights and tokenizer, 16 hexadecimal digits each, of the checkpoint at `path`.

    A `.gguf` file holds all three and has one digest, of all parts if it is one of several. CheckpointError where a
    file cannot be read.
    """
    with file_errors(path, "read"):
        named = not path.is_file()  # a directory's files are found by their names; a GGUF file may have any
        return {part: _digest(files, how, named) for part, files in files_of(path).items()}


def files_of(path: Path) -> dict[str, list[Path]]:
    """List the files of the checkpoint at `path`, by part.

    CheckpointError for a file that is a link to nothing, as in a cache whose files were deleted.
    """
    if path.is_file():  # a GGUF file may be one of several parts, whatever its suffix
        names = shards_of(path.name)
        return {"weights": [file for file in map(path.with_name, names) if file == path or file.is_file()]}
    if not path.exists():  # a shape with random weights has no files
        return {part: [] for part in FILES}
    with file_errors(path, "read"):
        # A link to nothing, which Path.glob does not find, is refused below; a pipe would be waited for.
        entries = [entry for entry in path.iterdir() if entry.is_file() or not entry.exists()]
        folder = path / FOLDER
        templates = [entry for entry in folder.iterdir() if not entry.is_dir()] if folder.is_dir() else []
    found = {part: sorted(f for f in entries if any(map(f.match, names))) for part, names in FILES.items()}
    present = {entry.name for entry in entries}
    if "params.json" in present and not present & {"config.json", "tekken.json"}:
        found["tokenizer"] += [file for file in meta_tokenizers(path) if file.name not in present]
    found["tokenizer"] += sorted(file for file in templates if file.suffix == ".jinja")
    for file in (file for files in found.values() for file in files):
        if file.is_symlink() and not file.exists():
            raise CheckpointError(f"{file} is a link to {file.readlink()}, which does not exist")
    return found


def meta_tokenizers(path: Path) -> list[Path]:
    """Find the tokenizer's files of a directory in Meta's own layout. Older downloads have them beside the
    directory.
    """
    own = sorted(path.glob("tokenizer.model*"))
    return own or sorted(path.resolve().parent.glob("tokenizer.model"))


def is_full(digests: Mapping[str, str]) -> bool:
    """Tell whether every byte was read for these digests."""
    return any(str(digest).startswith(FULL) for digest in digests.values())


def _digest(files: list[Path], how: str, named: bool) -> str:
    digest = hashlib.sha256()
    for file in files:  # without their folder: a model may be moved
        size = file.stat().st_size
        digest.update(f"{file.name if named else file.suffix} {size}\n".encode())
        with file.open("rb") as opened:
            if how == "full":
                while part := opened.read(HEAD):
                    digest.update(part)
                continue
            digest.update(opened.read(HEAD))
            for page in range(PAGES if size > HEAD else 0):
                opened.seek(HEAD + (size - HEAD) * page // PAGES)
                digest.update(opened.read(PAGE))
    return (FULL if how == "full" else "") + digest.hexdigest()[:16]


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
                found = dict(zip(self._files, readers.map(_sha256, self._files.values()), strict=True))
            except OSError as error:
                raise ReceiptError(f"{error.filename} cannot be read any more: {error.strerror}") from None
        if changed := [name for name, state in self._now().items() if state != self._states[name]]:
            raise ReceiptError(f"{' and '.join(changed)} of the model changed since it was loaded: load it again")
        return found

    @property
    def have_changed(self) -> bool:
        """Tell whether a file was written or replaced since, or is gone. No file is read."""
        return self._now() != self._states

    def _now(self) -> dict[str, tuple[int, ...] | None]:
        return {name: file_state(file) for name, file in self._files.items()}


def file_state(file: Path) -> tuple[int, ...] | None:
    """Return place, size and times of a file, which change when it is written or replaced; None where there is none."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _sha256(file: Path) -> str:
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
