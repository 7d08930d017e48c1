#!/usr/bin/env bash
# transformers 5.24.0: Bamba's forward() with a cache and without position_ids counts the positions of new tokens from 0
# again, so that its attention layers rotate them as if the text began there. Other families count on from the length of
# the cache. generate() passes position_ids and is right; a loop of one's own over forward() is wrong, without a word.
#
# Seen (Python 3.11.7, torch 2.13.0), largest difference of logits of the last four of 24 tokens from one call for all:
# without position_ids above 0.01, with them below 0.0001; llama: below 0.0001 both ways. Expected: as llama.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.24.0 numpy
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import torch
import transformers

IDS = torch.randint(0, 97, (1, 24), generator=torch.Generator().manual_seed(1))
SHARED = {
    "vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "max_position_embeddings": 128, "eos_token_id": None, "bos_token_id": None,
    "pad_token_id": None,
}


@torch.no_grad()
def differences(kind, **numbers):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **SHARED, **numbers)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    whole = model(IDS, use_cache=False).logits[:, -4:]
    found = []
    for given in ({}, {"position_ids": torch.arange(20, 24)[None]}):
        cache = model(IDS[:, :-4], use_cache=True).cache
        found.append(float((model(IDS[:, -4:], cache=cache, use_cache=True, **given).logits - whole).abs().max()))
    print(f"{kind}: without position_ids {found[0]:.1g}, with them {found[1]:.1g}")
    return found


without, given = differences("bamba", attn_layer_indices=[1], mamba_n_heads=8, mamba_d_head=8, mamba_d_state=16)
assert without > 0.01 and given < 1e-3, "the behaviour has changed"
assert max(differences("llama")) < 1e-3
PYTHON
