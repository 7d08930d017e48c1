"""Numbers in another floating type: none becomes infinite without a word."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.tiny_models import save
from tokenmill import load
from tokenmill.errors import CheckpointError
from tokenmill.hub.progress import Silent
from tokenmill.weights.cast import cast
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.write.convert import convert

SAID = r"{} holds 70000, and float16 holds numbers up to 65504: give dtype bfloat16 or float32"


def test_what_float16_holds():
    values = torch.tensor([[1.5, -65504.0], [float("nan"), 1e-30]])
    assert torch.equal(cast("x", values[0], torch.float16), values[0].half())
    assert cast("x", torch.empty(0, 3), torch.float16).shape == (0, 3)
    for value in (70000.0, -70000.0):
        with pytest.raises(CheckpointError, match=f"^{SAID.format('x')}$"):
            cast("x", torch.tensor([1.0, value]), torch.float16)
    assert cast("x", torch.tensor([7e4]).bfloat16(), torch.float32).item() == torch.tensor(7e4).bfloat16().item()
    whole = torch.tensor([float("inf")]).half()
    assert cast("x", whole, torch.float16) is whole  # which the file has itself


@pytest.mark.parametrize(
    "name", ["model.norm.weight", "model.layers.1.mlp.up_proj.weight", "model.embed_tokens.weight"]
)
def test_a_model_with_larger_numbers_is_not_a_model_of_float16(name, tmp_path):
    path = save("llama", tmp_path)
    tensors = load_file(path / "model.safetensors")
    tensors[name].view(-1)[7] = 7e4
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    for program in ("eager", "native"):
        with pytest.raises(CheckpointError, match=SAID.format(name)):
            load(path, program=program, dtype="float16", scheme="dense")
    with pytest.raises(CheckpointError, match=SAID.format(name)):
        convert(open_checkpoint(path), tmp_path / "out", "float16", Silent())
    assert not (tmp_path / "out").exists()
    convert(open_checkpoint(path), tmp_path / "out", "bfloat16", Silent())
