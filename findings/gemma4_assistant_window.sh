#!/usr/bin/env bash
# transformers 5.24.0: the sliding layers of a Gemma 4 assistant see one row more than the layers of the model whose rows they
# read. A layer of the model with sliding_window = W sees W tokens, its own among them; the assistant's layer, with the same W
# in its config, sees the W rows before its position and its position's own place, which has no row: its mask admits a
# distance of at most W, the model's one below W. Whoever computes an assistant with the window of its config drafts other
# tokens in texts longer than W.
#
# Seen (Python 3.11.7, torch 2.13.0, random weights, W = 4): of the rows of K and V that are given, each of the last 5 changes
# the assistant's logits when it is changed, the 6th from the end does not. Expected: the last 4, or 3 beside its own place.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.24.0 numpy 2>/dev/null
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import torch
import transformers

WINDOW, ROWS, HEADS, WIDTH = 4, 12, 2, 8
text = {
    "model_type": "gemma4_text",
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": HEADS,
    "head_dim": WIDTH,
    "global_head_dim": WIDTH,
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"],
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 0,
}
torch.manual_seed(0)
config = transformers.Gemma4AssistantConfig(text_config=text, backbone_hidden_size=32)
assistant = transformers.Gemma4AssistantForCausalLM(config).eval()
for parameter in assistant.parameters():
    torch.nn.init.normal_(parameter, std=0.3)
full, sliding, given = (torch.randn(shape) for shape in ((1, HEADS, ROWS, WIDTH), (1, HEADS, ROWS, WIDTH), (1, 1, 64)))


@torch.no_grad()
def logits(rows):
    kept = {"full_attention": (full, full), "sliding_attention": (rows, rows)}
    place = torch.tensor([[ROWS]])
    return assistant(inputs_embeds=given, position_ids=place, shared_kv_states=kept, attention_mask=None).logits


seen = []
for row in range(ROWS):
    changed = sliding.clone()
    changed[:, :, row] += 1
    seen.append(not torch.equal(logits(sliding), logits(changed)))
print("rows from the end that count:", [ROWS - row for row in range(ROWS) if seen[row]])
assert [ROWS - row for row in range(ROWS) if seen[row]] == [5, 4, 3, 2, 1], "another window than the one stated above"
PYTHON
