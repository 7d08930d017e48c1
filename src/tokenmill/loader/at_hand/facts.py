"""The facts of one model that `tokenmill list` shows, read from its headers alone."""

import re
from collections import Counter
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import gguf

from tokenmill.errors import CheckpointError, TokenmillError
from tokenmill.loader.at_hand import BASE, INSTRUCT
from tokenmill.loader.runs_here import runs_here
from tokenmill.model.families import read_config
from tokenmill.text.tokenizer import read_json
from tokenmill.weights.chat_template import has_chat_template
from tokenmill.weights.checkpoint import Checkpoint, open_checkpoint
from tokenmill.weights.gguf.checkpoint import GGUFCheckpoint
from tokenmill.weights.outline import read_outline
from tokenmill.weights.packed.reader import is_packed_model, read_header

_SHAPE = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "intermediate_size", "vocab_size")
_QUANTISED = re.compile(
    r"[-_. ](i1|[iq]*q\d\w*|bf16|f16|f32|fp\d+|int\d|w\d+a\d+|\d+bit|gguf|gptq|awq|mlx|imat|bnb|dynamic|packed)"
    r"(?=[-_. ]|$)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Facts:
    """The facts. family: None where the files do not tell it. kind: INSTRUCT where the files have a chat template, BASE
    where they have none, None where that cannot be told. quantization: the usual name, such as Q4_K_M, bfloat16, gptq.
    runs: the program that would be taken, or None with `why_not`. shape: sizes that all forms of one model have alike.
    titles: names that the files give the model.
    """

    family: str | None
    quantization: str
    num_parameters: int | None
    context: int | None
    runs: str | None
    why_not: str | None
    shape: tuple[Any, ...] = ()
    titles: tuple[str, ...] = ()
    kind: str | None = None


def facts_of(path: Path) -> Facts:
    """Read the headers of a model; the facts of one that cannot be opened come from an outline of its files."""
    try:
        checkpoint = open_checkpoint(path)
        config = read_config(checkpoint.config)
        runs = runs_here(checkpoint)
    except (TokenmillError, OSError) as error:
        return _of_outline(path, str(error))
    shape = (config.family, *(getattr(config, name) for name in _SHAPE))
    parameters = sum(map(prod, checkpoint.shapes.values()))
    return Facts(
        config.family,
        _quantization(checkpoint, config.dtype),
        parameters,
        config.context,
        runs["runs"] and runs["runs"]["program"],
        runs["why_not"],
        shape,
        tuple(_titles(checkpoint)),
        _kind(path),
    )


def _of_outline(path: Path, why_not: str) -> Facts:
    try:
        outline = read_outline(path)
    except OSError:
        outline = None
    if outline is None:
        return Facts(None, "", None, None, None, why_not)
    types = Counter[str]()
    for tensor in outline.tensors:
        types[tensor.type] += tensor.num_bytes
    kind = types.most_common(1)[0][0] if types else ""
    count = sum(prod(tensor.shape) for tensor in outline.tensors) or None
    return Facts(outline.family, kind, count, outline.sizes.get("context"), None, why_not, kind=_kind(path))


def _kind(path: Path) -> str | None:
    try:
        return INSTRUCT if has_chat_template(path) else BASE
    except (CheckpointError, OSError):
        return None


def _quantization(checkpoint: Checkpoint, dtype: str) -> str:
    """Name the form of the numbers, as people call it."""
    if is_packed_model(checkpoint.path):
        facts, _ = read_header(checkpoint.path)
        return f"{facts['dtype']} {facts['scheme']}, packed"
    if isinstance(checkpoint, GGUFCheckpoint):
        return _file_type(checkpoint.metadata.get("general.file_type")) or checkpoint.largest_type
    return _codes_of(checkpoint.path) or dtype


def _codes_of(path: Path) -> str:
    """Name the maker of a directory's codes, with their bits if told, as "gptq, 4 bits"; "" for numbers."""
    if not (path / "config.json").is_file():  # Meta's own layout
        return ""
    settings = read_json(path / "config.json").get("quantization_config")
    settings = settings if isinstance(settings, dict) else {}
    method, bits = settings.get("quant_method"), settings.get("bits")
    if not isinstance(method, str):
        return ""
    return f"{method}, {bits} bits" if type(bits) is int else method


def _file_type(number: object) -> str:
    """Find llama.cpp's name of a file's type, such as Q4_K_M; "" where it has no name."""
    try:
        name = gguf.LlamaFileType(number).name if type(number) is int else ""
    except ValueError:
        return ""
    return re.sub("^(MOSTLY|ALL)_", "", name) if name != "GUESSED" else ""


def _titles(checkpoint: Checkpoint) -> list[str]:
    if isinstance(checkpoint, GGUFCheckpoint):
        keys = ("general.name", "general.basename")
        found = [checkpoint.metadata.get(key) for key in keys[:1]]
    else:
        found = [checkpoint.config.get("_name_or_path")]
    return [name for name in found if isinstance(name, str) and name]


def plain_title(name: str) -> str:
    """Cut a model's name to the part that its forms have alike, without owner, form and punctuation."""
    last = re.sub(r"\.(gguf|packed)$", "", name.rstrip("/").rpartition("/")[2], flags=re.IGNORECASE)
    last = re.sub(r"-\d{5}-of-\d{5}$", "", last)
    while (shorter := _QUANTISED.sub("", last)) != last:
        last = shorter
    return re.sub(r"[^a-z0-9]+", "", last.lower())
