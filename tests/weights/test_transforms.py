"""What files store otherwise than the decoder has it, and back."""

from dataclasses import replace

import pytest
import torch

from tokenmill.model.families import read_config
from tokenmill.weights.transforms import TRANSFORMS

CONFIG = read_config(
    {"model_type": "llama", "vocab_size": 10, "hidden_size": 24, "num_hidden_layers": 1, "intermediate_size": 8}
    | {"num_attention_heads": 4, "num_key_value_heads": 4}
)  # heads of 6 entries
PARTIAL = replace(CONFIG, rope=replace(CONFIG.rope, dim=4))
SHAPES = {"one row": (1, 5), "as a row": (5,), "pairs_to_halves of heads": (4, 6)}


def numbered(*shape: int) -> torch.Tensor:
    """A tensor whose first entries of rows are the rows' numbers."""
    return torch.arange(shape[0]).float().reshape(-1, *(1 for _ in shape[1:])).repeat(1, *shape[1:])


@pytest.mark.parametrize("config", [CONFIG, PARTIAL, replace(CONFIG, num_kv_heads=2)], ids=["all", "part", "grouped"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_each_is_undone(name, config):
    torch.manual_seed(1)
    tensor, transform = torch.randn(SHAPES.get(name, (72, 6))), TRANSFORMS[name]
    there = transform.to_decoder(tensor, config)
    torch.testing.assert_close(transform.to_file(there, config), tensor, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", [name for name, transform in TRANSFORMS.items() if transform.orders_rows])
def test_what_orders_rows_changes_nothing_else(name):
    rows = TRANSFORMS[name].to_decoder(numbered(72, 3), CONFIG)
    assert rows.shape == (72, 3) and sorted(rows[:, 0].tolist()) == list(range(72))
    assert torch.equal(rows, rows[:, :1].expand(-1, 3))
    assert torch.equal(TRANSFORMS[name].to_decoder(numbered(72), CONFIG), rows[:, 0]), "a bias is ordered as rows are"


def test_pairs_become_halves_in_the_rotated_part_of_each_head():
    rows = numbered(12, 2)
    assert TRANSFORMS["pairs_to_halves"].to_decoder(rows, CONFIG)[:, 0].tolist() == [
        *(0, 2, 4, 1, 3, 5),
        *(6, 8, 10, 7, 9, 11),
    ]
    assert TRANSFORMS["pairs_to_halves"].to_decoder(rows, PARTIAL)[:6, 0].tolist() == [0, 2, 1, 3, 4, 5]


def test_what_is_left_for_rows_is_a_transform():
    for transform in TRANSFORMS.values():
        assert transform.of_rows is None or TRANSFORMS[transform.of_rows].orders_rows
