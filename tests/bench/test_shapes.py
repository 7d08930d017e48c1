"""Architectures without files: they have the sizes of the models that they are named for, and random weights."""

import pytest
import torch

from tokenmill.bench.shapes import SHAPES, find_shape
from tokenmill.errors import ConfigError
from tokenmill.model.counts import count_parameters
from tokenmill.model.families import read_config


def test_a_shape_has_random_tensors_of_the_sizes_of_its_model():
    shape = find_shape("llama-1b")
    assert str(shape.path) == "shape-llama-1b" and shape.num_bytes == 0
    assert shape.tokenizer() is None and shape.generation_defaults() == {}
    assert len(shape.shapes) == 2 + 16 * 9
    assert shape.shapes["embed_tokens.weight"] == (128256, 2048)
    assert shape.shapes["layers.15.mlp.down_proj.weight"] == (2048, 8192)
    matrix = shape.read("layers.3.self_attn.k_proj.weight")
    assert matrix.shape == (512, 2048) and 0.9 < float(matrix[0].std() / matrix[1].std()) < 1.1
    assert torch.equal(shape.read("layers.3.self_attn.k_proj.weight", rows=range(7, 9)), matrix[7:9])
    assert shape.read("norm.weight").tolist() == [1.0] * 2048
    with pytest.raises(
        ConfigError, match=r"--shape = 'llama-2b' is not allowed: use one of smollm2-135m, .*pythia-160m"
    ):
        find_shape("llama-2b")


def test_a_shape_may_have_fewer_layers():
    for name in ("qwen3-30b-a3b", "gpt2"):
        assert read_config(find_shape(f"{name}:3").config).num_layers == 3
    for layers in ("", "0", "-1", "x"):
        with pytest.raises(ConfigError, match="a positive number of layers behind the colon, as gpt2:4"):
            find_shape(f"gpt2:{layers}")


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("smollm2-135m", 134.5), ("smollm2-360m", 361.8), ("smollm2-1.7b", 1711.4), ("tinyllama-1.1b", 1100.0),
        ("llama-1b", 1235.8), ("llama-3b", 3212.7), ("llama-7b", 6738.4), ("llama-8b", 8030.3),
        ("mistral-7b", 7241.7), ("qwen2.5-0.5b", 494.0), ("qwen3-0.6b", 596.0), ("mixtral-8x7b", 46702.8),
        ("pythia-160m", 162.3), ("gpt2", 124.4), ("qwen3-30b-a3b", 30532.1),
    ],
)  # fmt: skip
def test_shapes_have_the_parameters_that_their_models_name(name, millions):
    """The model cards on the hub count the same."""
    assert sum(count_parameters(read_config(SHAPES[name])).values()) / 1e6 == pytest.approx(millions, abs=0.06)
