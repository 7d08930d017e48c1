"""Kernels in Triton: the numbers of a plain reference, the same bits for a row alone, code for three kinds of GPU."""

import json
import os
import subprocess
import sys

import pytest
import torch

from tokenmill.errors import ConfigError
from tokenmill.model.blocks import Norm
from tokenmill.model.layers import ACTIVATIONS, clamped_swiglu
from tokenmill.model.rope import apply_rotary
from tokenmill.quant.matrix import Matrix
from tokenmill.quant.quantized import QuantizedLinear
from tokenmill.quant.stored import Stored

pytest.importorskip("triton", reason="there is no Triton for this system")
from tokenmill.program.graphs import layers, matrices

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(DEVICE)


def codes(bits, outputs, inputs, minimums=False, factors=False, seed=1):
    """Rows of codes with scales; inputs are filled up to whole groups, as files have them."""
    groups, given = -(-inputs // 32), torch.Generator().manual_seed(seed)
    drawn = torch.randint(0, 1 << bits, (outputs, 32 * groups), generator=given, dtype=torch.uint8).to(DEVICE)
    scales = normal(outputs, groups, seed=seed).abs() / (1 << bits)
    lowest = normal(outputs, groups, seed=seed + 1) if minimums else None
    if bits in (4, 8):  # which float16 holds
        scales, lowest = scales.half().float(), None if lowest is None else lowest.half().float()
    of_halves = torch.randint(1, 60, (outputs, 2 * groups), generator=given, dtype=torch.int8).to(DEVICE)
    return Stored(bits, codes=drawn, scales=scales, minimums=lowest, factors=of_halves if factors else None)


STORED = {
    "plain": lambda outputs, inputs, dtype: Stored.plain(normal(outputs, inputs, seed=1, dtype=dtype)),
    "8 bits": lambda outputs, inputs, _: codes(8, outputs, inputs),
    "6 bits": lambda outputs, inputs, _: codes(6, outputs, inputs, factors=True),
    "5 bits": lambda outputs, inputs, _: codes(5, outputs, inputs, minimums=True),
    "4 bits": lambda outputs, inputs, _: codes(4, outputs, inputs),
    "4 bits, minimums": lambda outputs, inputs, _: codes(4, outputs, inputs, minimums=True),
}


def matrix_of(*parts, inputs, bias=None):
    """The module of a matrix that has these parts, as a load leaves it."""
    outputs, is_plain = sum(part.num_rows for part in parts), len(parts) == 1 and parts[0].numbers is not None
    made = (Matrix if is_plain else QuantizedLinear)(inputs, outputs, bias is not None)
    made.fill(parts)
    if bias is not None:
        made.bias = torch.nn.Parameter(bias, requires_grad=False)
    return made


def values(module, inputs, dtype):
    parts = module.parts() if isinstance(module, QuantizedLinear) else [Stored.plain(module.weight)]
    return torch.cat([part.values().to(dtype).float()[:, :inputs] for part in parts])


@DTYPES
@pytest.mark.parametrize("kind", STORED)
@pytest.mark.parametrize(("inputs", "outputs", "rows"), [(96, 40, 3), (70, 33, 17)])
def test_a_product(kind, inputs, outputs, rows, dtype):
    stored, bias = STORED[kind](outputs, inputs, dtype), normal(outputs, seed=3, dtype=dtype)
    plain = matrix_of(stored, inputs=inputs, bias=bias)
    wanted = values(plain, inputs, dtype)
    x = normal(rows, inputs, seed=4, dtype=dtype)
    found = matrices.GraphMatrix.of(plain, (0.5,))(x, x.new_empty(rows, outputs))
    reference = 0.5 * (x.float() @ wanted.T + bias.float())
    assert (found.float() - reference).abs().max() <= TOLERANCE[dtype] * reference.abs().max()


@DTYPES
@pytest.mark.parametrize("kind", ["plain", "4 bits", "8 bits", "mixed"])
@pytest.mark.parametrize("unit_offset", [False, True])
def test_an_mlp_behind_a_norm(kind, unit_offset, dtype):
    """Gates and factors in one kernel, or each by itself where they are stored in two ways."""
    if kind == "mixed":
        up = matrix_of(codes(4, 24, 64, seed=5), codes(8, 24, 64, seed=6), inputs=64)
    else:
        up = matrix_of(STORED[kind](48, 64, dtype), inputs=64)
    x, weight = normal(5, 64, seed=7, dtype=dtype), normal(64, seed=8, dtype=dtype)
    norm = matrices.NormOf(weight, 1e-5, unit_offset)
    wide = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-5) * (weight.float() + unit_offset)
    gate, factor = ((0.5 * wide) @ values(up, 64, dtype).T).chunk(2, dim=-1)
    wanted = torch.nn.functional.gelu(gate, approximate="tanh") * factor / 0.5
    matrix = matrices.GraphMatrix.of(up, (0.5, 1.0), gated=True)
    assert matrix.splits_gates == (kind == "mixed")
    if matrix.splits_gates:
        made = matrix(x, x.new_empty(5, 48, dtype=torch.float32), norm)
        found = torch.nn.functional.gelu(made[:, :24], approximate="tanh") * made[:, 24:]
    else:
        found = matrix(x, x.new_empty(5, 24), norm, "gelu_pytorch_tanh")
    assert (found.float() - wanted).abs().max() <= 2 * TOLERANCE[dtype] * wanted.abs().max()


