"""The outline of a model that cannot be opened: what its files say of it."""

import json

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.published import PUBLISHED, REFUSED
from tokenmill.weights.outline import StoredTensor, read_outline


def directory(path, config, **tensors):
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    if tensors:
        save_file(tensors, path / "model.safetensors")
    return path


def gguf_file(path, arch, keys, words=None):
    writer = gguf.GGUFWriter(path, arch)
    for key, value in keys.items():
        writer.add_array(key, value) if isinstance(value, list) else writer.add_uint32(key, value)
    if words is not None:
        writer.add_token_list(words)
    writer.add_tensor("token_embd.weight", np.zeros((3, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("name", REFUSED)
def test_every_refused_config_has_one(name, tmp_path):
    config = PUBLISHED[name]["config"]
    outline = read_outline(directory(tmp_path, config))
    assert outline.family == config["model_type"]
    assert outline.architectures == tuple(config.get("architectures", ()))
    assert outline.sizes or "text_config" in config
    assert outline.tensors == () and outline.tokenizer is None


@pytest.mark.parametrize(
    ("name", "features"),
    [
        ("Qwen3-Next-80B-A3B-Instruct", ("layers with state",)),
        ("LFM2.5-VL-1.6B", ("vision inputs", "layers with state")),
        ("Voxtral-Mini-3B-2507", ("audio inputs",)),
        ("Falcon-H1-0.5B", ("layers with state",)),
        ("DeepSeek-V3", ("latent attention (MLA)",)),
        ("DeepSeek-V3.2", ("latent attention (MLA)", "attention over chosen tokens")),
        ("chatglm3-6b", ()),
    ],
)
def test_features_by_keys(name, features, tmp_path):
    assert read_outline(directory(tmp_path, PUBLISHED[name]["config"])).features == features


def test_sizes_of_a_text_part_and_tensors(tmp_path):
    config = {"model_type": "new_vl", "vision_config": {}, "text_config": {"hidden_size": 8, "num_hidden_layers": 2}}
    outline = read_outline(directory(tmp_path, config, x=torch.zeros(2, 3, dtype=torch.bfloat16)))
    assert outline.sizes == {"num_layers": 2, "hidden_size": 8}
    assert outline.tensors == (StoredTensor("x", (2, 3), "bfloat16", 12),)


def test_a_file_of_an_architecture_that_is_not_implemented(tmp_path):
    keys = {"mamba9.block_count": 4, "mamba9.embedding_length": 32, "mamba9.ssm.state_size": 16}
    keys |= {"mamba9.attention.head_count": [0, 8]}
    outline = read_outline(gguf_file(tmp_path / "m.gguf", "mamba9", keys, ["a", "b", "c"]))
    assert (outline.family, outline.features) == ("mamba9", ("layers with state",))
    assert outline.sizes == {"vocab_size": 3, "num_layers": 4, "hidden_size": 32, "num_heads": 8}
    assert outline.tensors == (StoredTensor("token_embd.weight", (3, 32), "F32", 384),)
    assert outline.tokenizer is None, "its kind is not told"


def test_values_that_are_no_sizes_are_left_out(tmp_path):
    config = {"model_type": "x", "hidden_size": "8", "vocab_size": True, "num_hidden_layers": -1, "architectures": 3}
    outline = read_outline(directory(tmp_path, config))
    assert (outline.sizes, outline.architectures) == ({}, ())


@pytest.mark.parametrize("config", [[], {}, {"model_type": 3}, {"architectures": []}])
def test_what_is_no_config_has_no_outline(config, tmp_path):
    assert read_outline(directory(tmp_path, config)) is None


def test_what_is_no_model_has_no_outline(tmp_path):
    assert read_outline(tmp_path) is None
    (tmp_path / "config.json").write_text("{")
    assert read_outline(tmp_path) is None
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    assert read_outline(tmp_path / "x.gguf") is None


def test_all_parts_of_a_gguf_file_are_told_of(tmp_path):
    """Where one is missing, that part alone."""
    writer = gguf.GGUFWriter(None, "mamba", split_max_tensors=1)
    writer.add_uint32("mamba.block_count", 2)
    for name in ("token_embd.weight", "output.weight"):
        writer.add_tensor(name, np.zeros((3, 32), np.float32))
    writer.write_header_to_file(tmp_path / "x.gguf")
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    first, second = sorted(tmp_path.iterdir())
    for path in (first, second):
        assert [tensor.name for tensor in read_outline(path).tensors] == ["token_embd.weight", "output.weight"]
    assert read_outline(second).family == "mamba"
    second.unlink()
    assert [tensor.name for tensor in read_outline(first).tensors] == ["token_embd.weight"]
