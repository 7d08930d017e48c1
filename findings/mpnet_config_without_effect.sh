#!/usr/bin/env bash
# MPNet of transformers 5.24.0 ignores two numbers of its config. `relative_attention_num_buckets` sizes the table of the
# relative attention bias, but MPNetEncoder.compute_position_bias is called without it and uses its default, 32: of a table
# with 64 rows the last 32 are never read, however long the text is. `pad_token_id` is 1 in the code: positions of a model
# whose config names another padding still begin behind 1. An engine that follows the config computes other vectors.
#
# Seen (Python 3.11.7, torch 2.13.0, transformers 5.24.0): other numbers in rows 32 to 63 change no output, and in rows 0
# to 31 they do; with pad_token_id 5 the first token has position 2. Expected: as the config says.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.24.0
cat > "$folder/compare.py" <<'PYTHON'
import torch
from transformers import MPNetConfig, MPNetModel

torch.manual_seed(0)
config = MPNetConfig(
    vocab_size=100, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    max_position_embeddings=300, relative_attention_num_buckets=64, pad_token_id=5,
)
model = MPNetModel(config).eval()
table = model.encoder.relative_attention_bias.weight
texts = torch.randint(10, 100, (1, 280), generator=torch.Generator().manual_seed(1))


def rows():
    with torch.no_grad():
        return model(texts).last_hidden_state


before = rows()
with torch.no_grad():
    table[32:] += 3
unread = torch.equal(rows(), before)
with torch.no_grad():
    table[:32, 0] += torch.arange(32.0)
read = not torch.equal(rows(), before)
found = []
model.embeddings.position_embeddings.register_forward_pre_hook(lambda module, inputs: found.append(inputs[0][0, 0].item()))
rows()
print(f"rows of the table: {len(table)}; other numbers from row 32 on change nothing: {unread}; before it they do: {read}")
print(f"pad_token_id {config.pad_token_id}, position of the first token: {found[0]}")
assert len(table) == 64 and unread and read and found == [2], "the behaviour has changed"
PYTHON
"$folder/venv/bin/python" "$folder/compare.py"
