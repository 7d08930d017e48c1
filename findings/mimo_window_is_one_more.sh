#!/usr/bin/env bash
# MiMo-V2-Flash is published with `sliding_window_size` 128. transformers 5.24.0 makes a window of 129 of it, because its
# class counts the query's own position as one more (its comment names SGLang's way), while `sliding_window` is taken as it
# stands. llama.cpp's converter writes the published number as it is, so the same checkpoint attends to one position fewer
# there. Texts of the two differ once a text is longer than the window.
#
# Seen (Python 3.11.7, torch 2.13.0, transformers 5.24.0): sliding_window_size 6 → the last token of 12 is changed by the
# 7 last positions, sliding_window 6 → by 6. Expected: one meaning of a window of 6.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.24.0
cat > "$folder/compare.py" <<'PYTHON'
import torch
from transformers import MiMoV2FlashConfig, MiMoV2FlashForCausalLM


def seen(**window):
    """Count the positions whose token changes the logits of the last one."""
    config = MiMoV2FlashConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4, head_dim=16,
        v_head_dim=8, num_key_value_heads=2, layer_types=["sliding_attention"], mlp_layer_types=["dense"], **window,
    )
    torch.manual_seed(0)
    model = MiMoV2FlashForCausalLM(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    ids = torch.arange(1, 13)[None]
    with torch.no_grad():
        before = model(ids, use_cache=False).logits[0, -1]
        changed = 0
        for position in range(12):
            other = ids.clone()
            other[0, position] = 40
            changed += not torch.equal(model(other, use_cache=False).logits[0, -1], before)
    return config.sliding_window, changed


found = {"sliding_window_size 6": seen(sliding_window_size=6), "sliding_window 6": seen(sliding_window=6)}
print(found)
assert found == {"sliding_window_size 6": (7, 7), "sliding_window 6": (6, 6)}, "the behaviour has changed"
PYTHON
"$folder/venv/bin/python" "$folder/compare.py"
