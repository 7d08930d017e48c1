"""Directories that are written, read by transformers: with every number that the model computes with."""

import json

import pytest
import torch
import transformers

from tests import gguf_files
from tests.tiny_models import TINY, auto_class, build, prompt, reference, save
from tokenmill.hub.progress import Silent
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.write.convert import config_json, convert
from tokenmill.weights.write.quantize import quantize

TOKENS = [prompt(12)]


def read_by_transformers(path):
    config = transformers.AutoConfig.from_pretrained(path)
    model, told = auto_class(config).from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not any(told.values()), told
    for parameter in model.parameters():  # out of the mapped file, where a product's last bit is the address's
        parameter.data = parameter.data.clone()
    return model.eval()


def logits_of(model):
    with torch.inference_mode():
        return model(torch.tensor(TOKENS), use_cache=False).logits


DEPARTS = ("granitemoe", "gpt_oss", "gemma3", "mistral3", "apertus")
ALL = [pytest.param(name, marks=() if name in DEPARTS else pytest.mark.slow) for name in TINY]


@pytest.mark.parametrize("name", ALL)
def test_a_directory_of_a_directory(name, models, tmp_path):
    """Experts in one tensor, the text part of a model that sees, and constants beside weights."""
    source = save(name, models)
    out = convert(open_checkpoint(source), tmp_path / "out", "auto", Silent())
    assert torch.equal(logits_of(read_by_transformers(out)), logits_of(reference(name)))
    assert "architectures" not in json.loads((out / "config.json").read_text()) or name not in ("gemma3", "mistral3")


@pytest.mark.parametrize("name", ["llama-llama3", "granitemoe", "gpt_oss", "apertus", "apertus-bias", "phi3"])
def test_a_directory_of_a_gguf_file(name, models, tmp_path):
    """The rope's divisors become Llama 3's numbers; a rope and a padding that the file does not have are none."""
    quantize(open_checkpoint(save(name, models)), tmp_path / "x.gguf", Silent(), "none", export="gguf")
    out = convert(open_checkpoint(tmp_path / "x.gguf"), tmp_path / "out", "auto", Silent())
    torch.testing.assert_close(logits_of(read_by_transformers(out)), logits_of(reference(name)))


@pytest.mark.parametrize("name", ["mixtral", "gpt2", "gpt_oss"])
def test_what_is_f32_in_every_gguf_file_is_not_the_type_of_the_model(name, tmp_path):
    """Routers, positions and the biases of experts: a float16 model with such tensors was read as bfloat16."""
    build(*TINY[name]).half().save_pretrained(tmp_path / "source")
    source = open_checkpoint(tmp_path / "source")
    quantize(source, tmp_path / "x.gguf", Silent(), "none", head="none", export="gguf")
    again = open_checkpoint(convert(open_checkpoint(tmp_path / "x.gguf"), tmp_path / "out", "auto", Silent()))
    assert again.config["torch_dtype"] == "float16"
    for label in again.shapes:
        assert torch.equal(again.read(label), source.read(label)), label


def test_divisors_that_are_not_llama_3s_are_told_of(tmp_path, caplog):
    path = gguf_files.write(tmp_path / "x.gguf", "llama")
    config = open_checkpoint(path).config
    scaling = {"rope_type": "factors", "factors": [1.0, 2.0, 1.0, 3.0, 1.0, 1.0, 1.0, 1.0]}
    assert config_json(config | {"rope_scaling": scaling})["rope_scaling"] == scaling
    assert 'transformers knows no rope "factors"' in caplog.text


def test_constants_beside_a_weight_survive_float16(models, tmp_path):
    """They are written in float32: as a half float the smallest would be another number."""
    out = convert(open_checkpoint(save("apertus", models)), tmp_path / "out", "float16", Silent())
    again = open_checkpoint(out)
    assert again.read("model.layers.0.mlp.act_fn.eps").item() == pytest.approx(-1e-6)
