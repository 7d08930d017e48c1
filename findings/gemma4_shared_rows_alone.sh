#!/usr/bin/env bash
# transformers 5.24.0: a Gemma 4 whose last layers share K and V (num_kv_shared_layers) and that has no inputs of each layer
# (hidden_size_per_layer_input 0), which its config allows, computes one token and not several: before the first layer that
# shares, forward() cuts the inputs of each layer, which are None, and raises TypeError.
#
# Seen (Python 3.11.7, torch 2.13.0): one token gives logits, two tokens raise TypeError; with inputs of each layer both
# work. Expected: logits in all four cases.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.24.0 numpy
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import torch
import transformers


@torch.no_grad()
def computes(size, num_tokens):
    config = transformers.Gemma4TextConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        global_head_dim=8,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention"] * 2,
        num_kv_shared_layers=2,
        hidden_size_per_layer_input=size,
        vocab_size_per_layer_input=97,
    )
    model = transformers.Gemma4ForCausalLM(config).eval()
    try:
        return bool(model(torch.arange(num_tokens)[None], use_cache=False).logits.isfinite().all())
    except TypeError as error:
        return f"TypeError: {error}"


found = {(size, count): computes(size, count) for size in (0, 8) for count in (1, 2)}
print(found)
assert found[0, 1] is found[8, 1] is found[8, 2] is True, "another behaviour than the one stated above"
assert "not subscriptable" in str(found[0, 2]), "another behaviour than the one stated above"
PYTHON
