"""Directories in fp8: the values are those of transformers, whose own operation dequantises the same tensors."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

from tests.tiny_models import prompt, reference, save
from tokenmill import load
from tokenmill.errors import CheckpointError
from tokenmill.weights.checkpoint import open_checkpoint

BLOCK, FP8 = (8, 8), torch.float8_e4m3fn
UP = "model.layers.0.mlp.up_proj"


def scales_of(weight: torch.Tensor, block: tuple[int, int] | None) -> torch.Tensor:
    """One for each block, the last of which may be smaller, or one for all."""
    if block is None:
        return weight.abs().max() / 448
    high, wide = block
    rows = [part.split(wide, 1) for part in weight.split(high)]
    return torch.stack([torch.stack([each.abs().max() / 448 for each in row]) for row in rows])


def written(name, models, folder, block=BLOCK, **settings):
    """A tiny model in fp8, with the values that transformers reads of its matrices."""
    tensors = load_file(save(name, models) / "model.safetensors")
    values = {}
    for label in [label for label in tensors if "_proj.weight" in label]:
        base, weight = label.removesuffix(".weight"), tensors[label]
        scales = scales_of(weight, block)
        wide = scales if block is None else scales.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
        tensors[label] = (weight / (wide if block is None else wide[: len(weight), : weight.shape[1]])).to(FP8)
        tensors[f"{base}.weight_scale_inv"] = scales
        if settings.get("activation_scheme") == "static":
            tensors[f"{base}.activation_scale"] = torch.tensor(0.5)
        if block is None or not (len(weight) % block[0] or weight.shape[1] % block[1]):  # else transformers refuses
            values[label] = Fp8Dequantize(None)._dequantize_one(tensors[label], scales, torch.float32)
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((save(name, models) / "config.json").read_text())
    sizes = None if block is None else list(block)
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": sizes, **settings}
    (folder / "config.json").write_text(json.dumps(config))
    return folder, values


@pytest.mark.parametrize("block", [BLOCK, None], ids=["blocks", "one"])
def test_values_are_those_of_transformers(block, models, tmp_path):
    scheme = "dynamic" if block else "static"
    path, values = written("ministral3", models, tmp_path / "m", block, activation_scheme=scheme)
    checkpoint = open_checkpoint(path)
    for label, value in values.items():
        assert torch.equal(checkpoint.read(label), value) and checkpoint.read_codes(label) is None
        assert torch.equal(checkpoint.read(label, rows=range(3, 9)), value[3:9])
    said = "14 of its 14 matrices have numbers in fp8; --scheme q8 rounds them to 8 bits; activations are not rounded"
    assert said in checkpoint.dequantized
    model = reference("ministral3")
    with torch.no_grad():
        kept = {label: model.get_parameter(label).clone() for label in values}
        for label, value in values.items():
            model.get_parameter(label).copy_(value)
        expected = model(torch.tensor([prompt(20)])).logits[0]
        for label, value in kept.items():
            model.get_parameter(label).copy_(value)
    torch.testing.assert_close(
        load(path, dtype="float32", threads=1).logits(prompt(20)), expected, rtol=1e-4, atol=1e-4
    )


def test_blocks_need_not_divide_a_matrix(models, tmp_path):
    path, _ = written("llama", models, tmp_path / "m", (32, 64))
    found = open_checkpoint(path)
    plain = load_file(path / "model.safetensors")
    weight, scales = plain[f"{UP}.weight"].float(), plain[f"{UP}.weight_scale_inv"]
    assert scales.shape == (3, 1) and torch.equal(found.read(f"{UP}.weight")[70], weight[70] * scales[2, 0])


def test_scales_may_be_exponents(models, tmp_path):
    path, _ = written("llama", models, tmp_path / "m", scale_fmt="ue8m0")
    tensors = load_file(path / "model.safetensors")
    for label in [label for label in tensors if label.endswith("_scale_inv")]:
        tensors[label] = torch.full(tensors[label].shape, 120, dtype=torch.uint8)
    save_file(tensors, path / "model.safetensors")
    assert torch.equal(open_checkpoint(path).read(f"{UP}.weight"), tensors[f"{UP}.weight"].float() / 128)


def test_metas_have_a_scale_for_each_row(models, tmp_path):
    path, _ = written("llama", models, tmp_path / "m", None)
    tensors = load_file(path / "model.safetensors")
    for label in [label for label in tensors if label.endswith("_scale_inv")]:
        del tensors[label]
        rows = len(tensors[label.removesuffix("_scale_inv")])
        tensors[label.removesuffix("_inv")] = (torch.arange(rows).float() + 1)[:, None]
    tensors |= {"model.layers.0.mlp.up_proj.input_scale_ub": torch.tensor(1200.0)}
    save_file(tensors, path / "model.safetensors")
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}
    (path / "config.json").write_text(json.dumps(config))
    assert torch.equal(open_checkpoint(path).read(f"{UP}.weight")[7], tensors[f"{UP}.weight"][7].float() * 8)


def test_what_does_not_fit_is_named(models, tmp_path):
    path, _ = written("llama", models, tmp_path / "m")
    tensors = load_file(path / "model.safetensors")
    one = f"{UP}.weight_scale_inv"
    save_file({**tensors, one: torch.ones(2, 3)}, path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"up_proj.weight_scale_inv \[2, 3\] where \[10, 6\] goes"):
        open_checkpoint(path)
    del tensors[one]
    save_file(tensors, path / "model.safetensors")
    with pytest.raises(
        CheckpointError, match=r"no scale is beside the codes of \['model.layers.0.mlp.up_proj.weight'\]"
    ):
        open_checkpoint(path)
    config = json.loads((path / "config.json").read_text())
    for value in ([16], [0, 16], ["16", 16], 16, [16, 16.5]):
        config["quantization_config"]["weight_block_size"] = value
        (path / "config.json").write_text(json.dumps(config))
        with pytest.raises(CheckpointError, match=r"weight_block_size = .* is not allowed"):
            open_checkpoint(path)
