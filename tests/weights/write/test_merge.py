"""`merge`: the model that is written computes what the model computes with the adapter beside it."""

import pytest
import torch

from tests import gguf_files
from tests.laws.test_law_01_adapters import KINDS
from tests.marks import each
from tests.peft_adapters import save_adapter, save_adapter_of
from tests.tiny_models import FAMILY_NAMES, build, prompt, save
from tokenmill import CheckpointError, ConfigError, load
from tokenmill.hub.progress import Silent
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.write.merge import merge

TOKENS = [7, 3, 11, 5, 2, 9, *prompt(17)]
NO_BIAS = ("lora_bias",)  # of these kinds the first matrix has a bias in the model, too, and others have none


def merged(model, adapter, out):
    return merge(open_checkpoint(model), adapter, out, "float32", Silent())


def same(model, adapter, out, bound=1e-5):
    with load(model, dtype="float32", program="eager", scheme="dense") as engine:
        engine.load_adapter("a", adapter)
        beside, base = engine.logits(TOKENS, adapter="a"), engine.logits(TOKENS)
    with load(merged(model, adapter, out), dtype="float32", program="eager", scheme="dense") as engine:
        found = engine.logits(TOKENS)
    largest = float(beside.abs().max())
    torch.testing.assert_close(found, beside, rtol=0, atol=bound * largest)
    assert float((found - base).abs().max()) > 0.05 * largest


@pytest.mark.parametrize("name", each(FAMILY_NAMES))
def test_every_family(name, models, tmp_path):
    """What sees pictures, too, is written as its text part alone."""
    save_adapter(name, tmp_path / "adapter")
    same(save(name, models), tmp_path / "adapter", tmp_path / "out", 2e-4 if "qwen3" in name else 2e-5)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in NO_BIAS])
def test_every_kind_of_change(kind, models, tmp_path):
    """A tied model whose embedding or head is changed alone gets a head of its own."""
    name, config = KINDS[kind]
    save_adapter(name, tmp_path / "adapter", **config)
    same(save(name, models), tmp_path / "adapter", tmp_path / "out")


def test_a_bias_where_the_model_has_none_is_refused(models, tmp_path):
    save_adapter("llama", tmp_path / "adapter", lora_bias=True, target_modules=["q_proj"])
    with pytest.raises(CheckpointError, match=r"adds a bias to layers\.\d\.attention\.qkv, which has none"):
        merged(save("llama", models), tmp_path / "adapter", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_of_llama_cpp_is_merged(tmp_path):
    """Its codes are read as values; its tokenizer goes along."""
    path = gguf_files.write_codes(tmp_path / "x.gguf", "llama-wide", [gguf_files.KIND.Q8_0])
    save_adapter_of(
        build(*gguf_files.WIDE["llama-wide"][1:]), tmp_path / "adapter", target_modules=["q_proj", "down_proj"]
    )
    same(path, tmp_path / "adapter", tmp_path / "out")


def test_nothing_is_written_over(models, tmp_path):
    save_adapter("llama", tmp_path / "adapter")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="new or empty"):
        merged(save("llama", models), tmp_path / "adapter", tmp_path / "out")
    assert (tmp_path / "out" / "mine.txt").read_text() == "mine"
