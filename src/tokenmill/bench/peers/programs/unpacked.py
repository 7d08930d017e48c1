"""A model as a plain Hugging Face folder, for engines that read no GGUF: made once, kept with the environment."""

import hashlib
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

KEPT = Path(sys.prefix) / "converted"


def plain_folder(model: str) -> Path:
    """Return the model's folder; for a GGUF file a folder that transformers dequantised, in bfloat16."""
    path = Path(model)
    return kept_folder(path, "plain", lambda folder: _dequantise(path, folder)) if path.is_file() else path


def gguf_arguments(file: Path) -> dict[str, Any]:
    """Return arguments of transformers' from_pretrained by which the weights come as plain matrices."""
    import transformers  # noqa: PLC0415  (as below)

    if not hasattr(transformers, "GgufConfig"):
        return {"gguf_file": file.name}
    # Newer versions would keep the weights packed, which is 20 times slower on a CPU and cannot be saved.
    return {"gguf_file": file.name, "quantization_config": transformers.GgufConfig(dequantize=True)}


def kept_folder(model: Path, kind: str, make: Callable[[Path], object]) -> Path:
    """Return the folder that `make` fills for this very file; it is complete or absent."""
    state = model.stat()
    which = f"{model.resolve()} {state.st_size} {state.st_mtime_ns}"
    folder = KEPT / f"{kind}-{hashlib.sha256(which.encode()).hexdigest()[:16]}"
    partial = folder.with_suffix(f".{os.getpid()}")
    if not folder.exists():
        partial.mkdir(parents=True)
        try:
            make(partial)
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return folder


def _dequantise(file: Path, folder: Path) -> None:
    # Takes seconds to import, and only who converts needs it.
    import transformers  # noqa: PLC0415

    how = gguf_arguments(file)
    transformers.AutoModelForCausalLM.from_pretrained(file.parent, dtype="bfloat16", **how).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
