"""Digests of a model's files, which tell models apart: of samples of each file, or of every byte.

"sampled" takes milliseconds: of each file it reads the size, the first 8 MiB (headers, and the tokenizer of a GGUF
file) and 256 pages spread over the rest. It tells models, trainings and quantisations apart, since those differ in
every page, but may miss a single matrix that was edited in place. "full" reads every byte, at the speed of the disk.
"""

import hashlib
from pathlib import Path

from tokenmill.errors import CheckpointError, file_errors
from tokenmill.hub.weight_files import shards_of
from tokenmill.text.templates import FOLDER

HEAD, PAGE, PAGES = 8 << 20, 4096, 256
FULL = "full "  # begins the digests of all bytes, which digests of samples never equal
FILES = {
    "config": ("config.json", "generation_config.json", "quantize_config.json", "quant_config.json", "params.json"),
    "weights": ("*.safetensors", "*.bin", "*.pth", "*.index.json"),
    "tokenizer": (
        "tokenizer*",
        "vocab.json",
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


def is_full(digests: dict[str, str]) -> bool:
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
