"""`tokenmill info` of adapters: PEFT's directories and llama.cpp's files."""

import hashlib
import json

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tokenmill.errors import CheckpointError
from tokenmill.weights.adapters.outline import is_adapter, read_adapter_facts

LAYER = "base_model.model.model.layers.{}.{}"
CONFIG = {
    "peft_type": "LORA",
    "base_model_name_or_path": "HuggingFaceTB/SmolLM2-135M",
    "r": 4,
    "lora_alpha": 8,
    "target_modules": ["q_proj", "v_proj"],
    "modules_to_save": ["lm_head"],
    "use_rslora": True,
}


@pytest.fixture
def peft(tmp_path):
    path = tmp_path / "french"
    path.mkdir()
    (path / "adapter_config.json").write_text(json.dumps(CONFIG))
    tensors = {}
    for layer in range(2):
        for name in ("self_attn.q_proj", "self_attn.v_proj"):
            module = LAYER.format(layer, name)
            tensors |= {f"{module}.lora_A.weight": torch.ones(4, 32), f"{module}.lora_B.weight": torch.ones(16, 4)}
    tensors["base_model.model.lm_head.weight"] = torch.ones(10, 32)
    save_file(tensors, path / "adapter_model.safetensors")
    return path


def test_a_directory(peft):
    facts = read_adapter_facts(peft)
    assert is_adapter(peft) and facts["modules"] == {"q_proj": 2, "v_proj": 2}
    assert (facts["rank"], facts["alpha"], facts["rslora"], facts["dora"]) == (4, 8, True, False)
    assert (
        facts["replaced"] == ["base_model.model.lm_head.weight"] and facts["base"] == CONFIG["base_model_name_or_path"]
    )
    assert facts["num_parameters"] == 4 * (4 * 32 + 16 * 4) + 320
    assert facts["digest"] == hashlib.sha256((peft / "adapter_model.safetensors").read_bytes()).hexdigest()


def test_what_is_printed(tm, peft):
    said = " ".join(tm("info", peft)[1].split())
    assert "PEFT, rank 4, alpha 8, rslora" in said and "2 q_proj, 2 v_proj" in said and "SmolLM2-135M" in said
    assert json.loads(tm("info", peft, "--json")[1])["kind"] == "adapter"


def test_a_file(tm, tmp_path):
    file = tmp_path / "x.gguf"
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 16.0)
    for layer in range(3):
        writer.add_tensor(f"blk.{layer}.attn_q.weight.lora_a", np.ones((4, 32), np.float32))
        writer.add_tensor(f"blk.{layer}.attn_q.weight.lora_b", np.ones((16, 4), np.float32))
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file()
    writer.close()
    facts = read_adapter_facts(file)
    assert is_adapter(file) and facts["modules"] == {"attn_q": 3} and facts["replaced"] == []
    assert (facts["format"], facts["rank"], facts["alpha"]) == ("GGUF for llama", 4, 16.0)
    assert "3 attn_q" in tm("info", file)[1]


def test_what_cannot_be_read_is_said(peft):
    (peft / "adapter_config.json").write_text(json.dumps(CONFIG | {"peft_type": "IA3"}))
    with pytest.raises(CheckpointError, match="peft_type"):
        read_adapter_facts(peft)
    assert not is_adapter(peft / "absent") and not is_adapter(peft / "adapter_model.safetensors")
