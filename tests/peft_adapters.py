"""Adapters that PEFT makes and saves of tiny models, with factors that change the logits, and the logits that PEFT
computes with them.
"""

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.tiny_models import reference

ALL = "all-linear"

# What all-linear takes and is no linear of text, or what PEFT cannot compute: then these, as people train them.
_LAYERS = r".*layers\.\d+\.(self_attn|mlp|mixer|mamba)\.(\w+\.)?(q|k|v|o|gate|up|down|in)_proj"
TARGETS = {
    "gemma3n": _LAYERS,
    "gemma3n_text": _LAYERS,
    "llama4": _LAYERS,
    "llama4_text": _LAYERS,
    "mamba2": _LAYERS,
    "phimoe": _LAYERS,
    "falcon_h1": _LAYERS,
    "nemotron_h": _LAYERS,
}


def save_adapter(name: str, folder: Path, seed: int = 0, **config: Any) -> Any:
    """Save an adapter of the tiny model of that name in a folder; return PEFT's model."""
    kind = next((each for each in TARGETS if name == each or name.startswith(f"{each}-")), "")
    return save_adapter_of(reference(name), folder, seed, **{"target_modules": TARGETS.get(kind, ALL), **config})


def save_adapter_of(base: Any, folder: Path, seed: int = 0, **config: Any) -> Any:
    """Save an adapter of a model in a folder; return PEFT's model."""
    from peft import LoraConfig, get_peft_model

    settings = {"r": 4, "lora_alpha": 8, **config}
    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")  # of tied weights, of targets in experts, of models without a hub's name
        torch.manual_seed(100 + seed)
        model = get_peft_model(copy.deepcopy(base), LoraConfig(**settings))
        for label, parameter in model.named_parameters():
            if not parameter.requires_grad:  # it is not saved
                continue
            if "magnitude" in label:
                parameter.data.mul_(1 + 0.2 * torch.rand_like(parameter))
            elif "lora_" in label:
                torch.nn.init.normal_(parameter, std=0.1)
            elif "modules_to_save" in label or "trainable" in label or label.endswith("bias"):
                parameter.data.add_(0.1 * torch.randn_like(parameter))
        model.eval().save_pretrained(folder)
    return model


def logits_of(model: Any, tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(torch.tensor([tokens])).logits[0]
    return found


def write_small_adapter(folder: Path, num_layers: int, hidden: int, seed: int) -> None:
    """Write an adapter of the output projections of a model built like Llama, without PEFT and without the model."""
    generator, tensors = torch.Generator().manual_seed(seed), {}
    for layer in range(num_layers):
        path = f"base_model.model.model.layers.{layer}.self_attn.o_proj"
        for name, shape in (("lora_A", (2, hidden)), ("lora_B", (hidden, 2))):
            tensors[f"{path}.{name}.weight"] = 0.02 * torch.randn(shape, generator=generator)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    facts = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["o_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(facts))
