"""New model directories in Hugging Face layout, and the conversion of any checkpoint to one.

Tensors are read, changed and written one at a time, so memory holds one of them; the safetensors library wants a file's
tensors all at once. Its files are eight bytes of header length, a JSON header of names, types, shapes and offsets, then
the data, so types and shapes must be known before the first tensor is made. config.json is in words that transformers
reads.
"""

import json
import logging
import math
import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from math import prod
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_state_dict_into_shards_factory
from torch import Tensor

from tokenmill.errors import CapacityError, CheckpointError, ConfigError, file_errors
from tokenmill.hub.progress import Progress
from tokenmill.model.config import Rope
from tokenmill.model.families import Family, find_family, read_config
from tokenmill.settings.engine_config import DTYPES
from tokenmill.text.templates import FOLDER
from tokenmill.value_reader import check_choice
from tokenmill.weights.cast import cast
from tokenmill.weights.checkpoint import Checkpoint
from tokenmill.weights.generation import directory_of_defaults, usable
from tokenmill.weights.gguf.config import ROPE_FREQS
from tokenmill.weights.heads import place_in_stack, shape_of_stack
from tokenmill.weights.meta.checkpoint import is_meta
from tokenmill.weights.names import is_ignored
from tokenmill.weights.pooling import copy_modules
from tokenmill.weights.relaid import in_hugging_face_layout
from tokenmill.weights.write.gguf_metadata import rope_lists

log = logging.getLogger(__name__)

SHARD_BYTES = 5_000_000_000  # as transformers splits them
Shape = tuple[int, ...]
_TYPE_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"} | {
    torch.uint8: "U8",
    torch.int32: "I32",
}
_SETTINGS = """generation_config.json tokenizer.json tokenizer.model tokenizer_config.json special_tokens_map.json
    tekken.json added_tokens.json vocab.json vocab.txt merges.txt chat_template.jinja""".split()
_OWN_KEYS = """dtype stored_as_codes stored_as_compact_codes embedding_as_codes inputs_as_stored
    mtp_as_stored""".split()
"""Keys of a config that tell how the files of the source are stored."""
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}  # of every published model
_LENGTHS = [1 << bits for bits in range(5, 21)]  # for which a model with Llama 3's rope may have been trained


@dataclass(frozen=True)
class Unit:
    """The plan for one tensor of a checkpoint: the tensors that it becomes, in one file, and how they are made of it.
    pieces: tensors of experts or heads that are written one after the other, as one, with their shapes; empty for a
    single tensor.
    """

    source: str
    specs: Mapping[str, tuple[torch.dtype, Shape]]
    make: Callable[[Tensor], Mapping[str, Tensor]]
    pieces: Mapping[str, Shape] = field(default_factory=dict)

    @property
    def sources(self) -> list[str]:
        """The names of the checkpoint's tensors, in order."""
        return list(self.pieces) or [self.source]

    def num_bytes(self) -> int:
        return sum(dtype.itemsize * prod(shape) for dtype, shape in self.specs.values())


def convert(checkpoint: Checkpoint, out_dir: Path, dtype: str, progress: Progress) -> Path:
    """Write config, weights, tokenizer and generation config to `out_dir`; see write_directory.

    dtype: a name in DTYPES, or "auto" for the checkpoint's own.
    """
    check_choice("dtype", dtype, ("auto", *DTYPES))
    if dtype == "auto":
        dtype = read_config(checkpoint.config).dtype
        if dtype != "float32" and (checkpoint.config.get("stored_as_codes") or checkpoint.dequantized):
            message = "%s holds codes, whose values are rounded to %s; dtype float32 (--dtype) keeps them"
            log.warning(message, checkpoint.path, dtype)
    checkpoint = in_hugging_face_layout(checkpoint)
    units = plain_units(weights_of(checkpoint), checkpoint.family, dtype)
    write_directory(checkpoint, out_dir, units, {"torch_dtype": dtype}, progress, "writing weights")
    return out_dir


def weights_of(checkpoint: Checkpoint) -> dict[str, Shape]:
    """Return the shapes of a checkpoint's tensors, without buffers that are no weights."""
    family = checkpoint.family
    return {n: s for n, s in checkpoint.shapes.items() if not is_ignored(family, n.removeprefix(family.prefix))}


