"""Buffers of old conversions: those that transformers itself makes are passed over, others are warned of."""

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.tiny_models import save
from tokenmill.errors import CheckpointError
from tokenmill.weights.checkpoint import open_checkpoint


def with_buffers(path, **buffers):
    tensors = load_file(path / "model.safetensors")
    save_file(
        tensors | {name.replace("__", "."): tensor for name, tensor in buffers.items()}, path / "model.safetensors"
    )
    return path


def inv_freq(path):
    """What transformers computes for this model."""
    config = transformers.AutoConfig.from_pretrained(str(path))
    model = transformers.AutoModelForCausalLM.from_config(config)
    return next(tensor for name, tensor in model.named_buffers() if name.endswith("inv_freq")).clone()


NAMES = {
    "llama": "model__layers__{}__self_attn__rotary_emb__inv_freq",
    "gpt_neox": "gpt_neox__layers__{}__attention__rotary_emb__inv_freq",
}


@pytest.mark.parametrize("family", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_frequencies_are_those_of_the_config(tmp_path, caplog, family, dtype):
    path = save(family, tmp_path)
    right = inv_freq(path)
    with_buffers(path, **{NAMES[family].format(layer): right.to(dtype).clone() for layer in range(2)})
    open_checkpoint(path)
    assert not caplog.messages
    with_buffers(path, **{NAMES[family].format(1): (right * 0.9).to(dtype)})
    open_checkpoint(path)
    name = NAMES[family].format(1).replace("__", ".")
    assert f"{name} differ from config.json; they are not used, as in transformers" in caplog.text


def masks(kind, size=64):
    triangle = torch.ones(size, size).tril()
    return {
        "bytes": triangle.to(torch.uint8)[None, None],
        "bools": triangle.bool()[None, None],
        "floats": triangle[None, None].half(),
    }[kind]


@pytest.mark.parametrize("kind", ["bytes", "bools", "floats"])
def test_a_mask_is_causal(tmp_path, caplog, kind):
    path = save("gpt2", tmp_path)
    prefix = "transformer__h__0__attn__"
    right = {f"{prefix}bias": masks(kind), f"{prefix}masked_bias": torch.tensor(-1e4)}
    open_checkpoint(with_buffers(path, **right))
    assert not caplog.messages
    window = masks(kind).clone()
    window[..., 40, 3] = 0
    open_checkpoint(with_buffers(path, **right | {f"{prefix}bias": window, f"{prefix}masked_bias": torch.tensor(-1.0)}))
    assert "transformer.h.0.attn.bias and 1 others differ" in caplog.text


@pytest.mark.parametrize("wrong", [torch.ones(3), torch.tensor(1.0), torch.zeros(2, 3), torch.zeros(0)], ids=str)
def test_a_buffer_of_another_shape_is_warned_of(tmp_path, caplog, wrong):
    open_checkpoint(with_buffers(save("gpt2", tmp_path), transformer__h__1__attn__bias=wrong))
    open_checkpoint(with_buffers(save("llama", tmp_path), **{NAMES["llama"].format(0): wrong}))
    assert len(caplog.messages) == 2


@pytest.mark.parametrize(("name", "right", "wrong"), [("beta", 0.5, 0.7), ("eps", -1e-6, -1e-3)])
def test_constants_of_an_activation_are_those_that_are_computed_with(tmp_path, name, right, wrong):
    path, label = save("apertus", tmp_path), f"model.layers.1.mlp.act_fn.{name}"
    assert float(load_file(path / "model.safetensors")[label]) == pytest.approx(right)
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        with_buffers(path, **{label: torch.tensor(right).to(dtype)})
        open_checkpoint(path)
    with_buffers(path, **{label: torch.tensor(wrong)})
    with pytest.raises(CheckpointError, match=rf"{label} is {wrong:g}, and only {right:g} is implemented"):
        open_checkpoint(path)
