"""Make the golden hashes anew with transformers and compare them with the table in tokenmill/measure/golden.py.

    python benchmarks/golden_texts.py [--dtype float32 --dtype bfloat16 --dtype float16]

Exit code 1 when one differs. A prompt belongs into the table only when all three dtypes give the same tokens.
"""

import argparse
import sys

import torch
import transformers

import tokenmill
from tokenmill.measure.golden import GOLDEN, NEW_TOKENS
from tokenmill.outputs import hash_tokens
from tokenmill.weights.hub import locate


def hashes(name: str, dtype: str) -> dict[str, str]:
    """Prompt → hash of transformers' greedy tokens, from the same file."""
    path = locate(name)
    encode = tokenmill.load(path, max_length=64).encode
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
            )
        found[prompt] = hash_tokens(out[0, len(tokens) :].tolist())
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", action="append")
    dtypes = parser.parse_args().dtype or ["float32", "bfloat16", "float16"]
    wrong = 0
    for name, table in GOLDEN.items():
        for dtype in dtypes:
            for prompt, found in hashes(name, dtype).items():
                wrong += found != table[prompt]
                print(f"{name} {dtype:>8} {found} {'ok' if found == table[prompt] else 'WRONG'} {prompt!r}")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