def plain_units(shapes: Mapping[str, Shape], family: Family, dtype: str) -> list[Unit]:
    """Plan tensors that are only cast; all experts or heads of a layer become the tensor that transformers reads."""
    stacks: dict[str, dict[str, Shape]] = defaultdict(dict)
    for name, shape in shapes.items():
        stacks[name.partition("[")[0]][name] = shape
    return [
        plain_unit(name, found[name], dtype, family) if name in found else _stack(name, found, dtype, family)
        for name, found in stacks.items()
    ]


def _stack(name: str, found: Mapping[str, Shape], dtype: str, family: Family) -> Unit:
    """Plan the tensor of all experts, or of all heads, of which each has rows of keys before rows of values."""
    pieces = {each: found[each] for each in sorted(found, key=place_in_stack)}
    return plain_unit(name, shape_of_stack(pieces), dtype, family, pieces)


def plain_unit(
    name: str, shape: Shape, dtype: str, family: Family | None = None, pieces: Mapping[str, Shape] | None = None
) -> Unit:
    """Plan a tensor that is only cast, and the constants that the family has beside it."""
    kind: torch.dtype = getattr(torch, dtype)
    base, _, part = name.rpartition(".")
    # In float32: the smallest of them has few digits in float16.
    numbers = {} if family is None else family.constants.get(part, {})
    constants = {f"{base}.{key}": torch.tensor(value) for key, value in numbers.items()}
    specs = {name: (kind, shape), **{key: (value.dtype, ()) for key, value in constants.items()}}
    return Unit(name, specs, lambda tensor: {name: cast(name, tensor, kind), **constants}, pieces or {})


def check_new(out_dir: Path) -> None:
    """Raise ConfigError for a directory that is not empty, or a file, or that the command runs in."""
    if out_dir.resolve() == Path.cwd():
        raise ConfigError("output", str(out_dir), "a new directory beside this one, in which the command runs")
    if out_dir.exists() and not (out_dir.is_dir() and not any(out_dir.iterdir())):
        raise ConfigError("output", str(out_dir), "a directory that is new or empty")


def check_space(path: Path, needed: int) -> None:
    """Raise CapacityError where the disk has no space for so many bytes at a path, whose folder must exist."""
    free = shutil.disk_usage(path.parent).free
    if free < needed:
        raise CapacityError(f"disk space for {path}", needed, free, "output to another disk", in_bytes=True)


def write_directory(
    checkpoint: Checkpoint,
    out_dir: Path,
    units: Sequence[Unit],
    config: Mapping[str, Any],
    progress: Progress,
    stage: str,
) -> None:
    """Write a checkpoint whose tensors become `units` to `out_dir`, which must be new or empty.

    config: the keys of config.json that change. stage: the name of the work in progress. ConfigError for a directory
    that is not empty, CapacityError when the disk has no space for the weights, CheckpointError when writing fails or a
    tensor cannot be converted; then nothing is left behind.
    """
    check_new(out_dir)
    needed = sum(unit.num_bytes() for unit in units)
    with file_errors(out_dir, "written"):
        out_dir.parent.mkdir(parents=True, exist_ok=True)
        check_space(out_dir, needed)
        with tempfile.TemporaryDirectory(dir=out_dir.parent, prefix=f".{out_dir.name}-") as temporary:
            directory = Path(temporary) / out_dir.name  # which gets its own name when all is in it
            directory.mkdir()
            progress.stage(stage)
            _write_shards(checkpoint, units, directory, progress)
            progress.stage("writing config and tokenizer")
            _write_json(directory / "config.json", {**config_json(checkpoint.config), **config})
            _write_tokenizer(checkpoint, directory)
            directory.replace(out_dir)


def _write_shards(checkpoint: Checkpoint, units: Sequence[Unit], folder: Path, progress: Progress) -> None:
    """Write model.safetensors, or several files with an index: in order, each as full as it gets. A larger unit has a
    file alone.
    """
    units_by_source, pattern = {unit.source: unit for unit in units}, "model{suffix}.safetensors"
    split = split_state_dict_into_shards_factory(
        units_by_source, get_storage_size=Unit.num_bytes, filename_pattern=pattern, max_shard_size=SHARD_BYTES
    )
    shards = {file: [units_by_source[name] for name in names] for file, names in split.filename_to_tensors.items()}
    numbers = count(1)
    for file, shard in shards.items():
        _write_shard(checkpoint, shard, folder / file, lambda: progress.advance(next(numbers), len(units)))
    if split.is_sharded:
        weight_map = {name: file for file, shard in shards.items() for unit in shard for name in unit.specs}
        _write_json(folder / "model.safetensors.index.json", {"metadata": split.metadata, "weight_map": weight_map})


