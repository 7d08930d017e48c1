"""Converted checkpoints: the same numbers, whole or not at all."""

import json
from pathlib import Path
from types import SimpleNamespace

import gguf
import pytest
import torch
from safetensors import safe_open

from tests import gguf_files
from tests.tiny_models import reference, save
from tokenmill.errors import CapacityError, CheckpointError, ConfigError
from tokenmill.hub.progress import Silent
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.plain import Checkpoint
from tokenmill.weights.relaid import in_hugging_face_layout
from tokenmill.weights.write import convert as module
from tokenmill.weights.write.convert import (
    Unit,
    check_new,
    check_space,
    convert,
    plain_unit,
    weights_of,
    write_directory,
)


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
    again, shown = (
        open_checkpoint(convert(source, tmp_path / "out", "bfloat16", Silent())),
        in_hugging_face_layout(source),
    )
    for name in ["model.embed_tokens.weight", "model.layers.7.self_attn.k_proj.weight", "model.norm.weight"]:
        assert torch.equal(again.read(name), shown.read(name).bfloat16())
    ours, theirs = source.tokenizer(), again.tokenizer()
    assert theirs.chat_template == ours.chat_template
    assert theirs.eos_token_ids == ours.eos_token_ids
    assert theirs.bos_token_id == ours.bos_token_id
    text = "Prices rose 12.5% in 2024 — ¿por qué? 你好 🙂\n\tdef f(x): return x**2"
    assert theirs.encode(text) == ours.encode(text)


# ---- directories written from tensors in memory


class InMemory(Checkpoint):
    """A checkpoint of these tensors, without a tokenizer."""

    def __init__(self, path, tensors, **config):
        self.path, self.tensors = path, tensors
        self.config = {"model_type": "llama", **config}
        self.shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}

    def read(self, name, dtype=None):
        return self.tensors[name]


class Told(Silent):
    """Notes what it is told."""

    def __init__(self):
        self.said = []

    def stage(self, text):
        self.said.append(text)

    def advance(self, done, total):
        self.said.append((done, total))


def written(tmp_path, units, tensors, **config):
    """The files of a directory, and what progress was told."""
    (tmp_path / "source").mkdir(exist_ok=True)
    checkpoint, told = InMemory(tmp_path / "source", tensors, old=1, dtype="x", stored_as_codes=1, kept=2), Told()
    write_directory(checkpoint, tmp_path / "out", units, config, told, "at work")
    return tmp_path / "out", told.said


ONE, TWO = torch.arange(6.0).reshape(2, 3), torch.arange(5.0)


