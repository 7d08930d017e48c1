"""Whether two checkpoints hold the same model, told in milliseconds.

Files are compared by size, the first 8 MiB (headers, and a GGUF's tokenizer) and 256 pages spread over the rest:
another training shows in every page, one changed number may not.
"""

import hashlib
from pathlib import Path

from tokenmill.errors import CheckpointError

__all__ = ["fingerprint"]

HEAD, PAGE, PAGES = 8 << 20, 4096, 256
FILES = {
    "config": ("config.json", "generation_config.json", "quantize_config.json"),
    "weights": ("*.safetensors", "*.bin"),
    "tokenizer": ("tokenizer*", "vocab.json", "merges.txt", "special_tokens_map.json", "chat_template.jinja"),
}


def fingerprint(path: Path) -> dict[str, str]:
    """Digests of config, weights and tokenizer, 16 hexadecimal digits each, of the checkpoint at `path`.

    Of a `.gguf` file, which holds all three, one. CheckpointError where it cannot be read.
    """
    try:
        if path.is_file():
            return {"weights": _digest([path])}
        found = {part: sorted(f for name in names for f in path.glob(name)) for part, names in FILES.items()}
        return {part: _digest(files) for part, files in found.items()}
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error


def _digest(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:  # not by name: a model may be moved
        size = file.stat().st_size
        digest.update(f"{file.suffix} {size}\n".encode())
        with file.open("rb") as opened:
            digest.update(opened.read(HEAD))
            for page in range(PAGES if size > HEAD else 0):
                opened.seek(HEAD + (size - HEAD) * page // PAGES)
                digest.update(opened.read(PAGE))
    return digest.hexdigest()[:16]
