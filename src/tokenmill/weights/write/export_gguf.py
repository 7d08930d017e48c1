"""GGUF files, which llama.cpp reads: Q4_0 (symmetric codes), Q4_1 and Q8_0, everything else in floating point.

The header is written first, then each tensor as it is read and rounded, so memory holds one matrix. Norms, biases,
learned positions and the routers of experts are F32, which llama.cpp wants; embeddings are in the model's own type.
"""

import logging
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import gguf
import torch
from torch import Tensor

from tokenmill.errors import CheckpointError, ConfigError, file_errors
from tokenmill.hub.progress import Progress
from tokenmill.memory.atomic_file import writing
from tokenmill.model.config import ModelConfig
from tokenmill.model.families import find_family, gguf_facts, in_gguf, read_config
from tokenmill.model.families.gguf_needs import NEEDS
from tokenmill.quant.schemes import GROUP
from tokenmill.text.gguf_vocab import gguf_of_tokenizer
from tokenmill.value_reader import brief
from tokenmill.weights.cast import cast
from tokenmill.weights.checkpoint import Checkpoint
from tokenmill.weights.generation import gguf_of_defaults, usable
from tokenmill.weights.gguf.checkpoint import GGUFCheckpoint, is_number
from tokenmill.weights.gguf.codes import encode
from tokenmill.weights.gguf.header import FLOATS, TensorInfo
from tokenmill.weights.gguf.pooling import POOLINGS
from tokenmill.weights.heads import place_in_stack, shape_of_stack
from tokenmill.weights.pooling import has_modules, pooling_of
from tokenmill.weights.relaid import RelaidCheckpoint, in_layout
from tokenmill.weights.write.convert import check_space
from tokenmill.weights.write.export import Export, ExportPlan, Rounded
from tokenmill.weights.write.folded import fold
from tokenmill.weights.write.gguf_metadata import check_read_back, lists_of, metadata_of, unread_yarn, write_header
from tokenmill.weights.write.lengthened import lengthen

log = logging.getLogger(__name__)

KIND = gguf.GGMLQuantizationType
FILE = gguf.LlamaFileType
ALIGNMENT = gguf.GGUF_DEFAULT_ALIGNMENT
_KIND_OF = {name: kind for kind, name in FLOATS.items()}
_FILE_TYPES = {
    KIND.Q4_0: FILE.MOSTLY_Q4_0,
    KIND.Q4_1: FILE.MOSTLY_Q4_1,
    KIND.Q8_0: FILE.MOSTLY_Q8_0,
    KIND.F32: FILE.ALL_F32,
    KIND.F16: FILE.MOSTLY_F16,
    KIND.BF16: FILE.MOSTLY_BF16,
}
ALWAYS_F32 = (  # parameters that llama.cpp wants so
    "position_embedding.weight",
    ".router.weight",
    "_norm.weight",
    ".conv",
    ".A_log",
    ".D",
    ".mamba2.norm.weight",
)


@dataclass(frozen=True)
class _Source:
    """A tensor of the file, and the checkpoint's tensors of which it is made: several where experts are stacked, none
    where it has the divisors of a rope or zeros.
    """

    info: TensorInfo
    names: tuple[str, ...]


