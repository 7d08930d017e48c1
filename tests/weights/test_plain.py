"""Directories of plain tensors: names without wrappers, tensors that are there twice, what reads the others."""

import re

import pytest
import torch
from safetensors.torch import save_file

from tokenmill.errors import CheckpointError
from tokenmill.weights.plain import Checkpoint, PlainCheckpoint


def opened(folder, **files: dict[str, torch.Tensor]) -> PlainCheckpoint:
    """Files by their names, two underscores for the dot."""
    paths = []
    for name, tensors in files.items():
        paths.append(folder / name.replace("__", "."))
        (save_file if name.endswith("safetensors") else torch.save)(tensors, paths[-1])
    return PlainCheckpoint(folder, {"model_type": "llama"}, paths)


def numbers(*shape: int) -> torch.Tensor:
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape)


def test_the_tensors_of_all_files(tmp_path):
    one = {"a": numbers(2, 3), "b": torch.zeros(4, dtype=torch.int8)}
    found = opened(tmp_path, x__safetensors=one, y__bin={"c": numbers(5).bfloat16()})
    assert found.shapes == {"a": (2, 3), "b": (4,), "c": (5,)}
    assert found.num_bytes == sum(file.stat().st_size for file in tmp_path.iterdir())
    assert [found.dtype_of(name) for name in "abc"] == ["float32", "int8", "bfloat16"]
    assert torch.equal(found.read("a"), one["a"]) and torch.equal(found.read("c"), numbers(5).bfloat16())
    assert found.read("a", torch.float16).dtype == torch.float32, "floats stay as the file has them"
    assert b"".join(found.stored_bytes("a")) == one["a"].numpy().tobytes()
    assert found.stored_bytes("c") is None
    assert found.read_codes("a") is None and found.rounded == ""
    assert (found.path, found.config) == (tmp_path, {"model_type": "llama"})


@pytest.mark.parametrize("kind", ["x__safetensors", "x__bin"])
def test_zeros_are_known_from_others(tmp_path, kind):
    last = torch.zeros(300)
    last[-1] = 1e-40
    found = opened(tmp_path, **{kind: {"zeros": torch.zeros(300), "last": last, "first": last.flip(0).contiguous()}})
    assert [found.is_zero(name) for name in ("zeros", "last", "first")] == [True, False, False]


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        ("model.a", "model.a"),
        ("module.model.a", "model.a"),
        ("module.module.model.a", "model.a"),
        ("_orig_mod.model.a", "model.a"),
        ("module._orig_mod.model.layers.0._checkpoint_wrapped_module.a", "model.layers.0.a"),
        ("_fsdp_wrapped_module.model._fsdp_wrapped_module.a", "model.a"),
        ("model.module.a", "model.module.a"),
        ("model.my_orig_mod.a", "model.my_orig_mod.a"),
        ("modules.a", "modules.a"),
        ("model._orig_mod", "model._orig_mod"),
    ],
)
def test_names_of_wrappers(tmp_path, stored, shown):
    found = opened(tmp_path, x__safetensors={stored: numbers(3)})
    assert found.shapes == {shown: (3,)}
    assert torch.equal(found.read(shown), numbers(3))


def test_a_tensor_that_is_there_twice_is_named_with_both_places(tmp_path):
    with pytest.raises(CheckpointError) as raised:
        opened(tmp_path, x__safetensors={"a": numbers(1), "module.a": numbers(1)})
    told = f"{tmp_path} holds tensors twice: a in x.safetensors (a) and in x.safetensors (module.a)"
    assert str(raised.value) == f"{told}; remove the file that is not the model's"
    tensors = {name: numbers(1) for name in "abc"}
    with pytest.raises(CheckpointError, match=r"a in x.bin \(a\) and in y.bin \(a\) and 2 others; remove the file"):
        opened(tmp_path, x__bin=tensors, y__bin=tensors)


def test_a_tensor_under_another_name(tmp_path):
    found = opened(tmp_path, x__safetensors={"a": numbers(2), "b": numbers(3)})
    found.rename("a", "c")
    assert found.shapes == {"b": (3,), "c": (2,)}
    assert torch.equal(found.read("c"), numbers(2))
    with pytest.raises(KeyError):
        found.read("a")


def test_a_checkpoint_of_no_kind_reads_nothing():
    checkpoint = Checkpoint()
    for method in (checkpoint.read, checkpoint.dtype_of):
        with pytest.raises(NotImplementedError):
            method("a")
    assert checkpoint.read_codes("a") is None and checkpoint.stored_bytes("a") is None


def test_another_name_is_not_that_of_another_tensor(tmp_path):
    """A stack of experts, and one of them by itself: the one that came last was read."""
    one = {"a": numbers(2, 3), "b": numbers(3), "a[1]": numbers(3)}
    with pytest.raises(CheckpointError, match=r"holds tensors twice: b in x.safetensors \(b\) and in x.* \(a\); remov"):
        opened(tmp_path, x__safetensors=one).rename("a", "b")
    with pytest.raises(CheckpointError, match=r"holds tensors twice: a\[1\] in x.safetensors \(a\[1\]\) and in x.saf"):
        opened(tmp_path, x__safetensors=one).unstack(re.compile("a"), "")
