#!/usr/bin/env bash
# transformers 5.24.0, on a CPU without mamba-ssm: a prompt given to Jamba (or Mamba 1) in two calls of several tokens is
# silently computed wrong: the second call's Mamba layers begin with an empty state, and what the first call left in the
# cache is lost. One token at a time is right. So generate(prefill_chunk_size=...), or any loop that prefills by chunks,
# gives other logits than one call.
#
# Seen (Python 3.11.7, torch 2.13.0), largest difference of the last token's logits from one call for 24 tokens:
# a second call of four tokens above 0.01, of one token below 0.001. Expected: below 0.001 both.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.24.0 numpy
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import torch
import transformers

IDS = torch.randint(0, 97, (1, 24), generator=torch.Generator().manual_seed(1))
torch.manual_seed(0)
config = transformers.AutoConfig.for_model(
    "jamba", vocab_size=97, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    intermediate_size=48, max_position_embeddings=128, eos_token_id=None, bos_token_id=None, pad_token_id=None,
    attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1, num_experts=2,
    num_experts_per_tok=1, mamba_d_state=8, mamba_dt_rank=4,
)
model = transformers.AutoModelForCausalLM.from_config(config).eval()
for parameter in model.parameters():
    torch.nn.init.normal_(parameter, std=0.4)
with torch.no_grad():
    whole = model(IDS, use_cache=False).logits[:, -1]
    found = {}
    for count in (4, 1):
        cache = model(IDS[:, :-count], use_cache=True).cache
        later = model(IDS[:, -count:], cache=cache, use_cache=True).logits[:, -1]
        found[count] = float((later - whole).abs().max())
print({count: f"{value:.1g}" for count, value in found.items()})
assert found[4] > 0.01 and found[1] < 1e-3, "the behaviour has changed"
PYTHON
