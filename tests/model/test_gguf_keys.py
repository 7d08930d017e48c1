"""What several architectures of GGUF files have in common: windows by layer, parts of heads, multipliers, experts."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tokenmill.errors import CheckpointError
from tokenmill.model.families.in_gguf import FULL, SLIDING, GGUFKeys, layer_types, window_metadata


def keys_of(tensors: dict[str, tuple[int, ...]] | None = None, **values: Any) -> GGUFKeys:
    metadata = {f"x.{key.replace('__', '.')}": value for key, value in values.items()}
    infos = {name: SimpleNamespace(shape=shape) for name, shape in (tensors or {}).items()}
    return GGUFKeys(Path("x.gguf"), metadata, infos, lambda *_: None, "x", "x")


PATTERN = "attention__sliding_window_pattern"


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, [SLIDING, SLIDING, FULL, SLIDING]),
        ({PATTERN: 2}, [SLIDING, FULL, SLIDING, FULL]),
        ({PATTERN: 1}, [FULL] * 4),
        ({PATTERN: 0}, [SLIDING] * 4),
        ({PATTERN: [True, False, False, True]}, [SLIDING, FULL, FULL, SLIDING]),
        ({PATTERN: [1, 0, 0, 1]}, [SLIDING, FULL, FULL, SLIDING]),
    ],
    ids=str,
)
def test_layers_with_a_window_as_llama_cpp_finds_them(given, wanted):
    assert keys_of(**given).layer_types(4, 3) == wanted


@pytest.mark.parametrize("given", [[True] * 3, [], ["x"] * 4, -1, "x", 1 << 12])
def test_patterns_that_are_none(given):
    with pytest.raises(CheckpointError, match=r"x.attention.sliding_window_pattern = .* is not allowed"):
        keys_of(**{PATTERN: given}).layer_types(4, 3)


@pytest.mark.parametrize("pattern", [0, 1, 2, 6])
def test_windows_are_written_as_they_are_read(pattern):
    windows = [7 if kind == SLIDING else None for kind in layer_types(7, pattern)]
    usual = window_metadata(windows, pattern)
    assert usual == ({"attention.sliding_window": 7} if pattern != 1 else {})
    said = window_metadata(windows)
    if said:
        assert said["attention.sliding_window_pattern"] == [window is not None for window in windows]


def test_the_rotated_part_of_a_head_is_a_factor_that_gives_it_back():
    for head_dim in (6, 10, 14, 80, 96, 128):
        for rotary in range(2, head_dim + 1, 2):
            part = keys_of(rope__dimension_count=rotary).rotated_part(head_dim)
            assert int(head_dim * part) == rotary


def test_multipliers_and_windows_that_are_not_there():
    keys = keys_of(a=0.0, b=0, c=0.25)
    assert (keys.scale("a"), keys.scale("b", 3.0), keys.scale("c"), keys.scale("d")) == (1.0, 3.0, 0.25, 1.0)
    assert keys.window() is None and keys_of(attention__sliding_window=0).window() is None
    assert keys_of(attention__sliding_window=5).window() == 5


def test_the_width_of_experts_is_that_of_their_matrices_where_no_key_says_it():
    stored = {"blk.3.ffn_down_exps.weight": (4, 64, 24)}
    assert keys_of(stored).expert_width() == 24
    assert keys_of(stored, expert_feed_forward_length=32).expert_width() == 32
    with pytest.raises(CheckpointError, match=r"no 'x.expert_feed_forward_length', which is required"):
        keys_of().expert_width()


def test_a_routing_that_llama_cpp_does_not_compute_is_refused():
    keys_of(expert_gating_func=1, expert_weights_norm=True, expert_weights_scale=1.0).softmax_routing(True)
    keys_of().softmax_routing(False)
    for name, value in (("expert_gating_func", 2), ("expert_weights_norm", True), ("expert_weights_scale", 2.5)):
        with pytest.raises(CheckpointError, match=f"x.{name} = {value} is not implemented"):
            keys_of(**{name: value}).softmax_routing(False)


def test_tensors_are_found_in_any_layer():
    keys = keys_of({"blk.3.attn_q.bias": (4,), "output_norm.bias": (4,)})
    assert keys.has("attn_q.bias") and not keys.has("attn_k.bias") and not keys.has("output_norm.bias")
