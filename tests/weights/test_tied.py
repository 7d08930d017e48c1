"""Tied models whose files hold one of the two matrices, or both: what transformers computes from the same directory."""

import json
import logging

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests import gguf_files
from tests.tiny_models import prompt, save
from tokenmill import CheckpointError, load
from tokenmill.hub.progress import Silent
from tokenmill.loader.resolve import resolve
from tokenmill.measure.cost import cost_of
from tokenmill.model.families import read_config
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.weights.checkpoint import foreseen_config, open_checkpoint
from tokenmill.weights.write.convert import convert

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.fixture
def tied(tmp_path):
    return save("llama-mha-tied", tmp_path)


def edit(path, change, name="model.safetensors"):
    tensors = load_file(path / name)
    change(tensors)
    save_file(tensors, path / name)


def another_head(tensors):
    tensors[HEAD] = tensors[EMBEDDING].flip(0).contiguous()


def head_alone(tensors):
    tensors[HEAD] = tensors.pop(EMBEDDING)


def equal_head(tensors):
    tensors[HEAD] = tensors[EMBEDDING].clone()


def same_as_transformers(path):
    ids = prompt(20)
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    expected = model(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(load(path, program="eager").logits(ids), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("change", [another_head, head_alone, equal_head])
def test_the_tensors_decide_what_is_tied(tied, change):
    edit(tied, change)
    same_as_transformers(tied)


@pytest.mark.parametrize(
    ("name", "embedding", "head"),
    [
        ("gpt2", "transformer.wte.weight", "lm_head.weight"),
        ("gpt_neox", "gpt_neox.embed_in.weight", "embed_out.weight"),
    ],
)
def test_so_they_do_in_families_with_other_names(tmp_path, name, embedding, head):
    path = save(name, tmp_path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    edit(path, lambda tensors: tensors.update({head: tensors[embedding].flip(0).contiguous()}))
    same_as_transformers(path)
    edit(path, lambda tensors: tensors.update({embedding: tensors.pop(head)}))
    same_as_transformers(path)


def test_a_head_of_its_own_is_warned_of_and_an_equal_one_is_not(tied, caplog):
    with caplog.at_level(logging.WARNING):
        edit(tied, equal_head)
        assert open_checkpoint(tied).config["tie_word_embeddings"] and HEAD not in open_checkpoint(tied).shapes
        assert not caplog.messages
        edit(tied, another_head)
        assert not open_checkpoint(tied).config["tie_word_embeddings"]
    assert "lm_head.weight and model.embed_tokens.weight differ, so both are used" in caplog.text


def test_an_equal_head_of_another_type_is_equal(tied):
    """transformers compares the two in the type that it loads them in."""
    edit(
        tied,
        lambda tensors: tensors.update({HEAD: tensors[EMBEDDING].half().float(), EMBEDDING: tensors[EMBEDDING].half()}),
    )
    assert open_checkpoint(tied).config["tie_word_embeddings"]


def test_a_head_of_another_shape_is_no_second_copy(tied):
    edit(tied, lambda tensors: tensors.update({HEAD: torch.zeros(200, 48)}))
    with pytest.raises(CheckpointError, match=r"lm_head.weight \[200, 48\] where \[211, 48\] goes"):
        load(tied)


@pytest.mark.parametrize("change", [another_head, head_alone])
def test_a_converted_model_says_what_its_tensors_are(tied, tmp_path, change):
    edit(tied, change)
    ids = prompt(12)
    convert(open_checkpoint(tied), tmp_path / "out", "float32", Silent())
    assert torch.equal(load(tmp_path / "out").logits(ids), load(tied).logits(ids))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["tie_word_embeddings"] is (change is head_alone)


@pytest.mark.parametrize("change", [another_head, head_alone, equal_head])
def test_a_plan_counts_the_head_that_a_load_would_have(tied, change):
    edit(tied, change)
    model = read_config(foreseen_config(tied))
    planned = cost_of(resolve(EngineConfig(), model))
    assert planned.weights_bytes == load(tied).memory["weights_bytes"]


def test_a_plan_without_weights_takes_config_json_at_its_word(tied, caplog):
    (tied / "model.safetensors").write_bytes(b"damaged")
    assert foreseen_config(tied)["tie_word_embeddings"]
    assert "config.json counts, since the tensors cannot be read: " in caplog.text and "damaged" in caplog.text
    (tied / "model.safetensors").unlink()
    caplog.clear()
    assert foreseen_config(tied)["tie_word_embeddings"] and not caplog.messages


def test_two_files_of_the_same_numbers_are_compared_by_their_bytes(tied, monkeypatch):
    """So no tensor is made, and torch is not needed to describe a model."""
    monkeypatch.setattr("tokenmill.weights.safetensors_file.SafetensorsFile.read", None)
    for change, is_tied in ((equal_head, True), (another_head, False)):
        edit(tied, change)
        assert open_checkpoint(tied).config["tie_word_embeddings"] is is_tied


@pytest.mark.parametrize("row", [None, 0, 4, 210])
@pytest.mark.parametrize("is_bin", [True, False])
def test_every_row_of_two_matrices_counts(tied, monkeypatch, row, is_bin):
    """Of files whose bytes are not compared: torch's own, and two types."""
    monkeypatch.setattr("tokenmill.weights.tied.ROWS", 4)
    tensors = load_file(tied / "model.safetensors")
    tensors[EMBEDDING] = tensors[EMBEDDING].bfloat16().float()
    head = tensors[EMBEDDING].clone() if is_bin else tensors[EMBEDDING].bfloat16()
    if row is not None:
        head[row, 3] += 1
    (tied / "model.safetensors").unlink()
    if is_bin:
        torch.save(tensors | {HEAD: head}, tied / "pytorch_model.bin")
    else:
        save_file(tensors | {HEAD: head}, tied / "model.safetensors")
    assert open_checkpoint(tied).config["tie_word_embeddings"] is (row is None)


def test_what_is_no_directory_is_opened_for_its_config(tmp_path):
    path = gguf_files.write(tmp_path / "x.gguf", "llama-tied")
    assert foreseen_config(path) == open_checkpoint(path).config
    with pytest.raises(CheckpointError, match=r"y.gguf is a .gguf file, not a model"):
        foreseen_config(tmp_path / "y.gguf")


def test_a_model_that_is_not_tied_is_not_opened_for_its_config(tmp_path, monkeypatch):
    path = save("llama", tmp_path)
    monkeypatch.setattr("tokenmill.weights.checkpoint.open_checkpoint", lambda _: pytest.fail("it is opened"))
    assert foreseen_config(path)["tie_word_embeddings"] is False