def _write_shard(checkpoint: Checkpoint, units: Sequence[Unit], file: Path, advance: Callable[[], None]) -> None:
    """Write one file of these units; `advance` is called for each."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for unit in units:
        for name, (dtype, shape) in unit.specs.items():
            start, end = end, end + dtype.itemsize * prod(shape)
            header[name] = {"dtype": _TYPE_NAMES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data begins at a multiple of 8
    with file.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for unit in units:
            for source in unit.sources:
                tensor = checkpoint.read(source)
                if not tensor.is_floating_point():
                    what = f"{source} holds {tensor.dtype}"
                    raise CheckpointError(f"{what}: quantised exports of this kind cannot be converted")
                made = unit.make(tensor)
                del tensor  # so that memory holds one of them
                for name, (dtype, shape) in unit.specs.items():
                    part, wanted = made[name], unit.pieces.get(source, shape)
                    assert (part.dtype, tuple(part.shape)) == (dtype, wanted), f"{name} is not what its header says"
                    out.write(part.contiguous().view(-1).view(torch.uint8).numpy().data)
            advance()
        out.flush()
        os.fsync(out.fileno())


def config_json(config: Mapping[str, Any]) -> dict[str, Any]:
    """Make the config of the tensors that are written: of a model that sees, the config of its text part."""
    family, kept = find_family(config), dict(config)
    if family.text is not None:
        kept = {key: value for key, value in family.text.flatten(config).items() if key != "architectures"}
    scaling = kept.get("rope_scaling")
    if isinstance(scaling, dict) and scaling.get("rope_type") == "factors":
        kept |= _as_llama3(read_config(kept).rope)
    return {key: value for key, value in kept.items() if key not in _OWN_KEYS}


def _as_llama3(rope: Rope | None) -> dict[str, Any]:
    """Find the numbers of Llama 3's rope for the divisors of a GGUF file; warn where no numbers have these divisors."""
    assert rope is not None, "its config has divisors"
    factors = dict(rope.scaling)["factors"]
    for length in _LENGTHS:
        numbers = {"factor": max(factors), **_LLAMA3, "original_max_position_embeddings": length}
        found = rope_lists(replace(rope, kind="llama3", scaling=tuple(numbers.items())))[ROPE_FREQS]
        if all(math.isclose(have, want, rel_tol=1e-5) for have, want in zip(found, factors, strict=True)):
            return {"rope_scaling": {"rope_type": "llama3", **numbers}}
    log.warning('config.json has divisors of the rope that are not Llama 3\'s: transformers knows no rope "factors"')
    return {}


def _write_tokenizer(checkpoint: Checkpoint, path: Path) -> None:
    """Copy the tokenizer's files of a directory in Hugging Face layout as they are; make them of the tokenizer of any
    other checkpoint. CheckpointError for a tokenizer that they cannot describe.
    """
    if checkpoint.path.is_dir() and not is_meta(checkpoint.path):
        for name in (*_SETTINGS, *(f"{FOLDER}/{file.name}" for file in (checkpoint.path / FOLDER).glob("*.jinja"))):
            if (checkpoint.path / name).is_file():
                (path / name).parent.mkdir(exist_ok=True)
                shutil.copyfile(checkpoint.path / name, path / name)
        copy_modules(checkpoint.path, path)
        return
    recommends, tokenizer = directory_of_defaults(usable(checkpoint)), checkpoint.tokenizer()
    if tokenizer is None:
        if recommends:
            _write_json(path / "generation_config.json", recommends)
        return
    if tokenizer.rules is not None:
        raise CheckpointError("the tokenizer changes characters or spaces of a text, which no tokenizer.json says")
    tokenizer.backend.save(str(path / "tokenizer.json"))
    # Whether a BOS is added is said by the post-processor in tokenizer.json.
    context = read_config(checkpoint.config).context
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": context, **tokenizer.special_texts}
    settings["clean_up_tokenization_spaces"] = False
    default = {} if tokenizer.chat_template is None else {"default": tokenizer.chat_template}
    templates = [{"name": name, "template": text} for name, text in (default | tokenizer.named_templates).items()]
    if templates:
        settings["chat_template"] = templates if tokenizer.named_templates else tokenizer.chat_template
    _write_json(path / "tokenizer_config.json", settings)
    stops = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": list(tokenizer.eos_token_ids) or None}
    stops["suppress_tokens"] = list(tokenizer.suppressed_ids) or None
    kept = {key: value for key, value in stops.items() if value is not None}
    _write_json(path / "generation_config.json", {**kept, **recommends})


def _write_json(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