@pytest.mark.parametrize("activation", ["relu", "relu2", "silu", "gelu", "gelu_pytorch_tanh"])
def test_activations(activation):
    """On numbers small and large, and on NaN, which must fail its text and not become 0."""
    same, x = matrix_of(Stored.plain(torch.eye(16, device=DEVICE)), inputs=16), normal(1, 16, seed=2) * 40
    found = matrices.GraphMatrix.of(same)(x, torch.empty_like(x), None, activation)
    assert (found - ACTIVATIONS[activation](x)).abs().max() <= 2e-6 * x.square().max()
    bad = torch.full_like(x, torch.nan)
    assert matrices.GraphMatrix.of(same)(bad, torch.empty_like(x), None, activation).isnan().all()


@DTYPES
def test_what_is_added(dtype):
    down, x, before = (
        matrix_of(STORED["plain"](32, 64, dtype), inputs=64),
        normal(3, 64, dtype=dtype),
        normal(3, 32, dtype=dtype),
    )
    out = before.clone()
    matrices.GraphMatrix.of(down)(x, out, adds=0.25)
    wanted = before.float() + 0.25 * (x.float() @ values(down, 64, dtype).T)
    assert (out.float() - wanted).abs().max() <= TOLERANCE[dtype] * wanted.abs().max()
    out, weight = before.clone(), normal(32, seed=9, dtype=dtype)
    part = normal(3, 32, seed=10, dtype=dtype)
    matrices.add_norm(part, out, matrices.NormOf(weight, 1e-6, True), 0.5)
    norm = Norm(32, "rms", 1e-6, unit_offset=True)
    wide = part.float() * torch.rsqrt(part.float().square().mean(-1, keepdim=True) + norm.eps) * (1 + weight.float())
    wanted = before.float() + 0.5 * wide
    assert (out.float() - wanted).abs().max() <= TOLERANCE[dtype] * wanted.abs().max()


@DTYPES
@pytest.mark.parametrize("kind", ["plain", "4 bits, minimums"])
def test_a_row_has_the_same_bits_alone_and_among_others(kind, dtype):
    matrix = matrices.GraphMatrix.of(matrix_of(STORED[kind](40, 96, dtype), inputs=96))
    norm = matrices.NormOf(normal(96, seed=2, dtype=dtype), 1e-5, False)
    x = normal(19, 96, seed=3, dtype=dtype)
    together = matrix(x, x.new_empty(19, 40), norm)
    for row in (0, 7, 16, 18):
        assert torch.equal(matrix(x[row : row + 1], x.new_empty(1, 40), norm)[0], together[row])


