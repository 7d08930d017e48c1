"""A LoRA adapter in llama.cpp's format: a GGUF file with general.type "adapter". A tensor's name is
the changed weight's name, with .lora_a or .lora_b behind it.
"""

import hashlib
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor

from tokenmill.errors import CheckpointError, file_errors
from tokenmill.model.config import ModelConfig
from tokenmill.model.families import in_gguf
from tokenmill.value_reader import ValueReader
from tokenmill.weights.adapters.changes import Builder
from tokenmill.weights.adapters.factors import modules_of_gguf
from tokenmill.weights.adapters.model_weights import ModelWeights
from tokenmill.weights.adapters.places import Places
from tokenmill.weights.gguf.header import FLOATS, Header, TensorInfo, read_header


def open_gguf_adapter(path: Path, model: ModelConfig, dtype: torch.dtype, base: ModelWeights) -> tuple[bytes, Builder]:
    """Read an adapter: the digest of its bytes, and its changes."""
    header = read_header(path)
    with file_errors(path, "read"):
        data = path.read_bytes()
    alpha = _check(header.metadata, path, model)
    tensors = {info.name: _tensor(data, header, info, path) for info in header.tensors.values()}
    modules = modules_of_gguf(tensors, str(path))
    named = [f"{name}.weight" for name in modules]
    builder = Builder(Places(in_gguf(model.family, named), model), dtype, str(path), base)
    for module in modules.values():
        module.scale = alpha / module.rank if alpha else 1.0  # an alpha of 0 stands for none
        if "a" in module.tensors and module.tensors["a"].dim() == 3:
            builder.add_stack(module)
        else:
            builder.add(module)
    return hashlib.sha256(data).digest(), builder


def _check(metadata: dict[str, Any], path: Path, model: ModelConfig) -> float:
    """Check that this is a LoRA adapter of that family; return its alpha."""
    reader = ValueReader(metadata, f"{path}: metadata", CheckpointError)
    if (kind := reader.take("general.type", "model")) != "adapter":
        raise CheckpointError(f"{path} is a {kind}, no adapter (general.type)")
    reader.expect("adapter.type", "lora")
    if reader.take("adapter.alora.invocation_tokens", None) is not None:
        raise CheckpointError(
            f"{path} is active only after some tokens (adapter.alora.invocation_tokens): not implemented"
        )
    facts = in_gguf(model.family).gguf
    known = () if facts is None else facts.architectures
    if (architecture := reader.text("general.architecture")) not in known:
        wanted = " or ".join(known) or "none that llama.cpp has"
        raise CheckpointError(f"{path} is for the architecture {architecture!r}, and this model's is {wanted}")
    return reader.number("adapter.lora.alpha", 0.0, minimum=-1e9)


def _tensor(data: bytes, header: Header, info: TensorInfo, path: Path) -> Tensor:
    """Read a tensor as float32."""
    if info.type not in FLOATS:
        raise CheckpointError(f"{path}: {info.name} is stored as {info.type.name}; factors are in floating point")
    begin = header.data_offset + info.offset
    raw = np.frombuffer(data, np.uint8, info.num_bytes, begin)
    values = gguf.dequantize(raw.reshape(*info.shape[:-1], -1), info.type).astype(np.float32)
    return torch.from_numpy(values.reshape(info.shape))
