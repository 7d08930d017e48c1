"""Make the golden texts anew with transformers and compare them with the table in tokenmill/bench/golden.py.

    python benchmarks/golden_texts.py [--dtype float32 --dtype bfloat16 --dtype float16]

Exit code 1 when one differs, or when in float32 some step's likeliest token leads the next by less than 0.15: such a
prompt does not belong into the table, because bfloat16 may turn it without anything being wrong.
"""

import argparse
import sys

import torch
import transformers

import tokenmill
from tokenmill.bench.golden import GOLDEN, NEW_TOKENS, token_ids
from tokenmill.engine.outputs import hash_tokens
from tokenmill.hub.names import locate

LEAST_LEAD = 0.15
DTYPES = {"gemma3-270m": ["float32", "bfloat16"]}  # in float16 its residuals overflow in transformers


def texts(name: str, dtype: str) -> dict[str, tuple[list[int], float]]:
    """Prompt → transformers' greedy tokens from the same file, and the smallest lead of the likeliest."""
    path = locate(name)
    encode = tokenmill.load(path, max_length=64, program="eager").encode
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=getattr(torch, dtype)
    ).eval()
    found = {}
    for prompt in GOLDEN[name]:
        tokens = encode(prompt)
        ids = torch.tensor([tokens])
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=NEW_TOKENS,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
                return_dict_in_generate=True,
                output_logits=True,
            )
        best = torch.stack(out.logits).float().topk(2).values
        lead = float((best[..., 0] - best[..., 1]).min())
        found[prompt] = (out.sequences[0, len(tokens) :].tolist(), lead)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", action="append")
    asked = parser.parse_args().dtype
    wrong = 0
    for name, table in GOLDEN.items():
        for dtype in asked or DTYPES.get(name, ["float32", "bfloat16", "float16"]):
            for prompt, (found, lead) in texts(name, dtype).items():
                good = found == token_ids(table[prompt]) and (dtype != "float32" or lead >= LEAST_LEAD)
                wrong += not good
                print(f"{name} {dtype:>8} {hash_tokens(found)} lead {lead:.2f} {'ok' if good else 'WRONG'} {prompt!r}")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
