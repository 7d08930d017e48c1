"""Which files of a directory are read: transformers' choice where it has one, else all that are named like weights."""

import json
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.tiny_models import prompt
from tokenmill import CheckpointError, load
from tokenmill.hub.weight_files import find_weights, missing_shards


@pytest.fixture(scope="module")
def tensors(llama):
    return load_file(llama / "model.safetensors")


@pytest.fixture
def bare(llama, tmp_path):
    """A directory with a config alone."""
    (tmp_path / "model").mkdir()
    shutil.copy(llama / "config.json", tmp_path / "model")
    return tmp_path / "model"


def put(path, name, tensors, scale):
    """The model with its head times `scale`, which tells the files apart; several files where the name has a star."""
    tensors = tensors | {"lm_head.weight": tensors["lm_head.weight"] * scale}
    write = torch.save if ".bin" in name else save_file
    if "*" not in name:
        write(tensors, path / name)
        return
    names = list(tensors)
    parts = {name.replace("*", f"-0000{i + 1}-of-00002"): names[i::2] for i in range(2)}
    for file, keys in parts.items():
        write({key: tensors[key] for key in keys}, path / file)
    weight_map = {key: file for file, keys in parts.items() for key in keys}
    (path / name.replace("*", "")).with_suffix(f".{name.rpartition('.')[2]}.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )


@pytest.mark.parametrize(
    "order",
    [
        ("model.safetensors", "model*.safetensors"),
        ("model.safetensors", "pytorch_model.bin", "aaa.safetensors"),
        ("model*.safetensors", "pytorch_model.bin"),
        ("pytorch_model.bin", "unrelated.safetensors", "pytorch_model*.bin"),
        ("pytorch_model*.bin", "consolidated.safetensors", "zzz.safetensors"),
    ],
    ids=" before ".join,
)
def test_of_several_copies_the_one_that_transformers_takes(bare, tensors, order):
    for scale, name in enumerate(order, 1):
        put(bare, name, tensors, scale)
    ids = prompt(8)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(bare, dtype=torch.float32, attn_implementation="eager")
    expected = theirs(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(load(bare, program="eager").logits(ids), expected, rtol=1e-4, atol=1e-4)


def refused(path, message):
    with pytest.raises(CheckpointError, match=message) as caught:
        load(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


def test_a_tensor_in_two_files_is_refused_with_both(bare, tensors):
    save_file(tensors, bare / "first.safetensors")
    save_file({"lm_head.weight": tensors["lm_head.weight"]}, bare / "second.safetensors")
    refused(bare, r"tensors twice: lm_head.weight in first.safetensors \(lm_head.weight\) and in second.safetensors")


def test_shards_that_overlap_are_refused_under_their_index_too(bare, tensors):
    put(bare, "model*.safetensors", tensors, 1)
    file = bare / "model-00002-of-00002.safetensors"
    save_file(load_file(file) | {"model.norm.weight": tensors["model.norm.weight"]}, file)
    save_file(tensors, bare / "model-00001-of-00002.safetensors")
    refused(bare, "tensors twice: .* in model-00001-of-00002.safetensors .* and in model-00002-of-00002.safetensors")


def test_a_stale_index_is_named_with_the_files_that_are_there(bare, tensors):
    put(bare, "model*.safetensors", tensors, 1)
    for file in bare.glob("model-*"):
        file.unlink()
    put(bare, "pytorch_model.bin", tensors, 1)
    refused(
        bare, r"index.json names files .*model-00001-of-00002.*; if pytorch_model.bin is the model, delete the index"
    )


def test_an_index_without_a_map_is_refused(bare, tensors):
    put(bare, "model*.safetensors", tensors, 1)
    (bare / "model.safetensors.index.json").write_text('{"metadata": {}}')
    refused(bare, r"index.json has no 'weight_map', which is required")


def test_a_missing_shard_is_named_once_without_an_index_too(bare, tensors):
    put(bare, "model*.safetensors", tensors, 1)
    (bare / "model.safetensors.index.json").unlink()
    assert load(bare).logits(prompt(3)).shape == (3, 211)
    (bare / "model-00002-of-00002.safetensors").unlink()
    refused(bare, "is incomplete: model-00002-of-00002.safetensors is missing$")


def test_names_of_wrappers_are_left_out(bare, tensors, llama):
    wrapped = {f"_orig_mod.{name}".replace("layers.1.", "layers.1._orig_mod."): t for name, t in tensors.items()}
    save_file(wrapped, bare / "model.safetensors")
    assert torch.equal(load(bare).logits(prompt(9)), load(llama).logits(prompt(9)))
    save_file({f"module.{name}": t for name, t in tensors.items()}, bare / "model.safetensors")
    assert torch.equal(load(bare).logits(prompt(9)), load(llama).logits(prompt(9)))
    save_file(wrapped | {"model.norm.weight": tensors["model.norm.weight"].clone()}, bare / "model.safetensors")
    refused(
        bare, r"model.norm.weight in model.safetensors \(_orig_mod.model.norm.weight\) and in model.safetensors \(mod"
    )


def test_a_bin_file_of_old_torch_is_read(bare, tensors, llama):
    torch.save(tensors, bare / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert torch.equal(load(bare).logits(prompt(9)), load(llama).logits(prompt(9)))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_link_to_nothing_is_named(bare, tensors, name):
    save_file(tensors, bare / "model.safetensors")
    (bare / name).unlink(missing_ok=True)
    (bare / name).symlink_to("../blobs/gone")
    refused(bare, f"{name} is a link to ../blobs/gone, which does not exist")
    bare.with_name("link").symlink_to("nowhere")
    with pytest.raises(CheckpointError, match="link is a link to nowhere, which does not exist"):
        load(bare.with_name("link"))


def test_a_pointer_of_git_lfs_is_told_from_a_damaged_file(bare):
    (bare / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n")
    refused(bare, "model.safetensors is a pointer of Git LFS")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"adapter_config.json": '{"base_model_name_or_path": "org/base"}'}, "is an adapter of the model 'org/base'"),
        (
            {"params.json": "{}", "consolidated.00.pt": ""},
            r"has a params.json, as models in Meta's or Mistral's own layout, but no consolidated",
        ),
        ({"tekken.json": "{}"}, "it has a tekken.json, which is Mistral's tokenizer, but no config.json"),
        ({"model.gguf": ""}, "it has no config.json; give .*model.gguf itself"),
    ],
)
def test_directories_of_other_kinds_say_what_they_are(tmp_path, files, message):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    refused(tmp_path, message)


def test_weights_of_another_layout_beside_a_config_are_named(bare, tensors):
    save_file(tensors, bare / "consolidated.safetensors")
    refused(bare, "holds no weights: .*; consolidated.safetensors holds an adapter or another program's layout")


def test_choices_by_name_alone():
    assert find_weights(["pytorch_model.bin", "model.safetensors.index.json", "model-1.safetensors"]).index is not None
    assert find_weights(["gptq_model-4bit-128g.safetensors"]).files == ("gptq_model-4bit-128g.safetensors",)
    assert find_weights(["README.md", "training_args.bin", "adapter_model.safetensors"]).files == ()
    assert missing_shards(["x-00002-of-00003.bin"]) == ["x-00001-of-00003.bin", "x-00003-of-00003.bin"]