@DTYPES
@pytest.mark.parametrize("kind", ["plain", "8 bits", "4 bits, minimums"])
def test_experts_by_their_numbers(kind, dtype):
    """Each row with two of five experts, their matrices and biases one behind the other; the modules read the same."""
    modules = [
        matrix_of(STORED[kind](48, 64, dtype), inputs=64, bias=normal(48, seed=at, dtype=dtype)) for at in range(5)
    ]
    for number, each in enumerate(modules):
        if kind == "plain":
            each.weight.data = normal(48, 64, seed=20 + number, dtype=dtype)
        else:
            each.scales_0 = each.scales_0 * (1 + number)
    before = [values(each, 64, dtype) for each in modules]
    matrix = matrices.GraphMatrix.of_experts(modules, (), True)
    assert all(torch.equal(values(each, 64, dtype), was) for each, was in zip(modules, before, strict=True))
    x, chosen = normal(3, 64, seed=7, dtype=dtype), torch.tensor([[0, 4], [2, 3], [1, 4]], device=DEVICE)
    clamps = matrices.Clamps(1.7, 3.0)
    found = matrix(x, x.new_empty(6, 24), clamps=clamps, experts=matrices.Experts(chosen, False))
    for pair, expert in enumerate(chosen.flatten().tolist()):
        made = x[pair // 2].float() @ before[expert].T + modules[expert].bias.float()
        wanted = clamped_swiglu(*made.chunk(2), *clamps)
        assert (found[pair].float() - wanted).abs().max() <= 2 * TOLERANCE[dtype] * wanted.abs().max()
    weights, out = normal(3, 2, seed=9), normal(3, 24, seed=10, dtype=dtype)
    wanted = out.float() + 0.5 * (found.float().view(3, 2, 24) * weights[..., None]).sum(1)
    matrices.add_experts(found.float(), weights, out, 0.5)
    assert (out.float() - wanted).abs().max() <= TOLERANCE[dtype] * wanted.abs().max()


def test_experts_that_are_stored_in_several_ways_are_refused():
    modules = [matrix_of(STORED[kind](32, 64, torch.float32), inputs=64) for kind in ("4 bits", "8 bits")]
    with pytest.raises(ConfigError, match="experts of a layer are stored in several ways"):
        matrices.GraphMatrix.of_experts(modules, (), False)


class Block:
    """The part of a description that GraphAttention reads."""

    def __init__(self, heads, kv_heads, width, window=None, softcap=None, sinks=False):
        from tokenmill.kernels.attend import AttentionShape
        from tokenmill.model.blocks import Projection

        self.num_heads, self.num_kv_heads, self.head_dim = heads, kv_heads, width
        self.qkv = Projection("qkv", 32, (heads * width, kv_heads * width, kv_heads * width))
        self.out = Projection("out", heads * width, (32,))
        self.shape, self.qk_norms = AttentionShape(0.3, window, softcap, sinks), ()


CASES = {
    "grouped": ((6, 2, 16), {}, 16, 8),
    "a head of 12, blocks of 3, half rotated": ((3, 1, 12), {}, 6, 3),
    "window": ((4, 4, 16), {"window": 40}, 16, 16),
    "caps and sinks": ((4, 2, 16), {"softcap": 2.0, "sinks": True}, 16, 16),
    "no rope, 20 heads of one": ((20, 1, 16), {}, 0, 16),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_attention(case, dtype, monkeypatch):
    """Contexts of one position, of whole splits and beyond; a text has the same bits alone and among longer ones. A row
    without a position writes nothing.
    """
    (heads, kv_heads, width), how, rope, block_size = CASES[case]
    monkeypatch.setattr(layers, "SPLIT", 64)
    lengths, longest = [1, 64, 65, 150, 0], -(-150 // block_size)
    attention = layers.GraphAttention.__new__(layers.GraphAttention)
    block = attention.block = Block(heads, kv_heads, width, **how)
    attention.block_size, attention.norms, attention.table = block_size, [None, None], None
    attention.heads, attention.width = max(16, 1 << (heads // kv_heads - 1).bit_length()), 16
    attention.sinks = normal(heads, seed=5) if block.shape.sinks else None
    angles = normal(160, rope // 2, seed=6).repeat(1, 2) if rope else None
    if rope:
        attention.table = type("Table", (), {"cos_PH": angles.cos().to(dtype), "sin_PH": angles.sin().to(dtype)})
    order = torch.randperm(longest * len(lengths), generator=torch.Generator().manual_seed(1)).view(len(lengths), -1)
    tables, slots = order.to(DEVICE), longest * len(lengths) * block_size
    rows = [normal(slots, kv_heads, width, seed=seed, dtype=dtype) for seed in (7, 8)]
    qkv = normal(len(lengths), (heads + 2 * kv_heads) * width, seed=9)

    def attend(which, splits):
        cached = [each.clone() for each in rows]
        attention.qkv = lambda _, out, __: out.copy_(qkv[which])
        attention.qkv.num_outputs = qkv.shape[1]
        positions = torch.tensor([lengths[each] - 1 for each in which], device=DEVICE)
        x = torch.empty(len(which), 32, dtype=dtype, device=DEVICE)
        made = attention(x, None, tuple(cached), layers.StepRows(tables[which], positions, splits))
        return made, cached

    together, cached = attend([0, 1, 2, 3, 4], 3)
    own = (tables[4][:, None] * block_size + torch.arange(block_size, device=DEVICE)).flatten()
    assert all(torch.equal(found[own], before[own]) for found, before in zip(cached, rows, strict=True))
    for number, length in enumerate(lengths[:4]):
        at = [int(tables[number, p // block_size]) * block_size + p % block_size for p in range(length)]
        q, k, v = qkv[number].view(-1, width).split((heads, kv_heads, kv_heads))
        if rope:
            cos, sin = (each[None, length - 1 : length] for each in (angles.cos(), angles.sin()))
            q, k = (apply_rotary(each[None], cos, sin)[0] for each in (q, k))
        keys, vals = (each[at].float() for each in rows)
        keys[-1], vals[-1] = k.to(dtype).float(), v.to(dtype).float()
        for found, newest in zip(cached, (keys[-1], vals[-1]), strict=True):
            assert (found[at[-1]].float() - newest).abs().max() <= TOLERANCE[dtype] * newest.abs().max()
        group = heads // kv_heads
        scores = torch.einsum("nh,lnh->nl", q.to(dtype).float(), keys.repeat_interleave(group, 1)) * 0.3
        if block.shape.softcap:
            scores = torch.tanh(scores / block.shape.softcap) * block.shape.softcap
        if block.shape.window:
            scores[:, : max(length - block.shape.window, 0)] = -torch.inf
        if block.shape.sinks:
            scores = torch.cat((scores, attention.sinks[:, None]), 1)
        weights = torch.softmax(scores, 1)[:, :length]
        wanted = torch.einsum("nl,lnh->nh", weights, vals.repeat_interleave(group, 1)).flatten()
        assert (together[number].float() - wanted).abs().max() <= 2 * TOLERANCE[dtype] * wanted.abs().max(), length
        alone, _ = attend([number], -(-length // 64))
        assert torch.equal(alone[0], together[number]), length


@pytest.mark.compiler
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "gfx942"])
def test_kernels_are_compiled_without_the_gpu(target, tmp_path):
    """No register is given up, shared memory suffices, and most bytes of what is loaded come by 16 at a time."""
    from tests.kernels.triton_targets import SHARED

    command = [sys.executable, "-m", "tests.kernels.triton_targets", target]
    given = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    ran = subprocess.run(command, env=given | {"TRITON_CACHE_DIR": str(tmp_path)}, capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr.decode()[-3000:]
    for name, of_targets in json.loads(ran.stdout).items():
        made = of_targets[target]
        assert made["spills"] == 0 and made["shared"] <= SHARED[target], (name, made)
        share = 0.1 if target == "gfx942" or name.startswith("merge") else 0.7
        if name == "sum of experts" or made["bytes"] < 64:  # which load a row once, or a few numbers a thread
            continue
        assert made["wide"] >= share * made["bytes"], (name, made)