def test_a_file_by_its_bytes(tmp_path):
    units = [plain_unit("one", (2, 3), "float32"), plain_unit("two", (5,), "bfloat16")]
    assert [unit.num_bytes() for unit in units] == [24, 10]
    out, said = written(tmp_path, units, {"one": ONE, "two": TWO}, old=3, new=4)
    assert said == ["at work", (1, 2), (2, 2), "writing config and tokenizer"]
    assert sorted(file.name for file in out.iterdir()) == ["config.json", "model.safetensors"]
    assert json.loads((out / "config.json").read_text()) == {"model_type": "llama", "old": 3, "kept": 2, "new": 4}
    data = (out / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0
    assert json.loads(data[8 : 8 + length]) == {
        "__metadata__": {"format": "pt"},
        "one": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "two": {"dtype": "BF16", "shape": [5], "data_offsets": [24, 34]},
    }
    assert data[8 + length :] == ONE.numpy().tobytes() + TWO.bfloat16().view(torch.uint8).numpy().tobytes()


def test_a_unit_may_become_several_tensors(tmp_path):
    specs = {"a": (torch.uint8, (2,)), "b": (torch.int32, (3,)), "c": (torch.float16, (1, 2))}
    made = {"a": torch.ones(2, dtype=torch.uint8), "b": torch.arange(3).int(), "c": torch.ones(1, 2).half()}
    unit = Unit("one", specs, lambda tensor: made)
    assert unit.num_bytes() == 2 + 12 + 4
    out, said = written(tmp_path, [unit], {"one": ONE})
    assert said[1] == (1, 1)
    with safe_open(out / "model.safetensors", framework="pt") as opened:
        assert all(torch.equal(opened.get_tensor(name), made[name]) for name in "abc")


def test_numbers_that_are_not_contiguous_are_written_in_order(tmp_path):
    out, _ = written(tmp_path, [plain_unit("one", (3, 2), "float32")], {"one": ONE.t()})
    with safe_open(out / "model.safetensors", framework="pt") as opened:
        assert torch.equal(opened.get_tensor("one"), ONE.t())


@pytest.mark.parametrize(
    "unit",
    [
        Unit("one", {"one": (torch.float32, (2, 3))}, lambda tensor: {"one": tensor.half()}),
        Unit("one", {"one": (torch.float32, (2, 3))}, lambda tensor: {"one": tensor.t()}),
    ],
    ids=["type", "shape"],
)
def test_what_a_header_says_is_what_is_written(tmp_path, unit):
    with pytest.raises(AssertionError, match="one is not what its header says"):
        written(tmp_path, [unit], {"one": ONE})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_integers_are_not_converted(tmp_path):
    with pytest.raises(CheckpointError, match=r"^one holds torch.int32: quantised exports of this kind cannot be conv"):
        written(tmp_path, [plain_unit("one", (2, 3), "float32")], {"one": ONE.int()})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


@pytest.mark.parametrize(
    ("limit", "wanted"), [(24, [["a"], ["b"], ["c"]]), (48, [["a", "b"], ["c"]]), (72, [["a", "b", "c"]])]
)
def test_files_are_as_full_as_they_get(tmp_path, monkeypatch, limit, wanted):
    monkeypatch.setattr(module, "SHARD_BYTES", limit)
    units = [plain_unit(name, (2, 3), "float32") for name in "abc"]
    out, said = written(tmp_path, units, dict.fromkeys("abc", ONE))
    assert said[1:4] == [(1, 3), (2, 3), (3, 3)]
    names = [f"model-{i:05}-of-{len(wanted):05}.safetensors" for i in range(1, 1 + len(wanted))]
    names = names if len(wanted) > 1 else ["model.safetensors"]
    for file, tensors in zip(names, wanted, strict=True):
        with safe_open(out / file, framework="pt") as opened:
            assert sorted(opened.keys()) == tensors
    index = out / "model.safetensors.index.json"
    assert index.exists() == (len(wanted) > 1)
    if index.exists():
        told = json.loads(index.read_text())
        assert told["weight_map"] == {
            each: file for file, tensors in zip(names, wanted, strict=True) for each in tensors
        }
        assert told["metadata"]["total_size"] == 72


def test_places_that_are_taken(tmp_path, monkeypatch):
    check_new(tmp_path / "new")
    (tmp_path / "empty").mkdir()
    check_new(tmp_path / "empty")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    for name in ("full", "full/x"):
        with pytest.raises(ConfigError, match="is not allowed: a directory that is new or empty"):
            check_new(tmp_path / name)
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(ConfigError, match=r"output = '.' is not allowed: a new directory beside this one"):
        check_new(Path())


def test_the_space_on_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: SimpleNamespace(free=1000 * (path == tmp_path)))
    check_space(tmp_path / "out", 1000)
    with pytest.raises(
        CapacityError, match=r"^disk space for .*out: 1.0 kB needed, 1.0 kB available; change output to"
    ):
        check_space(tmp_path / "out", 1001)


def test_buffers_are_no_weights(tmp_path):
    names = ("model.norm.weight", "model.layers.0.self_attn.rotary_emb.inv_freq", "lm_head.weight")
    checkpoint = InMemory(tmp_path, dict.fromkeys(names, TWO))
    assert weights_of(checkpoint) == {"model.norm.weight": (5,), "lm_head.weight": (5,)}


