"""Open whatever holds a model: a `.gguf` file, a packed model, or a directory in Hugging Face's or Meta's layout."""

import logging
from math import prod
from pathlib import Path
from typing import Any

from tokenmill.errors import CheckpointError, naming
from tokenmill.model.config import quant_method
from tokenmill.model.counts import count_parameters
from tokenmill.model.families import find_family, read_config
from tokenmill.registry import CHECKPOINT_CHECKS, CHECKPOINTS, lookup
from tokenmill.text.tokenizer import Tokenizer, read_json
from tokenmill.weights.codes.checkpoint import QuantizedCheckpoint, describe_codes
from tokenmill.weights.codes.methods import name_method, name_tensors
from tokenmill.weights.file_kind import DIRECTORY, PACKED, file_kind
from tokenmill.weights.files import has_weights, not_a_model, weight_files
from tokenmill.weights.fingerprint import files_of
from tokenmill.weights.heads import by_heads
from tokenmill.weights.meta.checkpoint import MetaCheckpoint, is_meta
from tokenmill.weights.names import as_stored, inputs_as_stored, is_ignored, mtp_as_stored, stacked
from tokenmill.weights.packed.model import PackedCheckpoint
from tokenmill.weights.packed.reader import PackedReader
from tokenmill.weights.plain import Checkpoint, PlainCheckpoint
from tokenmill.weights.pooling import check_place
from tokenmill.weights.text_part import keep_text
from tokenmill.weights.tied import compare_tied_head, name_tied_embedding, note_missing_head

__all__ = [
    "Checkpoint",
    "foreseen_config",
    "open_checkpoint",
    "open_tokenizer",
    "read_config_json",
]

log = logging.getLogger(__name__)


def open_checkpoint(path: Path, reader: PackedReader | None = None, part: str = "") -> Checkpoint:
    """Open a model; weights/files.py says which files of a directory are read. part: MTP for the layer of the model
    that predicts further tokens, which is a model of one layer.

    `reader` may have begun to read a packed model already. CheckpointError for a model that is damaged, of an unknown
    kind, or whose config describes sizes far from the sizes of its tensors.
    """
    with naming(path):
        opened = _open(path, reader, part)
        _check_sizes(opened)
        return opened


def open_tokenizer(path: Path) -> Tokenizer | None:
    """Open the tokenizer of a model, if it has one. A GGUF file may hold nothing else, and be of any architecture."""
    with naming(path):
        kind = file_kind(path)
        if kind == DIRECTORY:
            return Tokenizer.from_directory(path)
        if kind == PACKED:
            return open_checkpoint(path).tokenizer()
        tokenizer: Tokenizer | None = lookup(CHECKPOINTS, kind, "model").tokenizer_of(path)
        return tokenizer


def _open(path: Path, reader: PackedReader | None, part: str) -> Checkpoint:
    kind = file_kind(path)
    if kind == DIRECTORY:
        return _open_directory(path, part)
    if kind == PACKED:
        return PackedCheckpoint(path, reader)
    opened: Checkpoint = lookup(CHECKPOINTS, kind, "model")(path, part)
    return opened


def _open_directory(path: Path, part: str) -> Checkpoint:
    if is_meta(path):
        files_of(path)  # refuses links to nothing
        meta = MetaCheckpoint(path)
        compare_tied_head(meta)
        return meta
    config = _read_config_file(path)
    config = {**config, "model_type": f"{config.get('model_type')}{part}"} if part else config
    family, plain = find_family(config), PlainCheckpoint(path, config, weight_files(path))
    keep_text(plain, family)
    plain.unstack(stacked(family), family.prefix)
    name_tensors(plain)
    plain.name_as(as_stored(family, read_config(config), plain.shapes))
    name_tied_embedding(plain)
    note_missing_head(plain)
    opened = by_heads(plain if quant_method(config) is None else QuantizedCheckpoint(plain), read_config(config))
    compare_tied_head(opened)
    _compare_buffers(opened)
    opened.config.update(inputs_as_stored(opened) | mtp_as_stored(opened))
    return opened


def _compare_buffers(checkpoint: Checkpoint) -> None:
    """Warn of buffers, stored by old conversions, that differ from the config's."""
    family = checkpoint.family
    names = [name for name in checkpoint.shapes if is_ignored(family, name.removeprefix(family.prefix))]
    if names:
        lookup(CHECKPOINT_CHECKS, "buffers", "comparison")(checkpoint, names)


def _check_sizes(checkpoint: Checkpoint) -> None:
    """Refuse a config that describes far more than the files hold, before anything is built from its values.

    The exact comparison, tensor by tensor, needs a decoder, whose size these values set; see names.match_tensors.
    """
    model = read_config(checkpoint.config)
    claimed, modules = sum(count_parameters(model).values()), model.num_layers * max(model.num_experts, 1)
    held, tensors = sum(map(prod, checkpoint.shapes.values())), len(checkpoint.shapes)
    if claimed > 2 * held + 1_000_000 or modules > tensors:
        raise CheckpointError(
            f"{checkpoint.path} does not fit its config, which describes {claimed} parameters in {model.num_layers} "
            f"layers; the files hold {held} in {tensors} tensors"
        )


def foreseen_config(path: Path) -> dict[str, Any]:
    """Read the config that `open_checkpoint` will find; a directory may have nothing but its config.json.

    The tensors tell whether a tied model has a head of its own, and which matrices are kept as codes. If the tensors
    cannot be read, config.json counts, with a warning.
    """
    if not path.is_dir() or is_meta(path):
        return open_checkpoint(path).config
    config = read_config_json(path)
    model = read_config(config)
    told_by_tensors = model.tie_embeddings or model.per_layer is not None or quant_method(config) is not None
    if not (told_by_tensors and has_weights(path)):
        return config
    try:
        return open_checkpoint(path).config
    except CheckpointError as error:
        log.warning("config.json counts, since the tensors cannot be read: %s", error)
        return config


def read_config_json(path: Path) -> dict[str, Any]:
    """Read the config.json of a model directory; a quantised directory says so in the words of a GGUF file."""
    return describe_codes(_read_config_file(path))


def _read_config_file(path: Path) -> dict[str, Any]:
    file = path / "config.json"
    files_of(path)  # refuses links to nothing
    check_place(path)
    if not file.is_file():
        raise CheckpointError(not_a_model(path))
    config = name_method(read_json(file), path)
    if "eos_token_id" in config:
        return config
    # As in transformers, the default of a class says how a text ends only where neither file does.
    ends = read_json(path / "generation_config.json").get("eos_token_id")
    return config if ends is None else {"eos_token_id": ends, **config}
