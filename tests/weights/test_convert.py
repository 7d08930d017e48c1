"""Converted checkpoints: the same numbers, whole or not at all."""

import json
from pathlib import Path

import pytest
import torch

from tests.tiny_models import reference, save
from tokenmill.errors import CapacityError, CheckpointError, ConfigError
from tokenmill.hub.progress import Silent
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.write import convert as module
from tokenmill.weights.write.convert import convert


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = save("llama", tmp_path_factory.mktemp("models"))
    (path / "tokenizer_config.json").write_text('{"model_max_length": 128}')
    (path / "evil.py").write_text("raise SystemExit")
    return open_checkpoint(path)


def in_parent(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.parent.iterdir())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "auto"])
def test_the_numbers_are_the_same_in_the_new_dtype(source, tmp_path, dtype):
    path = convert(source, tmp_path / "out", dtype, Silent())
    again = open_checkpoint(path)
    assert again.shapes == source.shapes
    wanted = torch.float32 if dtype == "auto" else getattr(torch, dtype)
    for name in source.shapes:
        assert torch.equal(again.read(name), source.read(name).to(wanted)), name
    assert json.loads((path / "config.json").read_text())["torch_dtype"] == str(wanted).removeprefix("torch.")
    assert (path / "tokenizer_config.json").exists()
    assert not (path / "evil.py").exists()
    assert in_parent(path) == ["out"]


def test_transformers_reads_what_was_written(source, tmp_path):
    path = convert(source, tmp_path / "out", "float32", Silent())
    loaded = type(reference("llama")).from_pretrained(path)
    for name, parameter in reference("llama").named_parameters():
        assert torch.equal(parameter, loaded.get_parameter(name)), name


def test_shards_have_an_index(source, tmp_path, monkeypatch):
    """Shards far smaller than 5 GB, so that there are several; the largest tensors are larger than one."""
    monkeypatch.setattr(module, "SHARD_BYTES", 30_000)
    path = convert(source, tmp_path / "out", "float32", Silent())
    files = sorted(file.name for file in path.glob("*.safetensors"))
    assert len(files) > 3
    assert files[-1] == f"model-{len(files):05d}-of-{len(files):05d}.safetensors"
    index = json.loads((path / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(source.shapes)
    assert index["metadata"]["total_size"] == sum(torch.Size(s).numel() * 4 for s in source.shapes.values())
    again = open_checkpoint(path)
    assert all(torch.equal(again.read(name), source.read(name)) for name in source.shapes)


def test_an_empty_directory_may_be_filled_and_a_full_one_not(source, tmp_path):
    (tmp_path / "empty").mkdir()
    convert(source, tmp_path / "empty", "auto", Silent())
    with pytest.raises(ConfigError, match="new or empty"):
        convert(source, tmp_path / "empty", "auto", Silent())
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="new or empty"):
        convert(source, tmp_path / "file", "auto", Silent())


def test_an_unknown_dtype_is_refused(source, tmp_path):
    with pytest.raises(ConfigError, match="float32"):
        convert(source, tmp_path / "out", "int3", Silent())


def test_a_disk_without_room_is_told_before_writing(source, tmp_path, monkeypatch):
    usage = module.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: usage._replace(free=10))
    with pytest.raises(CapacityError, match=r"disk space for .*out: \d.* kB needed, 10 B available"):
        convert(source, tmp_path / "out", "auto", Silent())
    assert in_parent(tmp_path / "out") == []


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["full", "Ctrl-C"])
def test_nothing_is_left_of_what_broke_off(source, tmp_path, monkeypatch, error):
    def fail(_):
        raise error

    monkeypatch.setattr(module.os, "fsync", fail)
    with pytest.raises(CheckpointError if isinstance(error, OSError) else KeyboardInterrupt) as raised:
        convert(source, tmp_path / "out", "auto", Silent())
    assert in_parent(tmp_path / "out") == []
    if isinstance(error, OSError):
        assert "No space left on device" in str(raised.value)


@pytest.mark.slow
@pytest.mark.model
def test_a_gguf_becomes_a_directory_with_its_tokenizer(real_model, tmp_path):
    source = open_checkpoint(real_model)
    again = open_checkpoint(convert(source, tmp_path / "out", "bfloat16", Silent()))
    for name in ["model.embed_tokens.weight", "model.layers.7.self_attn.k_proj.weight", "model.norm.weight"]:
        assert torch.equal(again.read(name), source.read(name).bfloat16())
    ours, theirs = source.tokenizer(), again.tokenizer()
    assert theirs.chat_template == ours.chat_template
    assert theirs.eos_token_ids == ours.eos_token_ids
    assert theirs.bos_token_id == ours.bos_token_id
    text = "Prices rose 12.5% in 2024 — ¿por qué? 你好 🙂\n\tdef f(x): return x**2"
    assert theirs.encode(text) == ours.encode(text)
