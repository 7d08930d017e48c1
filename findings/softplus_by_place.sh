#!/usr/bin/env bash
# torch 2.13.0 on a CPU: torch.nn.functional.softplus of a float32 number depends on where the number stands. A tensor is
# computed in vectors, and the numbers that are left over at its end one by one, with another logarithm: they differ in the
# last bit. exp, log1p, and log1p(exp(x)) written out do not depend on the place. A model whose time steps or decays pass
# softplus (Mamba, delta nets) so gets other bits for a head when the heads are divided among processes, or when one more
# token stands in the step.
#
# Seen (Python 3.11.7, AVX2), numbers that differ from the same number alone, of 129 tensors of 1 to 129 numbers, 8,385
# numbers in all: softplus 155, log1p(exp(x)) 0. Expected: 0 both.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import torch

torch.set_num_threads(1)
numbers = torch.randn(200, generator=torch.Generator().manual_seed(0)) * 3


def count(function):
    """The numbers of tensors of 1 to 129 numbers that are others than in a tensor of 128 copies of that number."""
    alone = torch.stack([function(number.expand(128).contiguous())[0] for number in numbers])
    return sum(int((function(numbers[:size]) != alone[:size]).sum()) for size in range(1, 130))


found = count(torch.nn.functional.softplus), count(lambda x: torch.log1p(torch.exp(x)))
print("softplus:", found[0], "log1p(exp(x)):", found[1])
assert found[0] > 50 and found[1] == 0, "another behaviour than the one stated above"
PYTHON
