#!/usr/bin/env bash
# MiMo-V2-Flash is published with `sliding_window` 128 and `sliding_window_size` 128. transformers 5.24.0 makes a window of
# 129 of that: `sliding_window_size` goes first, and counts the query's own position as one more (a comment names SGLang's
# way). llama.cpp's converter (llama-cpp-python 0.3.36, conversion/mimo.py) writes `sliding_window` as it stands, so the
# same checkpoint attends to one position fewer there, and texts may differ once they are longer than the window.
#
# Seen (Python 3.11.7, torch 2.13.0, transformers 5.24.0): with both at 6 the logits of the last token of 12 are changed by
# tokens of the last 7 positions, with sliding_window 6 alone by the last 6. Expected: one meaning of a window of 6.
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


found = {"both 6": seen(sliding_window=6, sliding_window_size=6), "sliding_window 6": seen(sliding_window=6)}
print(found)
assert found == {"both 6": (7, 7), "sliding_window 6": (6, 6)}, "the behaviour has changed"
PYTHON
"$folder/venv/bin/python" "$folder/compare.py"
