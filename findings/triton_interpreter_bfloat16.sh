#!/usr/bin/env bash
# Triton 3.9.0 under its interpreter (TRITON_INTERPRET=1): bfloat16 is not what a GPU computes. A float32 stored as
# bfloat16 is cut off in the place of being rounded, and tl.dot of two tiles of bfloat16 multiplies the 16 bits of each
# number as an integer, without a word. float16 and float32 are right. A kernel whose tests run interpreted thus gives other
# numbers in bfloat16 than on a GPU, or numbers without sense.
#
# Seen (Python 3.11.7, torch 2.13.0): 1.005859375 is stored as 1.0, where torch gives 1.0078125; the product of two tiles
# with entries from 0 to 6 is above 10^9, where it is 156. Expected: round to nearest even, and the product of the numbers.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 triton==3.9.0 numpy
cat > "$folder/kernels.py" <<'PYTHON'
import torch
import triton
import triton.language as tl


@triton.jit
def stored(x, out):
    i = tl.arange(0, 4)
    tl.store(out + i, tl.load(x + i).to(out.dtype.element_ty))


@triton.jit
def squared(x, out):
    i = tl.arange(0, 16)
    at = i[:, None] * 16 + i[None, :]
    tile = tl.load(x + at)
    tl.store(out + at, tl.dot(tile, tile))


numbers = torch.tensor([1.005859375, 1.00390625 + 2**-9, 3.1415926, -2.7182817])
tile = (torch.arange(256).view(16, 16) % 7).float()
wrong = []
for dtype in (torch.float16, torch.bfloat16):
    out = torch.zeros(4, dtype=dtype)
    stored[(1,)](numbers, out)
    rounds = torch.equal(out, numbers.to(dtype))
    product = torch.zeros(16, 16)
    squared[(1,)](tile.to(dtype), product)
    multiplies = torch.equal(product, tile @ tile)
    print(dtype, "rounds:", rounds, out[0].item(), "multiplies:", multiplies, product[0, 0].item())
    wrong.append((rounds, multiplies))
assert wrong == [(True, True), (False, False)], "the behaviour has changed"
PYTHON
TRITON_INTERPRET=1 "$folder/venv/bin/python" "$folder/kernels.py"
