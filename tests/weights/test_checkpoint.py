"""Model directories: what is missing, left over, misshapen, damaged, unknown or hostile is refused by name."""

import json
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.tiny_models import prompt, save
from tokenmill import CheckpointError, load
from tokenmill.model.families import read_config
from tokenmill.weights.checkpoint import open_checkpoint


@pytest.fixture
def model(llama, tmp_path):
    return shutil.copytree(llama, tmp_path / "model")


def refused(path, message: str) -> CheckpointError:
    with pytest.raises(CheckpointError, match=message) as caught:
        load(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)
    return caught.value


def edit_config(path, **changes) -> None:
    file = path / "config.json"
    config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def edit_tensors(path, change) -> None:
    file = path / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


def test_every_missing_and_every_unexpected_tensor_is_listed(model):
    def change(tensors):
        del tensors["model.norm.weight"], tensors["model.layers.1.mlp.up_proj.weight"]
        tensors["model.layers.0.self_attn.surprise"] = torch.zeros(2)

    edit_tensors(model, change)
    error = refused(model, "2 missing: .*1 unexpected: model.layers.0.self_attn.surprise")
    assert error.missing == ["layers.1.mlp.up_proj.weight", "norm.weight"]


def test_every_misshapen_tensor_is_listed_with_both_shapes(model):
    def change(tensors):
        tensors["model.norm.weight"] = torch.zeros(47)
        tensors["lm_head.weight"] = torch.zeros(210, 48)

    edit_tensors(model, change)
    error = refused(model, r"lm_head.weight \[210, 48\] where \[211, 48\] goes, model.norm.weight \[47\] where \[48\]")
    assert len(error.misshapen) == 2


def test_integers_in_the_place_of_weights_are_refused(model):
    edit_tensors(model, lambda tensors: tensors.update({"model.norm.weight": torch.zeros(48, dtype=torch.int8)}))
    refused(model, "model.norm.weight holds torch.int8")


@pytest.mark.parametrize("size", [0, 4, 9, 100, 2000, -1])
def test_truncated_safetensors(model, size):
    file = model / "model.safetensors"
    os.truncate(file, size if size >= 0 else file.stat().st_size - 1)
    refused(model, "model.safetensors is damaged or no safetensors file")


def test_the_vocabulary_of_the_config_must_be_that_of_the_weights(model):
    edit_config(model, vocab_size=212)
    refused(model, r"model.embed_tokens.weight \[211, 48\] where \[212, 48\] goes")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model_type": "perceiver"},
            "model_type 'perceiver' is not implemented: it is an encoder, which writes no text",
        ),
        ({"model_type": ...}, "model_type None is not implemented"),
        ({"hidden_act": "snake"}, "hidden_act = 'snake' is not allowed: gelu, "),
        ({"rope_parameters": {"rope_type": "spiral"}}, "rope type 'spiral' is not implemented: only default"),
        ({"rope_parameters": {"rope_type": "linear"}}, "rope type 'linear' needs 'factor'"),
        ({"rope_parameters": {"rope_type": "default", "twist": 3}}, "no parameter 'twist'"),
        ({"attention_sinks": 4}, "keys that tokenmill does not know: attention_sinks = 4"),
        ({"rope_interleaved": True}, "llama model: rope_interleaved = True is not implemented: only False"),
        ({"hidden_size": ...}, "does not fit its config, which describes"),  # the default of its class
        ({"hidden_size": None}, "hidden_size = None is not allowed: a value is needed"),
        ({"hidden_size": "48"}, "hidden_size = '48' is not allowed"),
        ({"num_hidden_layers": 0}, "num_hidden_layers = 0 is not allowed"),
        ({"num_key_value_heads": 4}, "num_heads 6 is no multiple of num_kv_heads 4"),
        ({"head_dim": 7}, "rotary entries of head_dim 7"),
    ],
)
def test_configs_that_are_not_understood_are_refused_before_anything_is_loaded(model, changes, message):
    edit_config(model, **changes)
    refused(model, message)


def test_the_older_words_for_rope_mean_the_same(llama, model):
    edit_config(model, rope_parameters=..., rope_theta=10000.0, rope_scaling={"type": "linear", "factor": 1.0})
    torch.testing.assert_close(load(model).logits(prompt(9)), load(llama).logits(prompt(9)))


class Explosive:
    """What a pickle could do if it were let."""

    def __reduce__(self):
        return (os.mkdir, (os.environ["EXPLOSION"],))


def as_bin(model, value) -> None:
    (model / "model.safetensors").unlink()
    torch.save(value, model / "pytorch_model.bin")


def test_code_in_a_bin_file_is_never_run(model, tmp_path, monkeypatch):
    mark = tmp_path / "exploded"
    monkeypatch.setenv("EXPLOSION", str(mark))
    as_bin(model, {"model.norm.weight": Explosive()})
    refused(model, "pytorch_model.bin is damaged, or holds more than tensors and is refused")
    assert not mark.exists()


def test_bin_files_that_are_no_state_dict(model):
    as_bin(model, [torch.zeros(3)])
    refused(model, "pytorch_model.bin is no state dict")
    (model / "pytorch_model.bin").unlink()  # what was refused may still be mapped, and may not be cut
    (model / "pytorch_model.bin").write_bytes(b"not a file of torch")
    refused(model, "pytorch_model.bin is damaged")


def test_a_bin_file_with_an_unknown_pickle_protocol_is_refused(model):
    as_bin(model, {"model.norm.weight": torch.zeros(48)})
    file = model / "pytorch_model.bin"
    file.write_bytes(file.read_bytes().replace(b"\x80\x02", b"\x80\x80", 1))
    refused(model, "pytorch_model.bin is damaged")


@pytest.mark.parametrize("name", ["../elsewhere.safetensors", "gone.safetensors", 7])
def test_an_index_names_files_of_its_own_directory_only(model, name):
    (model / "model.safetensors").rename(model / "model-1.safetensors")
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name, "b": name}}))
    error = refused(model, "model.safetensors.index.json names files that are not in its directory")
    assert str(error).count(f"'{name}'") == 1, "a missing file is named once, not for each of its tensors"


def test_directories_that_are_no_models(tmp_path, model):
    (model / "config.json").write_text("{")
    refused(model, "config.json cannot be read as JSON")
    (model / "config.json").write_text("[]")
    refused(model, "config.json must hold a JSON object")
    (model / "config.json").unlink()
    refused(model, "no config.json")
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "config.json").write_text('{"model_type": "llama"}')
    refused(tmp_path / "bare", "holds no weights")


def test_the_end_of_a_text_is_the_class_s_where_no_file_says_it(tmp_path):
    path = shutil.copytree(save("llama", tmp_path), tmp_path / "model")
    config = json.loads((path / "config.json").read_text())
    del config["eos_token_id"]
    (path / "config.json").write_text(json.dumps(config))
    (path / "generation_config.json").unlink()
    assert read_config(open_checkpoint(path).config).eos_token_ids == (2,)  # as of transformers' LlamaConfig
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    assert read_config(open_checkpoint(path).config).eos_token_ids == (7, 9)
