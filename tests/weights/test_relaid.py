"""A checkpoint in the layout of another kind of file: there and back it is the same."""

import pytest
import torch

from tests.tiny_models import FAMILY_NAMES, TINY, save
from tokenmill.model.families import find_family, gguf_facts, in_gguf, read_config
from tokenmill.model.families.gguf_needs import NEEDS
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.relaid import RelaidCheckpoint, in_hugging_face_layout, in_layout
from tokenmill.weights.write.convert import weights_of

THEIRS = ("blk.", "token_embd", "position_embd.", "per_layer_", "altup_", "output", "xielu.")  # llama.cpp's names
OF_STATES = ("no state bias", "conv bias", "no expert bias")
STORED = [
    name if name in FAMILY_NAMES else pytest.param(name, marks=pytest.mark.slow)
    for name, (kind, _) in TINY.items()
    if find_family({"model_type": kind}).gguf is not None
]


@pytest.mark.parametrize("name", STORED)
def test_there_and_back_is_the_same(models, name):
    source = open_checkpoint(save(name, models))
    model = read_config(source.config)
    if any(not NEEDS[need][0](model) for need in OF_STATES if need in gguf_facts(model.family).needs):
        pytest.skip("llama.cpp has no tensors for its biases, and exports are refused")
    there = RelaidCheckpoint(source, in_gguf(model.family))
    assert all(label.startswith(THEIRS) for label in there.shapes)
    back = RelaidCheckpoint(there, source.family)
    assert dict(back.shapes) == weights_of(source)
    for label, shape in back.shapes.items():
        read = back.read(label)
        assert read.shape == shape and back.dtype_of(label) == "float32"
        torch.testing.assert_close(read, source.read(label), rtol=0, atol=1e-6)  # Gemma's norms are 1 + weight there
        assert torch.equal(back.read(label, rows=range(1)), read[:1])


def test_a_checkpoint_that_has_the_layout_is_itself(models):
    source = open_checkpoint(save("llama", models))
    assert in_hugging_face_layout(source) is source
    assert in_layout(source, in_gguf("llama")) is not source
