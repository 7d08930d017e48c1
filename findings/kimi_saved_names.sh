#!/usr/bin/env bash
# transformers 5.24.0: save_pretrained of two Kimi models writes names that no published file has, since the renamings that
# loading needs are undone for tensors that they were not made for.
#
# Kimi K2.5 (kimi_k25): the layers of the language model are written as language_model.model.blocks.N, as the layers of the
# vision tower are; published files have language_model.model.layers.N. Kimi Linear (kimi_linear): the matrices of a layer
# without experts are written as block_sparse_moe.gate_proj, as a mixture's are; published files have mlp.gate_proj.
#
# Seen (Python 3.11.7, torch 2.13.0): names as above. transformers reads both kinds of files, programs that expect the
# published names do not read the written ones.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.24.0 numpy
"$folder/venv/bin/python" - "$folder" 2>/dev/null <<'PYTHON'
import sys
from pathlib import Path

import transformers
from safetensors import safe_open

LATENT = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "q_lora_rank": None, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
    "v_head_dim": 8, "moe_intermediate_size": 16, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 14}
DEEPSEEK = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
KIMI = {
    "num_experts": 4, "num_experts_per_token": 2, "linear_head_dim": 8, "linear_num_heads": 4,
    "layer_types": ["linear_attention", "full_attention"], "mlp_layer_types": ["dense", "sparse"],
}


def saved(kind, auto, **config):
    folder = Path(sys.argv[1], kind)
    auto.from_config(transformers.AutoConfig.for_model(kind, **config)).save_pretrained(folder)
    return {name for file in folder.glob("*.safetensors") for name in safe_open(file, "pt").keys()}


sees = {"text_config": LATENT | DEEPSEEK, "vision_config": VISION, "projection_hidden_size": 16}
whole = saved("kimi_k25", transformers.AutoModelForImageTextToText, tie_word_embeddings=False, **sees)
linear = saved("kimi_linear", transformers.AutoModelForCausalLM, **LATENT | KIMI)
text = sorted(name for name in whole if name.startswith("language_model.model.") and name.count(".") > 3)
dense = sorted(name for name in linear if ".layers.0." in name and "gate_proj" in name)
print(text[0], dense)
assert all(name.startswith("language_model.model.blocks.") for name in text), "another behaviour than stated above"
assert dense == ["model.layers.0.block_sparse_moe.gate_proj.weight"], "another behaviour than stated above"
PYTHON
