#!/usr/bin/env bash
# In transformers 5.24.0 Laguna's `gating` is documented as a flag or the name of a form. `gating: false` does not leave the
# gates of attention out: whatever is neither True nor "per-head" gives a gate for each number of each head, so false has
# the widest gates of all, the same as "per-element". A checkpoint that was saved without gates misses tensors there.
#
# Seen (Python 3.11.7, torch 2.13.0, transformers 5.24.0): rows of the gates' matrix with 4 heads of 8 numbers: true 4,
# "per-head" 4, "per-element" 32, false 32. Expected of false: no matrix.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.24.0
cat > "$folder/compare.py" <<'PYTHON'
from transformers import LagunaConfig, LagunaForCausalLM


def rows_of_gates(gating):
    config = LagunaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4, head_dim=8,
        num_key_value_heads=2, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
        shared_expert_intermediate_size=16, layer_types=["full_attention"], num_attention_heads_per_layer=[4],
        mlp_layer_types=["dense"], gating=gating,
    )
    model = LagunaForCausalLM(config)
    return [len(tensor) for name, tensor in model.named_parameters() if "self_attn" in name and "g_proj" in name]


found = {str(gating): rows_of_gates(gating) for gating in (True, "per-head", "per-element", False)}
print(found)
assert found == {"True": [4], "per-head": [4], "per-element": [32], "False": [32]}, "the behaviour has changed"
PYTHON
"$folder/venv/bin/python" "$folder/compare.py"