class GGUFExport(Export):
    """Codes of 4 bits as Q4_1, or Q4_0 where they are symmetric, and of 8 as Q8_0."""

    is_for_floats = True
    codes_embedding = True

    def lay_out(self, checkpoint: Checkpoint) -> Checkpoint:
        name = read_config(checkpoint.config).family
        if find_family({"model_type": name}).gguf is None:
            raise ConfigError("model", name, "for a GGUF file, a family for which llama.cpp has an architecture")
        return in_layout(fold(lengthen(checkpoint), gguf_facts(name).ones), in_gguf(name))

    def grid(self, bits: int, symmetric: bool) -> str:
        return "symmetric" if symmetric or bits == 8 else "minimum"

    def leaves(self, bits: int, shape: tuple[int, ...]) -> bool:
        return len(shape) == 1  # a gate of one row is a vector there

    def check_output(self, path: Path) -> None:
        if path.exists() or path.suffix != ".gguf":
            raise ConfigError("output", str(path), "a file that does not exist yet, whose name ends in .gguf")

    def check(self, plan: ExportPlan) -> None:
        model = plan.model
        if plan.group != GROUP and plan.bits:
            raise ConfigError("group", plan.group, f"{GROUP}, which all types of GGUF that can be written have")
        for name in plan.bits:
            num_inputs = plan.shapes[name][1]
            if num_inputs % GROUP:
                what = f"for a GGUF file, one whose matrices have {GROUP} · n inputs; {name} has {num_inputs}"
                raise ConfigError("model", str(plan.checkpoint.path), what)
        for is_met, told in (NEEDS[need] for need in gguf_facts(model.family).needs):
            if not is_met(model):
                raise ConfigError("model", model.family, f"for a GGUF file, one {told}, which llama.cpp requires")
        written = replace(model, num_mtp=0)
        check_read_back(plan.checkpoint.path, written, metadata_of(model), [source.info for source in _sources(plan)])
        if model.num_mtp:
            log.warning("%s: its layer that predicts further tokens is left out of the file", plan.checkpoint.path)

    def num_bytes(self, plan: ExportPlan, name: str) -> int:
        return _size(_kind(plan, name), plan.shapes[name]) if name in plan.targets else 0

    def write(self, plan: ExportPlan, path: Path, rounded: Rounded, progress: Progress, stage: str) -> None:
        sources = _sources(plan)
        infos = [source.info for source in sources]
        metadata = {**_general(plan, path), **metadata_of(plan.model), **_numbers(plan)}
        metadata |= _vocabulary(plan.checkpoint, plan.model) | _pooling(plan)
        if plan.model.num_types:
            metadata["tokenizer.ggml.token_type_count"] = plan.model.num_types
        window = max((window for window in plan.model.windows if window is not None), default=None)
        if window is not None and not gguf_facts(plan.model.family).windows(plan.model):
            log.warning("llama.cpp has no window for this architecture: after %d tokens its text differs", window)
        if unread := unread_yarn(plan.model):
            log.warning("llama.cpp ignores %s of YaRN and takes the usual values: its text differs", brief(unread))
        with file_errors(path, "written"):
            path.parent.mkdir(parents=True, exist_ok=True)
            check_space(path, sum(_padded(info.num_bytes) for info in infos))
            with writing(path) as out:
                write_header(Path(out.name), metadata, infos)
                out.seek(0, os.SEEK_END)
                progress.stage(stage)
                for number, source in enumerate(sources, 1):
                    _pad(out)
                    for part in _parts(plan, source, rounded):
                        out.write(part.contiguous().view(-1).view(torch.uint8).numpy().data)
                    progress.advance(number, len(sources))
                _pad(out)


def _pooling(plan: ExportPlan) -> dict[str, Any]:
    """Make the key of the pooling that the files of a directory say. Matrices behind it have no place in the file."""
    if not has_modules(plan.checkpoint.path):
        return {}
    told = pooling_of(plan.checkpoint.path)
    if told.steps:
        raise ConfigError(
            "model", str(plan.checkpoint.path), "for a GGUF file, one without matrices behind the pooling"
        )
    numbers = {name: number for number, name in POOLINGS.items()}
    if told.pooling not in numbers:
        raise ConfigError("pooling", told.pooling, f"for a GGUF file, one of {', '.join(numbers)}")
    lost = {
        "a default prompt": told.default_prompt is not None,
        f"the most tokens of a text, {told.max_tokens}": told.max_tokens is not None,
        "that vectors are not brought to length 1": not told.normalize,
    }
    if any(lost.values()):
        names = ", ".join(name for name, is_there in lost.items() if is_there)
        log.warning("GGUF has no keys for what the files of this model say of its vectors: %s", names)
    return {f"{metadata_of(plan.model)['general.architecture']}.pooling_type": numbers[told.pooling]}


def _sources(plan: ExportPlan) -> list[_Source]:
    """List the tensors of the file in order, layer by layer, with the place of each."""
    stacks: dict[str, list[str]] = {}
    for name in sorted((name for name in plan.targets if not is_number(name)), key=_layer):
        stacks.setdefault(name.partition("[")[0], []).append(name)
    sources: list[_Source] = []
    for name, factors in lists_of(plan.model).items():
        sources.append(_Source(_info(name, (len(factors),), KIND.F32, _end(sources)), ()))
    for stored, names in stacks.items():
        shapes = {name: plan.shapes[name] for name in names}
        shape = shapes[stored] if stored in shapes else shape_of_stack(shapes)
        sources.append(_Source(_info(stored, shape, _kind(plan, names[0]), _end(sources)), tuple(names)))
    for name, shape in gguf_facts(plan.model.family).zeros(plan.model).items():
        kind = KIND.F32 if len(shape) == 1 else KIND.F16
        sources.append(_Source(_info(name, shape, kind, _end(sources)), ()))
    return sources


