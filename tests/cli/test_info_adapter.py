"""`tokenmill info` of adapters: PEFT's directories and llama.cpp's files."""

import hashlib
import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.disk_of_models import write_gguf_adapter
from tokenmill.errors import CheckpointError
from tokenmill.weights.adapters.factors import modules_of_gguf
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
    name = "blk.{}.attn_q.weight.lora_{}".format
    tensors = {name(layer, kind): shape for layer in range(3) for kind, shape in (("a", (4, 32)), ("b", (16, 4)))}
    file = write_gguf_adapter(tmp_path / "x.gguf", tensors)
    facts = read_adapter_facts(file)
    assert is_adapter(file) and facts["modules"] == {"attn_q": 3} and facts["replaced"] == []
    assert (facts["format"], facts["rank"], facts["alpha"]) == ("GGUF for llama", 4, 16.0)
    assert "3 attn_q" in tm("info", file)[1]


Q = "blk.0.attn_q.weight.lora_{}".format
BROKEN = {
    "a without b": ({Q("a"): (4, 32)}, "missing: blk.0.attn_q (b)"),
    "ranks that differ": (
        {Q("a"): (4, 32), Q("b"): (16, 8)},
        "blk.0.attn_q: [4, 32] and [16, 8], no [R, I] and [O, R]",
    ),
    "another name": ({Q("a"): (4, 32), Q("b"): (16, 4), "blk.0.attn_q.weight": (16, 32)}, "unexpected: blk.0.attn_q"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_file_whose_tensors_do_not_agree_is_refused_as_the_load_does(kind, tm, tmp_path):
    tensors, words = BROKEN[kind]
    file = write_gguf_adapter(tmp_path / "x.gguf", tensors)
    with pytest.raises(CheckpointError, match=re.escape(words)) as info:
        read_adapter_facts(file)
    with pytest.raises(CheckpointError, match=re.escape(words)) as load:
        modules_of_gguf({name: torch.ones(shape) for name, shape in tensors.items()}, str(file))
    assert str(info.value) == str(load.value)
    code, _, err = tm("info", file)
    assert code == 2 and words in " ".join(err.split())


def test_halves_in_a_directory(peft):
    tensors = load_file(peft / "adapter_model.safetensors")
    del tensors[LAYER.format(1, "self_attn.v_proj") + ".lora_B.weight"]
    save_file(tensors, peft / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match=r"missing: model.layers.1.self_attn.v_proj \(b\)"):
        read_adapter_facts(peft)


def test_what_cannot_be_read_is_said(peft):
    (peft / "adapter_config.json").write_text(json.dumps(CONFIG | {"peft_type": "IA3"}))
    with pytest.raises(CheckpointError, match="peft_type"):
        read_adapter_facts(peft)
    assert not is_adapter(peft / "absent") and not is_adapter(peft / "adapter_model.safetensors")