def test_files_of_a_tokenizer_are_copied(tmp_path):
    source = tmp_path / "source"
    (source / "additional_chat_templates").mkdir(parents=True)
    kept = """generation_config.json tokenizer.json tokenizer.model tokenizer_config.json special_tokens_map.json
        added_tokens.json vocab.json merges.txt chat_template.jinja additional_chat_templates/tool.jinja""".split()
    for name in (*kept, "README.md", "additional_chat_templates/notes.txt", "x.py"):
        (source / name).write_text(name)
    out, _ = written(tmp_path, [plain_unit("one", (2, 3), "float32")], {"one": ONE})
    files = {str(file.relative_to(out)): file for file in out.rglob("*") if file.is_file()}
    assert set(files) == {*kept, "config.json", "model.safetensors"}
    assert all(files[name].read_text() == name for name in kept)


def of_gguf(tmp_path, **metadata):
    """What is written beside the weights of a GGUF file."""
    source = open_checkpoint(gguf_files.write(tmp_path / "x.gguf", "llama", metadata=metadata))
    out = convert(source, tmp_path / "out", "float32", Silent())
    return {file.name: json.loads(file.read_text()) for file in out.glob("*.json")}, source, open_checkpoint(out)


def test_the_tokenizer_of_a_gguf_file_is_written_out(tmp_path):
    more = {"tokenizer.ggml.eot_token_id": 5, "tokenizer.ggml.suppress_tokens": [7], "tokenizer.chat_template": "x"}
    files, source, again = of_gguf(tmp_path, **more)
    assert files["tokenizer_config.json"] == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 128,
        "bos_token": "<|endoftext|>",
        "eos_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "chat_template": "x",
    }
    assert files["generation_config.json"] == {"bos_token_id": 0, "eos_token_id": [0, 5], "suppress_tokens": [7]}
    assert files["config.json"]["torch_dtype"] == "float32" and "dtype" not in files["config.json"]
    ours, theirs = source.tokenizer(), again.tokenizer()
    assert ours.encode("the 12") == theirs.encode("the 12")
    assert (ours.eos_token_ids, ours.suppressed_ids) == (theirs.eos_token_ids, theirs.suppressed_ids)


def test_several_templates_are_written_by_their_names(tmp_path):
    more = {
        "tokenizer.chat_template": "x",
        "tokenizer.chat_template.tool_use": "y",
        "tokenizer.chat_templates": ["tool_use"],
    }
    files, _, again = of_gguf(tmp_path, **more)
    wanted = [{"name": "default", "template": "x"}, {"name": "tool_use", "template": "y"}]
    assert files["tokenizer_config.json"]["chat_template"] == wanted
    assert again.tokenizer().named_templates == {"tool_use": "y"}
    assert files["generation_config.json"] == {"bos_token_id": 0, "eos_token_id": [0]}


def test_a_gguf_file_without_a_tokenizer_has_none_afterwards(tmp_path):
    source = open_checkpoint(gguf_files.write(tmp_path / "x.gguf", "llama", tokenizer=False))
    out = convert(source, tmp_path / "out", "float32", Silent())
    assert sorted(file.name for file in out.iterdir()) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("tokenizer", [True, False])
def test_what_a_gguf_file_recommends_stands_in_the_directory(tmp_path, tokenizer):
    told = {"general.sampling.temp": 0.5, "general.sampling.top_k": 7, "general.sampling.penalty_repeat": 1.25}
    source = open_checkpoint(gguf_files.write(tmp_path / "x.gguf", "llama", metadata=told, tokenizer=tokenizer))
    again = open_checkpoint(convert(source, tmp_path / "out", "auto", Silent()))
    assert again.generation_defaults() == source.generation_defaults() == {
        "temperature": 0.5, "top_k": 7, "repetition_penalty": 1.25
    }  # fmt: skip
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text())["do_sample"] is True


def test_the_values_of_codes_are_not_rounded_without_a_word(tmp_path, caplog):
    kind = gguf.GGMLQuantizationType.Q8_0
    source = open_checkpoint(gguf_files.write(tmp_path / "x.gguf", "llama", kind))
    convert(source, tmp_path / "out", "auto", Silent())
    assert "x.gguf holds codes, whose values are rounded to bfloat16; dtype float32 (--dtype) keeps" in caplog.text
    caplog.clear()
    again = open_checkpoint(convert(source, tmp_path / "whole", "float32", Silent()))
    assert not caplog.text
    shown = in_hugging_face_layout(source)
    assert all(torch.equal(again.read(name), shown.read(name)) for name in again.shapes)