def _end(sources: list[_Source]) -> int:
    return _padded(sources[-1].info.offset + sources[-1].info.num_bytes) if sources else 0


def _numbers(plan: ExportPlan) -> dict[str, list[float]]:
    """Read the weights that stand in the metadata, in the order of their layers."""
    found: dict[str, list[float]] = {}
    for name in sorted(filter(is_number, plan.targets), key=_layer):
        found.setdefault(name.partition("[")[0], []).append(plan.checkpoint.read(name).item())
    return found


def _layer(name: str) -> tuple[int, int, str]:
    """Read the number of a tensor's layer, -1 where it belongs to none, and its place among matrices of one tensor."""
    layer = re.match(r"blk\.(\d+)\.", name)
    return (-1 if layer is None else int(layer[1]), *place_in_stack(name))


def _info(name: str, shape: tuple[int, ...], kind: gguf.GGMLQuantizationType, offset: int) -> TensorInfo:
    return TensorInfo(name, shape, kind, offset, _size(kind, shape))


def _kind(plan: ExportPlan, name: str) -> gguf.GGMLQuantizationType:
    if name in plan.bits:
        return KIND.Q8_0 if plan.bits[name] == 8 else KIND.Q4_0 if plan.symmetric else KIND.Q4_1
    small = len(plan.shapes[name]) == 1 or plan.targets[name].parameter.endswith(ALWAYS_F32)
    return KIND.F32 if small else _KIND_OF[plan.model.dtype]


def _size(kind: gguf.GGMLQuantizationType, shape: tuple[int, ...]) -> int:
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    return int(prod(shape) // block * block_bytes)


def _padded(size: int) -> int:
    return int(-(-size // ALIGNMENT) * ALIGNMENT)


def _pad(out: BinaryIO) -> None:
    out.write(bytes(-out.tell() % ALIGNMENT))


def _parts(plan: ExportPlan, source: _Source, rounded: Rounded) -> Iterator[Tensor]:
    """Yield the data of one tensor, expert after expert."""
    if not source.names:
        listed = lists_of(plan.model).get(source.info.name)
        yield torch.zeros(source.info.num_bytes, dtype=torch.uint8) if listed is None else torch.tensor(listed)
    for name in source.names:
        numbers = plan.checkpoint.read(name)
        if not numbers.is_floating_point():
            raise CheckpointError(f"{name} holds {numbers.dtype}: quantised exports of this kind cannot be converted")
        if name in plan.bits:
            yield encode(rounded(name, numbers), source.info.type)
        else:
            yield cast(name, numbers, getattr(torch, FLOATS[source.info.type]))


def _general(plan: ExportPlan, path: Path) -> dict[str, Any]:
    most = Counter(_kind(plan, name) for name in plan.bits or plan.targets if len(plan.shapes[name]) > 1)
    return {
        "general.type": "model",
        "general.name": path.stem,
        "general.file_type": int(_FILE_TYPES[most.most_common(1)[0][0]]),
        "general.quantization_version": gguf.GGML_QUANT_VERSION,
        **gguf_of_defaults(usable(plan.checkpoint)),
    }


def _vocabulary(checkpoint: Checkpoint, model: ModelConfig) -> dict[str, Any]:
    """Make the keys `tokenizer.…`: another GGUF file's own, or made from the tokenizer."""
    checkpoint = checkpoint.plain if isinstance(checkpoint, RelaidCheckpoint) else checkpoint
    if isinstance(checkpoint, GGUFCheckpoint):
        return {key: value for key, value in checkpoint.metadata.items() if key.startswith("tokenizer.")}
    tokenizer = checkpoint.tokenizer()
    if tokenizer is None:
        log.warning("%s has no tokenizer, so the file has no vocabulary", checkpoint.path)
        return {"tokenizer.ggml.model": "no_vocab"}
    return gguf_of_tokenizer(tokenizer, model.vocab_size, model.eos_token_ids)
