"""MXFP4: the values are those that transformers makes of the same bytes, and 8 bits hold them exactly."""

import copy
import json
from math import prod

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from tests.tiny_models import TINY, prompt
from tokenmill import load
from tokenmill.errors import CheckpointError
from tokenmill.hub.progress import Silent
from tokenmill.model.families import read_config
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.write.convert import convert

EXPERTS, HIDDEN, WIDTH = 5, 64, 96
UP, DOWN = "model.layers.1.mlp.experts.gate_up_proj", "model.layers.1.mlp.experts.down_proj"


def random_bytes(low: int, high: int, *shape: int) -> torch.Tensor:
    return torch.randint(low, high, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(shape[-1]))


def written(folder, model, exponents=(120, 125)):
    """The model's directory as gpt-oss is published; the model itself gets the values that transformers reads."""
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    for layer, block in enumerate(model.model.layers):
        for name, rows, inputs in (("gate_up_proj", 2 * WIDTH, HIDDEN), ("down_proj", HIDDEN, WIDTH)):
            blocks = random_bytes(0, 256, EXPERTS, rows, inputs // 32, 16)
            scales = random_bytes(*exponents, EXPERTS, rows, inputs // 32)
            getattr(block.mlp.experts, name).data = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
            label = f"model.layers.{layer}.mlp.experts.{name}"
            del tensors[label]
            tensors |= {f"{label}_blocks": blocks, f"{label}_scales": scales}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": kept}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def tiny():
    sizes = {"hidden_size": HIDDEN, "intermediate_size": WIDTH}
    config = transformers.AutoConfig.for_model("gpt_oss", **TINY["gpt_oss"][1] | sizes)
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.15)
    return model.float().eval()


@pytest.fixture(scope="module")
def model():
    return tiny()


@pytest.fixture(scope="module")
def path(model, tmp_path_factory):
    return written(tmp_path_factory.mktemp("mxfp4") / "model", model)


def test_values_are_those_of_transformers(path, model):
    checkpoint = open_checkpoint(path)
    experts = model.model.layers[1].mlp.experts
    assert checkpoint.shapes[f"{UP}[4]"] == (HIDDEN, 2 * WIDTH) and f"{UP}_blocks" not in checkpoint.shapes
    for expert in range(EXPERTS):
        assert torch.equal(checkpoint.read(f"{UP}[{expert}]"), experts.gate_up_proj[expert])
        assert torch.equal(checkpoint.read(f"{DOWN}[{expert}]"), experts.down_proj[expert])
        whole = experts.down_proj[expert].bfloat16()
        assert torch.equal(checkpoint.read(f"{DOWN}[{expert}]", torch.bfloat16, range(5, 9)), whole[5:9])


def test_codes_hold_the_same_values(path, model):
    checkpoint, experts = open_checkpoint(path), model.model.layers[1].mlp.experts
    codes = checkpoint.read_codes(f"{UP}[2]")
    assert codes.bits == 8 and torch.equal(codes.values(), experts.gate_up_proj[2].t())
    assert torch.equal(checkpoint.read_codes(f"{UP}[2]", range(3, 50)).values(), codes.values()[3:50])
    assert checkpoint.read_codes("lm_head.weight") is None
    config = read_config(checkpoint.config)
    coded = 2 * EXPERTS * 3 * HIDDEN * WIDTH
    plain = sum(len(shape) == 2 and prod(shape) for name, shape in checkpoint.shapes.items() if "experts" not in name)
    plain -= config.vocab_size * HIDDEN  # the embedding is looked up
    assert config.code_bits == 8.5
    assert config.compact_bits == pytest.approx((4.25 * coded + 16 * plain) / (coded + plain), rel=1e-12)


def test_scales_that_are_no_half_floats_are_read_as_values(model, tmp_path):
    other = copy.deepcopy(model)
    checkpoint = open_checkpoint(written(tmp_path / "model", other, exponents=(90, 100)))
    assert checkpoint.read_codes(f"{UP}[2]") is None
    assert torch.equal(checkpoint.read(f"{UP}[2]"), other.model.layers[1].mlp.experts.gate_up_proj[2])


@pytest.mark.parametrize("program", ["eager", "native"])
def test_logits_are_those_of_transformers(path, model, program):
    """In floating point, law 1's bound; with the codes, activations are rounded to 8 bits for each product."""
    with torch.no_grad():
        expected = model(torch.tensor([prompt(40)])).logits[0]
    plain = load(path, program=program, scheme="dense", dtype="float32")
    torch.testing.assert_close(plain.logits(prompt(40)), expected, rtol=1e-5, atol=2e-5)
    kept = load(path, program=program, scheme="file", dtype="float32")
    assert (kept.logits(prompt(40)) - expected).abs().max() <= 0.1 * expected.std()


def test_a_missing_part_is_named(path, tmp_path):
    tensors = load_file(path / "model.safetensors")
    del tensors[f"{UP}_scales"]
    tensors[f"{DOWN}_scales"] = tensors[f"{DOWN}_scales"][:, :5].contiguous()
    (tmp_path / "config.json").write_text((path / "config.json").read_text())
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError) as raised:
        open_checkpoint(tmp_path)
    assert raised.value.missing == [f"{UP}_scales[{expert}]" for expert in range(EXPERTS)]
    assert raised.value.misshapen[0] == f"{DOWN}_scales[0] [5, 3] where [64, 3] goes"


def test_a_converted_directory_is_read_by_transformers(path, model, tmp_path):
    """Its experts are stacks again; they were written one by one, and transformers took random numbers for them."""
    out = convert(open_checkpoint(path), tmp_path / "out", "float32", Silent())
    again, told = transformers.AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
    assert not any(told.values()), told
    for name, parameter in model.named_parameters():
        assert torch.equal(again.get_parameter(name), parameter), name
