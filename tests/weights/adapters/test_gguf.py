"""Adapters of llama.cpp: the same arithmetic as of the PEFT directory that they are made of.

The files are written as llama.cpp's convert_lora_to_gguf.py writes them; of Llama, Qwen 2 and 3, Gemma 3, Phi-3 and
OLMo 2 its own files gave the same logits to the bit (September 2026, log).
"""

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests import gguf_files
from tests.peft_adapters import logits_of, save_adapter
from tests.tiny_models import TINY, prompt, save
from tokenmill import CheckpointError, load

TOKENS = prompt(19)


def write(path, arch, tensors, alpha=8.0, **metadata):
    writer = gguf.GGUFWriter(path, arch)
    writer.add_string("general.type", metadata.pop("general_type", "adapter"))
    writer.add_string("adapter.type", metadata.pop("adapter_type", "lora"))
    writer.add_float32("adapter.lora.alpha", alpha)
    for name, value in metadata.items():
        writer.add_array(name.replace("__", "."), value)
    for name, array in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def factors_of(folder, name, arch):
    """The tensors of a PEFT directory by llama.cpp's names: of B the rows are in its order."""
    names = gguf.get_tensor_name_map(next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == arch), 8)
    found = {}
    for label, tensor in load_file(folder / "adapter_model.safetensors").items():
        module, _, kind = label.removeprefix("base_model.model.").removesuffix(".weight").rpartition(".lora_")
        if kind == "B":
            turned = gguf_files._turned(arch, TINY[name][1], f"{module}.weight", tensor)
        mapped = names.get_name(f"{module}.weight", try_suffixes=(".weight",))
        found[f"{mapped}.lora_{kind.lower()}"] = (turned if kind == "B" else tensor).numpy()
    return found


@pytest.mark.parametrize(("name", "arch"), [("llama", "llama"), ("qwen3", "qwen3"), ("gemma2", "gemma2")])
def test_it_is_the_peft_directory(name, arch, models, tmp_path):
    peft = save_adapter(name, tmp_path / "peft")
    path = write(tmp_path / "a.gguf", arch, factors_of(tmp_path / "peft", name, arch))
    with load(save(name, models), dtype="float32", program="eager", scheme="dense") as engine:
        engine.load_adapter("a", path)
        expected = logits_of(peft, TOKENS)
        bound = 1e-5 * float(expected.abs().max())
        torch.testing.assert_close(engine.logits(TOKENS, adapter="a"), expected, rtol=0, atol=bound)


def test_experts_lie_one_behind_the_other(models, tmp_path):
    """[E, R, I] and [E, O, R]. PEFT has them in one tensor each."""
    config = {"target_modules": ["q_proj"], "target_parameters": ["mlp.experts.down_proj"], "lora_alpha": 8, "r": 4}
    peft = save_adapter("mixtral", tmp_path / "peft", **config)
    tensors, count = {}, TINY["mixtral"][1]["num_local_experts"]
    for label, tensor in load_file(tmp_path / "peft" / "adapter_model.safetensors").items():
        layer, kind = label.split("layers.")[1][0], label.removesuffix(".weight")[-1].lower()
        if ".experts." not in label:
            turned = tensor if kind == "a" else gguf_files._turned("llama", TINY["mixtral"][1], "q_proj.weight", tensor)
            tensors[f"blk.{layer}.attn_q.weight.lora_{kind}"] = turned.numpy()
        elif kind == "a":
            tensors[f"blk.{layer}.ffn_down_exps.weight.lora_a"] = tensor.view(count, -1, tensor.shape[1]).numpy()
        else:
            stacked = tensor.view(len(tensor), -1, count).permute(2, 0, 1)
            tensors[f"blk.{layer}.ffn_down_exps.weight.lora_b"] = stacked.numpy()
    path = write(tmp_path / "a.gguf", "llama", tensors)
    for program in ("eager", "native"):
        with load(save("mixtral", models), dtype="float32", program=program, scheme="dense") as engine:
            engine.load_adapter("a", path)
            expected = logits_of(peft, TOKENS)
            bound = 1e-4 * float(expected.abs().max())
            torch.testing.assert_close(engine.logits(TOKENS, adapter="a"), expected, rtol=0, atol=bound)


def test_the_embedding_and_a_scale_of_one(models, tmp_path):
    """llama.cpp takes rows of A for the embedding, [V, R]; an alpha of 0 stands for none."""
    generator = torch.Generator().manual_seed(0)
    vocabulary, hidden = TINY["llama"][1]["vocab_size"], TINY["llama"][1]["hidden_size"]
    a, b = torch.randn(vocabulary, 3, generator=generator), torch.randn(hidden, 3, generator=generator)
    path = write(tmp_path / "a.gguf", "llama", {
        "token_embd.weight.lora_a": a.numpy(), "token_embd.weight.lora_b": b.numpy()}, alpha=0.0)  # fmt: skip
    with load(save("llama", models), dtype="float32", program="eager", scheme="dense") as engine:
        change = engine.load_adapter("a", path).embedding
        torch.testing.assert_close(change.a_VR @ change.b_RD, a @ b.t())
        assert change.scale == 1.0


@pytest.mark.parametrize(
    ("arch", "more", "said"),
    [
        ("gpt2", {}, "is for the architecture 'gpt2', and this model's is llama"),
        ("llama", {"general_type": "model"}, "is a model, no adapter"),
        ("llama", {"adapter_type": "control"}, "adapter.type"),
        ("llama", {"adapter__alora__invocation_tokens": [1, 2]}, "adapter.alora.invocation_tokens"),
    ],
)
def test_other_files_are_refused(arch, more, said, models, tmp_path):
    save_adapter("llama", tmp_path / "peft", target_modules=["q_proj"])
    path = write(tmp_path / "a.gguf", arch, factors_of(tmp_path / "peft", "llama", "llama"), **more)
    with (
        load(save("llama", models), program="eager") as engine,
        pytest.raises(CheckpointError, match=r"a\.gguf") as caught,
    ):
        engine.load_adapter("a", path)
    assert said in str(caught.value)


def test_other_tensors_are_refused_with_their_names(models, tmp_path):
    save_adapter("llama", tmp_path / "peft", target_modules=["q_proj"])
    factors = factors_of(tmp_path / "peft", "llama", "llama")
    with load(save("llama", models), program="eager") as engine:
        for name, said in (
            ("blk.7.attn_q.weight.lora_a", "missing: blk.7.attn_q"),
            ("blk.0.attn_q.scale", "attn_q.scale"),
        ):
            path = write(tmp_path / "a.gguf", "llama", {**factors, name: np.zeros((4, 48), np.float32)})
            with pytest.raises(CheckpointError, match=r"a\.gguf") as caught:
                engine.load_adapter("a", path)
            assert said in str(caught.value)


def test_a_model_is_no_adapter(models, tmp_path):
    path = gguf_files.write(tmp_path / "model.gguf", "llama")
    with load(save("llama", models), program="eager") as engine, pytest.raises(CheckpointError, match="no adapter"):
        engine.load_adapter("a", path)


def test_an_adapter_is_no_model(tmp_path):
    save_adapter("llama", tmp_path / "peft", target_modules=["q_proj"])
    path = write(tmp_path / "a.gguf", "llama", factors_of(tmp_path / "peft", "llama", "llama"))
    with pytest.raises(
        CheckpointError, match="is an adapter, not a model: give the model, and this file with --adapter"
    ):
        load(path)
