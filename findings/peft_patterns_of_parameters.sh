#!/usr/bin/env bash
# PEFT 0.21.2: a tensor that target_parameters name is looked up in alpha_pattern and rank_pattern by its own name, the
# module's with ".weight" behind it. The name of the module, which works for target_modules and which the saved tensors
# have (….mlp.gate.lora_A.weight), does not count: the product has the scale of the config's lora_alpha. The warning
# about patterns that match nothing looks at modules, and so comes for the pattern that is used. A reader of adapters
# that matches patterns with the names in the file computes another model.
#
# Seen (Python 3.11.7, torch 2.13.0, transformers 5.24.0), scale of the router's product with lora_alpha 8 and r 4:
# alpha_pattern {"mlp.gate": 64} 2.0; {"gate.weight": 64} 16.0, with a warning that the key was ignored; of a q_proj in
# target_modules {"q_proj": 64} 16.0 without one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.24.0 peft==0.21.2 numpy
"$folder/venv/bin/python" - "$folder" 2>/dev/null <<'PYTHON'
import sys
import warnings

import torch
import transformers
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from safetensors import safe_open

SIZES = {
    "vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "num_local_experts": 4, "num_experts_per_tok": 2,
}


def adapted(pattern, **targets):
    torch.manual_seed(0)
    base = transformers.MixtralForCausalLM(transformers.MixtralConfig(**SIZES))
    return get_peft_model(base, LoraConfig(r=4, lora_alpha=8, alpha_pattern=pattern, **targets))


def scale(pattern, **targets):
    """The scale of the factors, and whether a warning says that the pattern was ignored."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        layers = [each for each in adapted(pattern, **targets).modules() if isinstance(each, LoraLayer)]
    (found,) = {layer.scaling["default"] for layer in layers}
    return found, any("were ignored" in str(each.message) for each in said)


router = {"target_modules": [], "target_parameters": ["gate.weight"]}
seen = {key: scale({key: 64}, **router) for key in ("mlp.gate", "gate.weight")}
seen["q_proj"] = scale({"q_proj": 64}, target_modules=["q_proj"])
print(seen)
wanted = {"mlp.gate": (2.0, True), "gate.weight": (16.0, True), "q_proj": (16.0, False)}
assert seen == wanted, "the behaviour has changed"
adapted({"gate": 64}, **router).save_pretrained(sys.argv[1])
with safe_open(f"{sys.argv[1]}/adapter_model.safetensors", "pt") as opened:
    names = sorted(opened.keys())
print(names)
assert all(".mlp.gate.lora_" in name for name in names)
PYTHON
