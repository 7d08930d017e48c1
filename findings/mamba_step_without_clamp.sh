#!/usr/bin/env bash
# transformers 5.24.0, on a CPU without mamba-ssm: Mamba 2 brings a head's time step between the limits of
# time_step_limit where it computes several tokens in one call, and not where it computes one with a cache. Nemotron-H
# does the same with time_step_min (0.001, a number that elsewhere only initialises), and ignores time_step_limit. So
# generate(), which computes one token a call, writes another text than forward() over the whole text would choose, as
# soon as one time step lies outside. The last token as two of a call agrees with the whole text; as one it does not.
#
# Seen (Python 3.11.7, torch 2.13.0), largest difference of the last token's logits from the whole text's:
# mamba2 with time_step_limit [0.9, 9]: one token 0.1 and more, two tokens below 0.0001; nemotron_h with time steps of
# about 0.0001: likewise. Expected: below 0.0001 everywhere.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.24.0 numpy
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import torch
import transformers

IDS = torch.randint(0, 97, (1, 24), generator=torch.Generator().manual_seed(1))
SHARED = {"vocab_size": 97, "hidden_size": 32, "eos_token_id": None, "bos_token_id": None, "pad_token_id": None}


def model_of(kind, **numbers):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **SHARED, **numbers)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model


@torch.no_grad()
def difference(model, count):
    """How far the last token's logits are from the whole text's, when the last `count` tokens are a call of their own."""
    whole = model(IDS, use_cache=False).logits
    cache = model(IDS[:, :-count], use_cache=True).cache
    return float((model(IDS[:, -count:], cache=cache, use_cache=True).logits[:, -1] - whole[:, -1]).abs().max())


limited = model_of(
    "mamba2", num_hidden_layers=2, num_heads=8, head_dim=8, state_size=16, n_groups=1, time_step_limit=[0.9, 9.0]
)
floored = model_of(
    "nemotron_h", layers_block_type=["linear_attention", "full_attention"], num_attention_heads=4,
    num_key_value_heads=2, head_dim=8, intermediate_size=48, mamba_num_heads=8, mamba_head_dim=8, n_groups=1,
    ssm_state_size=16,
)
with torch.no_grad():
    floored.model.layers[0].mixer.dt_bias.fill_(-9.0)
    floored.model.layers[0].mixer.D.fill_(0.0)
for name, model in (("mamba2", limited), ("nemotron_h", floored)):
    one, two = difference(model, 1), difference(model, 2)
    print(f"{name}: one token {one:.1g}, two tokens {two:.1g}")
    assert one > 0.01 and two < 1e-3, "the behaviour has changed"
PYTHON
