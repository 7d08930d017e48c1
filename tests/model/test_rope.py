"""Rotary tables of every kind against transformers' own functions, and the rotation against its Llama's."""

import math

import pytest
import torch
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from tokenmill.model.config import Rope
from tokenmill.model.rope import RotaryTable, apply_rotary, apply_rotary_in_halves, frequencies

CPU = torch.device("cpu")
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 32.0, "beta_slow": 1.0}


def transformers_rope(kind, numbers, dim, theta, length=None):
    """inv_freq and attention factor as transformers computes them for heads of that width."""
    config = AutoConfig.for_model(
        "llama",
        hidden_size=dim * 2,
        num_attention_heads=2,
        max_position_embeddings=256,
        rope_parameters={"rope_type": kind, "rope_theta": theta, **numbers},
    )
    return ROPE_INIT_FUNCTIONS[kind](config, CPU, **({} if length is None else {"seq_len": length}))


@pytest.mark.parametrize(("dim", "theta"), [(64, 10000.0), (16, 500000.0), (2, 100.0)])
def test_the_plain_frequencies(dim, theta):
    """theta to the power of -2i/dim, of the paper."""
    expected = torch.tensor([theta ** (-2 * i / dim) for i in range(dim // 2)])
    torch.testing.assert_close(frequencies(Rope(dim, theta)), expected)
    torch.testing.assert_close(frequencies(Rope(dim, theta, "linear", (("factor", 2.5),))), expected / 2.5)


@pytest.mark.parametrize("dim", [64, 16])
@pytest.mark.parametrize("theta", [10000.0, 500.0])
@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        ("linear", {"factor": 2.5}),
        ("llama3", LLAMA3),
        ("llama3", {**LLAMA3, "low_freq_factor": 2.0, "factor": 3.0, "original_max_position_embeddings": 1024}),
        ("yarn", YARN),
        ("yarn", {**YARN, "truncate": False}),
        ("yarn", {**YARN, "beta_fast": 8.0, "beta_slow": 2.0, "original_max_position_embeddings": 32}),
        ("yarn", {**YARN, "beta_fast": 1e-3, "beta_slow": 1e-3}),  # beyond the last pair
        ("yarn", {**YARN, "beta_fast": 1e5, "beta_slow": 9e4}),  # before the first
        ("yarn", {**YARN, "beta_slow": 1e-6}),  # from a pair in the middle to beyond the last entry
    ],
    ids=str,
)
def test_the_frequencies_are_those_of_transformers(kind, numbers, theta, dim):
    expected, _ = transformers_rope(kind, numbers, dim, theta)
    torch.testing.assert_close(frequencies(Rope(dim, theta, kind, tuple(numbers.items()))), expected)


@pytest.mark.parametrize("dim", [4, 64])
def test_ntk_rotates_each_position_by_the_base_of_its_own_length(dim):
    rope = Rope(dim, 10000.0, "dynamic", (("factor", 3.0), ("max_position_embeddings", 256)))
    found = frequencies(rope, 401)
    assert found.shape == (401, dim // 2) and frequencies(rope).shape == (1, dim // 2)
    for position in (0, 254, 255, 256, 400):
        expected, _ = transformers_rope("dynamic", {"factor": 3.0}, dim, 10000.0, position + 1)
        torch.testing.assert_close(found[position], expected)


@pytest.mark.parametrize(("num_positions", "is_long"), [(1, False), (64, False), (65, True), (256, True)])
def test_longrope_has_one_list_for_all_positions(num_positions, is_long):
    lists = {"short_factor": [1.0, 1.5, 2.0, 3.5], "long_factor": [1.0, 4.0, 16.0, 60.5]}
    numbers = {**lists, "original_max_position_embeddings": 64, "attention_factor": 1.25}
    expected, factor = transformers_rope("longrope", numbers, 8, 500.0, 65 if is_long else 64)
    rope = Rope(8, 500.0, "longrope", tuple(numbers.items()))
    assert rope.is_long(num_positions) is is_long and not Rope(8, 500.0).is_long(num_positions)
    assert torch.equal(frequencies(rope, num_positions), expected)
    assert factor == 1.25


def test_divisors_one_by_one():
    found = frequencies(Rope(4, 100.0, "factors", (("factors", (2.0, 4.0)),)))
    torch.testing.assert_close(found, torch.tensor([1 / 2, 0.1 / 4]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_table_has_a_row_for_each_position(dtype):
    rope = Rope(4, 100.0, "linear", (("attention_factor", 1.5), ("factor", 2.0)))
    table = RotaryTable(rope, 6, dtype, CPU)
    angles = torch.tensor([[p / 2, p * 0.1 / 2, p / 2, p * 0.1 / 2] for p in range(6)])
    assert table.cos_PH.dtype == table.sin_PH.dtype == dtype
    torch.testing.assert_close(table.cos_PH, (angles.cos() * 1.5).to(dtype))
    torch.testing.assert_close(table.sin_PH, (angles.sin() * 1.5).to(dtype))
    assert not table.state_dict()
    cos, sin = table(torch.tensor([5, 0, 3]))
    assert torch.equal(cos, table.cos_PH[[5, 0, 3]][:, None]) and torch.equal(sin, table.sin_PH[[5, 0, 3]][:, None])
    plain = RotaryTable(Rope(2, 100.0), 3, torch.float32, CPU)
    torch.testing.assert_close(plain.sin_PH[:, 0], torch.tensor([math.sin(p) for p in range(3)]))


@pytest.mark.parametrize("rotate", [apply_rotary, apply_rotary_in_halves])
@pytest.mark.parametrize("width", [8, 6])
def test_the_rotation_is_llamas(rotate, width):
    generator = torch.Generator().manual_seed(1)
    x, angles = torch.randn(5, 3, 8, generator=generator), torch.randn(5, width // 2, generator=generator)
    cos, sin = (torch.cat([f(angles)] * 2, -1) for f in (torch.cos, torch.sin))
    expected, _ = apply_rotary_pos_emb(
        x[None, :, :, :width], x[None, :, :, :width], cos[None], sin[None], unsqueeze_dim=2
    )
    kept = x.clone()
    found = rotate(x, cos[:, None], sin[:, None])
    torch.testing.assert_close(found, torch.cat((expected[0], x[..., width:]), -1))
    assert torch.equal(x, kept)
