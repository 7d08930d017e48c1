"""Opens an adapter for one model: a directory of PEFT, or a GGUF file of llama.cpp."""

import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from tokenmill.errors import CheckpointError, file_errors
from tokenmill.hub.weight_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from tokenmill.model.config import ModelConfig
from tokenmill.model.families import find_family
from tokenmill.registry import ADAPTER_FILES, lookup
from tokenmill.value_reader import brief, refuse_constant, without_doubles
from tokenmill.weights.adapters.adapter import Adapter
from tokenmill.weights.adapters.changes import Builder
from tokenmill.weights.adapters.factors import Module, modules_of_peft
from tokenmill.weights.adapters.model_weights import ModelWeights
from tokenmill.weights.adapters.named import weights_of
from tokenmill.weights.adapters.peft_config import PeftConfig, names, read_peft_config
from tokenmill.weights.adapters.places import Places

_NESTED = ".base_layer"
_SWAPPED = ("llama4", "llama4_text")
"""Families whose experts' tensors are [E, I, O] without saying so, for which PEFT takes the inputs for outputs."""
_FUSED = ("gate_up_proj", "down_proj")
"""The tensors with all experts of a layer in transformers' modules, in the order of the modules."""


def open_adapter(
    path: Path, name: str, model: ModelConfig, dtype: torch.dtype, base: ModelWeights, max_rank: int | None = None
) -> Adapter:
    """Read an adapter whole. dtype: of the engine, in which factors are held. max_rank: a larger one is refused.

    CheckpointError, with every tensor by name, unless all of the adapter has a place in this model.
    """
    if path.is_dir():
        digest, builder = _open_peft(path, model, dtype, base)
    elif path.is_file():
        digest, builder = lookup(ADAPTER_FILES, "gguf", "adapter")(path, model, dtype, base)
    else:
        raise CheckpointError(f"{path} is neither a directory with an {ADAPTER_CONFIG} nor a GGUF file of an adapter")
    changes, embedding, norms = builder.finish()
    if not changes and embedding is None and not norms:
        raise CheckpointError(f"{path} changes nothing of this {model.family} model's text, so it would not be applied")
    adapter = Adapter(name, str(path), digest, changes, embedding, norms, tuple(builder.left_out))
    if max_rank is not None and adapter.rank > max_rank:
        raise CheckpointError(f"{path} has rank {adapter.rank}, and the limit is {max_rank} (max_lora_rank)")
    return adapter


def _open_peft(path: Path, model: ModelConfig, dtype: torch.dtype, base: ModelWeights) -> tuple[bytes, Builder]:
    facts = _read(path / ADAPTER_CONFIG, _hint(path))
    file = weights_of(path)
    weights = _read(
        file, f"; a directory of PEFT has one of {' and '.join(ADAPTER_WEIGHTS)} beside its {ADAPTER_CONFIG}"
    )
    digest = hashlib.sha256(len(facts).to_bytes(8, "little") + facts + weights).digest()
    config = read_peft_config(_parsed(facts, path / ADAPTER_CONFIG), str(path / ADAPTER_CONFIG))
    modules = modules_of_peft(_tensors(file, weights), str(file))
    builder = Builder(Places(find_family({"model_type": model.family}), model), dtype, str(path), base)
    experts = _experts(modules, config, builder.places)
    if experts and model.family in _SWAPPED:
        raise CheckpointError(f"{path}: factors of this family's experts are not implemented ({experts[0][0]})")
    for outer, parameter, module in experts:
        full = f"{outer}.{parameter}"
        config.check_parameter(full)
        config.check_rank(full, module.rank // len(builder.places.each(full)))
        module.scale = config.scale(full)
        builder.add_experts(outer, parameter, module)
    taken = {module.name for _, _, module in experts}
    for module in modules.values():
        if module.name not in taken:
            full = f"{module.name}.weight"
            full = full if config.is_parameter(full) else module.name  # by which PEFT looks for patterns
            if module.rank:
                config.check_module(full, module.tensors.keys())
                config.check_rank(full, module.rank)
            module.scale = config.scale(full)
            builder.add(module, config.tokens_of(module.name))
    return digest, builder


def _experts(modules: Mapping[str, Module], config: PeftConfig, places: Places) -> list[tuple[str, str, Module]]:
    """Find the modules that hold factors of all experts in one: (path of the experts, tensor of them, module).

    Their names lack the tensor's: of two the first in the module's order is nested in the other, as `base_layer`; of
    one the config's target_parameters tell.
    """
    found = []
    for name, module in modules.items():
        outer = name.removesuffix(_NESTED)
        there = [each for each in _FUSED if places.each(f"{outer}.{each}")]
        if len(there) < 2 or module.get("a") is None:
            continue
        wanted = [each for each in there if any(names(target, f"{outer}.{each}") for target in config.parameters)]
        if name != outer:
            parameter = there[0]
        elif f"{outer}{_NESTED}" in modules or wanted == there[1:]:
            parameter = there[1]
        elif wanted == there[:1]:
            parameter = there[0]
        else:
            raise CheckpointError(
                f"{outer}: target_parameters do not tell which of {', '.join(there)} has these factors"
            )
        found.append((outer, parameter, module))
    return found


def _hint(path: Path) -> str:
    """Say which folders inside hold adapters, where this one does not."""
    inside = sorted(each.parent.name for each in path.glob(f"*/{ADAPTER_CONFIG}"))
    return f"; there are adapters in its folders {', '.join(inside[:10])}" if inside else ""


def _read(file: Path, hint: str) -> bytes:
    if not file.is_file():  # a pipe would be waited for
        raise CheckpointError(f"{file} is not there{hint}")
    with file_errors(file, "read"):
        return file.read_bytes()


def _parsed(facts: bytes, where: Path) -> object:
    try:
        return json.loads(facts, object_pairs_hook=without_doubles, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where} is no JSON: {brief(str(error))}") from None


def _tensors(file: Path, data: bytes) -> dict[str, Tensor]:
    """Read all tensors, as float32. Nothing but tensors is unpickled."""
    try:
        if file.suffix == ".safetensors":
            found = safetensors.torch.load(data)
        else:
            found = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except SafetensorError as error:
        raise CheckpointError(f"{file} is damaged or no safetensors file: {brief(str(error))}") from None
    except Exception as error:  # noqa: BLE001 - damaged bytes lead torch's unpickler to a KeyError, or to anything else
        raise CheckpointError(f"{file} is damaged, or holds more than tensors: {brief(str(error))}") from None
    if not isinstance(found, dict) or not all(isinstance(each, Tensor) for each in found.values()):
        raise CheckpointError(f"{file} is no mapping of names to tensors")
    for name, each in found.items():
        if not each.is_floating_point():
            raise CheckpointError(f"{file}: {name} is {each.dtype}, no floating point")
        if each.layout != torch.strided or each.is_meta:
            raise CheckpointError(f"{file}: {name} is sparse, or without numbers")
    return {str(name): each.float() for name, each in found.items()}
