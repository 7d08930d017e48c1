"""Keys and values of layers that read the rows of others: published files have their matrices, which nothing reads; and
what llama.cpp wants beside them.
"""

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.tiny_models import TINY, VOCABULARY, build, prompt, save
from tokenmill import load
from tokenmill.errors import CheckpointError
from tokenmill.hub.progress import Silent
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.gguf.header import read_header
from tokenmill.weights.write.quantize import quantize


@pytest.mark.parametrize("name", ["gemma3n_text", "gemma4_text-small"])
def test_matrices_that_nothing_reads_are_passed_over(name, models, tmp_path):
    path = shutil.copytree(save(name, models), tmp_path / name)
    tensors = load_file(path / "model.safetensors")
    shared = [layer for layer in (2, 3, 4) if f"model.layers.{layer}.self_attn.q_proj.weight" in tensors]
    shared = [layer for layer in shared if f"model.layers.{layer}.self_attn.k_proj.weight" not in tensors]
    assert shared
    for layer in shared:
        names = [f"model.layers.{layer}.self_attn.{part}.weight" for part in ("k_proj", "v_proj", "k_norm")]
        tensors |= {each: torch.randn(3, 5) for each in names}
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    wanted = load(save(name, models), program="eager", dtype="float32").logits(prompt(9))
    assert torch.equal(load(path, program="eager", dtype="float32").logits(prompt(9)), wanted)
    save_file(tensors | {"model.layers.0.self_attn.w_proj.weight": torch.ones(1)}, path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"1 unexpected: model.layers.0.self_attn.w_proj.weight"):
        load(path, program="eager", dtype="float32")


def test_llama_cpp_gets_zeros_in_their_place(models, tmp_path):
    """Its loader of Gemma 3n wants a matrix for each layer."""
    file = tmp_path / "x.gguf"
    quantize(open_checkpoint(save("gemma3n_text", models)), file, Silent(), "none", head="none", export="gguf")
    infos = read_header(file).tensors
    for layer in range(5):
        assert {f"blk.{layer}.attn_{part}.weight" for part in ("k", "v", "k_norm")} <= infos.keys()
    checkpoint = open_checkpoint(file)
    assert "blk.4.attn_k.weight" not in checkpoint.shapes and not checkpoint.raw(infos["blk.4.attn_k.weight"]).any()


def test_llama_cpp_gets_a_row_for_each_token(tmp_path):
    """Tokens behind the end of Gemma 3n's table have its first row."""
    kind, numbers = TINY["gemma3n_text"]
    build(kind, numbers | {"vocab_size_per_layer_input": VOCABULARY - 20}).save_pretrained(tmp_path / "model")
    quantize(open_checkpoint(tmp_path / "model"), tmp_path / "x.gguf", Silent(), "none", head="none", export="gguf")
    assert read_header(tmp_path / "x.gguf").tensors["per_layer_token_embd.weight"].shape[0] == VOCABULARY
    ids = [*prompt(20), VOCABULARY - 1, VOCABULARY - 20, 3]
    found, wanted = (
        load(tmp_path / name, dtype="float32", program="eager").logits(ids) for name in ("x.gguf", "model")
    )
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
