"""What files store otherwise than the decoder has it, and back."""

from dataclasses import replace

import pytest
import torch

from tokenmill.errors import CheckpointError
from tokenmill.model.config import ModelConfig
from tokenmill.model.families import read_config
from tokenmill.model.mixers.latent import latent_attention
from tokenmill.model.mixers.mamba2 import mamba2
from tokenmill.weights.transforms import TRANSFORMS

CONFIG = read_config(
    {"model_type": "llama", "vocab_size": 10, "hidden_size": 24, "num_hidden_layers": 1, "intermediate_size": 8}
    | {"num_attention_heads": 4, "num_key_value_heads": 4}
)  # heads of 6 entries
PARTIAL = replace(CONFIG, rope=replace(CONFIG.rope, dim=4))
NARROW = {"linear_num_key_heads": 3, "linear_num_value_heads": 6, "linear_key_head_dim": 8, "linear_value_head_dim": 4}
DELTA_NETS = read_config(
    {"model_type": "qwen3_5_text", "vocab_size": 10, "hidden_size": 24, "num_hidden_layers": 1, "intermediate_size": 8}
    | {"num_attention_heads": 4, "num_key_value_heads": 4, **NARROW}
)  # q and k of 24 rows, v of 24
MAMBA = replace(
    CONFIG,
    mixers=(
        mamba2(
            24,
            num_heads=4,
            head_dim=3,
            num_groups=2,
            state_dim=8,
            num_taps=4,
            eps=1e-5,
            bias=False,
            conv_bias=True,
        ),
    ),
)
SHAPES = {"one row": (1, 5), "as a row": (5,), "pairs_to_halves of heads": (4, 6)}
SHAPES |= {"column log of minus": (6, 1), "as a column": (6, 1), "by groups": (2, 6)}
SHAPES |= {"depthwise": (5, 1, 4), "gate before query": (48, 6)}
SHAPES |= {"qkvz by k heads": (96, 6), "gates by k heads": (12, 6)}
SHAPES |= {"latent pairs of r": (14, 6), "heads in the middle": (1, 1, 6, 1)}
LATENT = replace(
    CONFIG,
    mixers=(latent_attention(24, 6, q_latent=None, latent=8, plain=6, rope_dim=6, value=4, rope=None, scale=1.0),),
)  # 72 rows of q, 14 of r


def config_for(name: str, config: ModelConfig = CONFIG) -> ModelConfig:
    """The config, or one with delta nets where a transform is theirs."""
    return (
        DELTA_NETS
        if name.startswith("tiled") or name.endswith("by k heads")
        else MAMBA
        if name == "by groups"
        else LATENT
        if name.startswith("latent")
        else config
    )


def numbered(*shape: int) -> torch.Tensor:
    """A tensor whose first entries of rows are the rows' numbers."""
    return torch.arange(shape[0]).float().reshape(-1, *(1 for _ in shape[1:])).repeat(1, *shape[1:])


@pytest.mark.parametrize("config", [CONFIG, PARTIAL, replace(CONFIG, num_kv_heads=2)], ids=["all", "part", "grouped"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_each_is_undone(name, config):
    torch.manual_seed(1)
    tensor, transform, config = torch.randn(SHAPES.get(name, (72, 6))), TRANSFORMS[name], config_for(name, config)
    if name.endswith("log of minus"):
        tensor = -tensor.exp()
    there = transform.to_decoder(tensor, config)
    torch.testing.assert_close(transform.to_file(there, config), tensor, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", [name for name, transform in TRANSFORMS.items() if transform.orders_rows])
def test_what_orders_rows_changes_nothing_else(name):
    config, count = config_for(name), SHAPES.get(name, (72, 6))[0]
    rows = TRANSFORMS[name].to_decoder(numbered(count, 3), config)
    assert rows.shape == (count, 3) and sorted(rows[:, 0].tolist()) == list(range(count))
    assert torch.equal(rows, rows[:, :1].expand(-1, 3))
    assert torch.equal(TRANSFORMS[name].to_decoder(numbered(count), config), rows[:, 0]), (
        "a bias is ordered as rows are"
    )


def test_pairs_become_halves_in_the_rotated_part_of_each_head():
    rows = numbered(12, 2)
    assert TRANSFORMS["pairs_to_halves"].to_decoder(rows, CONFIG)[:, 0].tolist() == [
        *(0, 2, 4, 1, 3, 5),
        *(6, 8, 10, 7, 9, 11),
    ]
    assert TRANSFORMS["pairs_to_halves"].to_decoder(rows, PARTIAL)[:6, 0].tolist() == [0, 2, 1, 3, 4, 5]


def test_pairs_become_halves_at_the_end_of_each_query_and_of_the_row():
    q = TRANSFORMS["latent pairs of q"].to_decoder(numbered(72, 2), LATENT)[:, 0].tolist()
    assert q[:12] == [*range(6), 6, 8, 10, 7, 9, 11] and q[12:24] == [12 + each for each in q[:12]]
    r = TRANSFORMS["latent pairs of r"].to_decoder(numbered(14, 2), LATENT)[:, 0].tolist()
    assert r == [*range(8), 8, 10, 12, 9, 11, 13]


def test_what_is_left_for_rows_is_a_transform():
    for transform in TRANSFORMS.values():
        assert transform.of_rows is None or TRANSFORMS[transform.of_rows].orders_rows


def test_heads_of_v_are_grouped_by_the_heads_of_k_that_serve_them():
    """As llama.cpp's converter has them the other way round: of two heads of v for each of three of k, first all
    first ones.
    """
    assert TRANSFORMS["tiled"].to_decoder(numbered(6), DELTA_NETS).tolist() == [0, 3, 1, 4, 2, 5]
    assert TRANSFORMS["tiled"].to_decoder(numbered(24, 2), DELTA_NETS)[4:12, 0].tolist() == [
        *range(12, 16),
        *range(4, 8),
    ]
    rows = TRANSFORMS["tiled after keys"].to_decoder(numbered(72, 2), DELTA_NETS)[:, 0].tolist()
    assert rows[:48] == list(range(48)) and rows[52:56] == list(range(60, 64))


def test_rows_of_the_heads_of_k_are_sorted_by_what_they_are():
    """As Qwen3-Next stores them: of each of three heads of k 8 rows of q, 8 of k, two heads of v and their z of 4."""
    rows = TRANSFORMS["qkvz by k heads"].to_decoder(numbered(96, 2), DELTA_NETS)[:, 0].tolist()
    assert rows[:8] + rows[24:32] + rows[48:56] + rows[72:80] == list(range(32))
    assert rows[8:12] == [32, 33, 34, 35]
    assert TRANSFORMS["gates by k heads"].to_decoder(numbered(12), DELTA_NETS).tolist() == [
        *(0, 1, 4, 5, 8, 9),
        *(2, 3, 6, 7, 10, 11),
    ]


def test_what_has_no_logarithm_is_refused():
    with pytest.raises(CheckpointError, match="holds numbers that are not below 0"):
        TRANSFORMS["column log of minus"].to_decoder(torch.tensor([[-1.0], [0.0]]), CONFIG)


def test_codes_of_several_heads_under_one_scale_are_refused():
    """A column of scales is for 32 inputs, and a head has four here."""
    with pytest.raises(CheckpointError, match="--scheme dense reads the file's values instead"):
        TRANSFORMS["tiled columns"].to_decoder(torch.ones(5, 2), DELTA_NETS)
