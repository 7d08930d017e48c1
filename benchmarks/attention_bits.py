"""The numbers of queries for which torch's attention gives a query the same bits: groups of them, for docs/promise.md.

python benchmarks/attention_bits.py
ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 python benchmarks/attention_bits.py
"""

import torch
from torch.nn.functional import scaled_dot_product_attention

COUNTS = (*range(1, 9), 16, 31, 32, 33, 34, 35, 64, 65, 79)
SHAPES = ((9, 64, 100), (4, 128, 700), (3, 64, 33))  # heads, width of a head, keys


def groups(dtype: torch.dtype, heads: int, width: int, keys: int) -> list[list[int]]:
    """Group the numbers of queries: within a group the last query of them has the same bits, whichever number it is."""
    generator = torch.Generator().manual_seed(1)
    last, k, v = (torch.randn(1, heads, count, width, generator=generator).to(dtype) for count in (1, keys, keys))
    found: list[tuple[torch.Tensor, list[int]]] = []
    for count in COUNTS:
        others = torch.randn(1, heads, count - 1, width, generator=generator).to(dtype)
        out = scaled_dot_product_attention(torch.cat((others, last), 2), k, v)[:, :, -1]
        for bits, counts in found:
            if torch.equal(bits, out):
                counts.append(count)
                break
        else:
            found.append((out, [count]))
    return [counts for _, counts in found]


if __name__ == "__main__":
    print(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}")
    for dtype in (torch.float32, torch.bfloat16):
        for shape in SHAPES:
            print(dtype, shape, *groups(dtype, *shape))
