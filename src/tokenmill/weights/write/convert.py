"""Any checkpoint, written out as a directory in Hugging Face layout.

Tensors are read, cast and written one at a time, so memory holds one of them. The directory appears under its name only
when it is complete.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tokenmill.config import DTYPES
from tokenmill.errors import CheckpointError, ConfigError
from tokenmill.hub.download import Progress
from tokenmill.model.families import find_family, read_config
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.weights.checkpoint import Checkpoint
from tokenmill.weights.names import is_ignored
from tokenmill.weights.write.shards import Unit, check_new, new_directory, write_shards

__all__ = ["SHARD_BYTES", "convert", "write_settings"]

SHARD_BYTES = 5_000_000_000  # as transformers splits them

_SETTINGS = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)


def convert(
    checkpoint: Checkpoint, out_dir: Path, dtype: str, progress: Progress, shard_bytes: int = SHARD_BYTES
) -> Path:
    """Write config, weights, tokenizer and generation config to `out_dir`, which must be new or empty.

    dtype: a name in DTYPES, or "auto" for the checkpoint's own. Buffers that are no weights are left out. Raises
    CapacityError when the disk has no space and CheckpointError when writing fails; then nothing is left behind.
    """
    model = read_config(checkpoint.config)
    dtype = model.dtype if dtype == "auto" else dtype
    if dtype not in DTYPES:
        raise ConfigError("dtype", dtype, f"use one of auto, {', '.join(DTYPES)}")
    check_new(out_dir)
    family = find_family(checkpoint.config)
    names = [name for name in checkpoint.shapes if not is_ignored(family, name.removeprefix(family.prefix))]
    done = 0

    def unit(name: str) -> Unit:
        number: torch.dtype = getattr(torch, dtype)

        def make() -> Mapping[str, Tensor]:
            nonlocal done
            tensor = checkpoint.read(name)
            if not tensor.is_floating_point():
                raise CheckpointError(
                    f"{name} holds {tensor.dtype}: quantised exports of this kind cannot be converted"
                )
            done += 1
            progress.advance(done, len(names))
            return {name: tensor.to(number)}

        return Unit({name: (number, checkpoint.shapes[name])}, make)

    units = [unit(name) for name in names]
    with new_directory(out_dir, sum(each.num_bytes for each in units), "dtype") as directory:
        progress.stage("writing weights")
        write_shards(units, directory, shard_bytes)
        write_settings(checkpoint, directory, dtype, progress)
    return out_dir


def write_settings(checkpoint: Checkpoint, path: Path, dtype: str, progress: Progress) -> None:
    """config.json, and the tokenizer: a directory's own files as they are, a GGUF's made from its metadata."""
    progress.stage("writing config and tokenizer")
    config = {key: value for key, value in checkpoint.config.items() if key not in ("dtype", "stored_as_codes")}
    _write_json(path / "config.json", config | {"torch_dtype": dtype})
    if checkpoint.path.is_dir():
        for name in _SETTINGS:
            if (checkpoint.path / name).is_file():
                shutil.copyfile(checkpoint.path / name, path / name)
        return
    tokenizer = checkpoint.tokenizer()
    if tokenizer is not None:
        _write_tokenizer(tokenizer, path, read_config(checkpoint.config).context)


def _write_tokenizer(tokenizer: Tokenizer, path: Path, context: int) -> None:
    tokenizer.backend.save(str(path / "tokenizer.json"))
    # Whether a BOS is added is said by the post-processor in tokenizer.json.
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": context, **tokenizer.special_texts}
    settings["clean_up_tokenization_spaces"] = False
    if tokenizer.chat_template is not None:
        settings["chat_template"] = tokenizer.chat_template
    _write_json(path / "tokenizer_config.json", settings)
    stops = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": list(tokenizer.eos_token_ids)}
    _write_json(
        path / "generation_config.json", {key: value for key, value in stops.items() if value not in (None, [])}
    )


def _write_json(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
