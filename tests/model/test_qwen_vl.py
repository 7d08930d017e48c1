"""The text part of Qwen's models that see: what its config says, old or new, and their experts."""

import json
from copy import deepcopy

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.tiny_models import TINY, build, prompt, reference, save
from tokenmill import CheckpointError, load
from tokenmill.model.families import read_config

SIZES = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 6}
SIZES |= {"num_key_value_heads": 2, "vocab_size": 211}
MROPE = {"type": "mrope", "mrope_section": [2, 1, 1]}
VISION = {"depth": 1, "hidden_size": 16}


def qwen(kind="qwen2_5_vl", **text):
    return {"model_type": kind, "text_config": {**SIZES, **text}, "vision_config": VISION}


def transformers_reads(config):
    """The same config as transformers' class has it."""
    config = deepcopy(config)
    return transformers.AutoConfig.for_model(config.pop("model_type"), **config).to_dict()


def without_end(config):
    model = read_config(config)
    return {name: getattr(model, name) for name in model.__dataclass_fields__ if name not in ("eos_token_ids", "dtype")}


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "qwen2_vl", **SIZES, "rope_scaling": MROPE, "rope_theta": 5e5, "vision_config": VISION},
        {"model_type": "qwen2_5_vl", **SIZES, "rope_scaling": MROPE, "tie_word_embeddings": True},
        {"model_type": "qwen2_5_vl", **SIZES},
        qwen(tie_word_embeddings=True),
        qwen(rope_scaling={**MROPE, "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}),
        qwen(rope_scaling={**MROPE, "rope_type": "default", "type": "default"}, rope_theta=3e5),
        qwen(rope_parameters={"rope_type": "default", "rope_theta": 3e5, "mrope_section": [2, 1, 1]}),
        qwen(use_sliding_window=True, sliding_window=9, max_window_layers=1),
        qwen(use_sliding_window=True, sliding_window=9),
        qwen("qwen3_vl"),
        qwen("qwen3_vl", rope_scaling={"mrope_interleaved": True, "mrope_section": [4, 2, 2], "rope_type": "default"}),
        qwen("qwen3_vl", tie_word_embeddings=True),
        qwen("qwen3_vl_moe"),
        qwen("qwen3_vl_moe", num_experts=7, num_experts_per_tok=3, mlp_only_layers=[0], head_dim=12),
    ],
)
def test_a_config_is_what_transformers_makes_of_it(config):
    assert without_end(config) == without_end(transformers_reads(config))


def test_the_text_part_goes_before_older_keys_outside():
    """Releases of transformers between the two wrote both."""
    config = {**qwen(), **{key: value + 1 for key, value in SIZES.items()}}
    assert without_end(config) == without_end(qwen()) == without_end(transformers_reads(config))


def test_it_is_a_model_of_text():
    model = read_config(qwen("qwen3_vl_moe"))
    assert (model.family, model.norm_top_k, model.num_experts) == ("qwen3_moe", True, 60)
    assert read_config(qwen("qwen2_vl")).family == "qwen2" and read_config(qwen("qwen3_vl")).family == "qwen3"
    assert read_config(qwen(rope_scaling=MROPE)).rope.kind == "default"
    assert read_config(qwen("qwen2_vl")).eos_token_ids == (151645,)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (qwen(rope_scaling=3), "rope parameters must be an object with named values, not 3"),
        (qwen(some_new_key=3), "keys that tokenmill does not know: some_new_key = 3"),
        (qwen("qwen3_vl_moe", norm_topk_prob=False), "norm_topk_prob = False is not implemented"),
    ],
)
def test_what_is_refused(config, message):
    with pytest.raises(CheckpointError, match=message):
        read_config(config)


@pytest.mark.parametrize("layout", ["published", "one by one"])
def test_experts_are_stored_in_three_ways(layout, models, tmp_path):
    """The published files have them [experts, inputs, outputs], transformers 5 writes [experts, outputs, inputs], and
    programs that round each matrix have one tensor for each.
    """
    path, tensors = save("qwen3_vl_moe", models), {}
    for name, tensor in load_file(path / "model.safetensors").items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            tensors[name] = tensor
        elif layout == "published":
            tensors[name] = tensor.transpose(1, 2).contiguous()
        else:
            base, _, kind = name.rpartition(".")
            for number, matrix in enumerate(tensor):
                halves = zip(("gate_proj", "up_proj"), matrix.chunk(2), strict=True)
                parts = dict(halves) if kind == "gate_up_proj" else {"down_proj": matrix}
                tensors |= {f"{base}.{number}.{part}.weight": each.clone() for part, each in parts.items()}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text((path / "config.json").read_text())
    with load(tmp_path, dtype="float32", program="eager", scheme="dense") as engine, torch.no_grad():
        right = reference("qwen3_vl_moe")(torch.tensor([prompt(9)])).logits[0]
        torch.testing.assert_close(engine.logits(prompt(9)), right)
    if layout == "published":  # as transformers reads it
        model = type(reference("qwen3_vl_moe")).from_pretrained(tmp_path, attn_implementation="eager")
        torch.testing.assert_close(model(torch.tensor([prompt(9)])).logits[0].detach(), right)


def test_square_experts_are_told_by_the_others(tmp_path):
    """Where a layer is twice as wide as an expert, gate_up_proj has the same shape in either layout; transformers
    5.24 takes it for its own, beside a down_proj that it turns round.
    """
    kind, numbers = TINY["qwen3_vl_moe"]
    text = numbers["text_config"] | {"moe_intermediate_size": numbers["text_config"]["hidden_size"] // 2}
    model, tokens = build(kind, numbers | {"text_config": text}), prompt(9)
    model.save_pretrained(tmp_path / "ours")
    tensors = load_file(tmp_path / "ours" / "model.safetensors")
    turned = {
        name: tensor.transpose(1, 2).contiguous() if ".experts." in name else tensor for name, tensor in tensors.items()
    }
    model.config.save_pretrained(tmp_path / "published")
    save_file(turned, tmp_path / "published" / "model.safetensors", metadata={"format": "pt"})
    for layout in ("ours", "published"):
        with load(tmp_path / layout, dtype="float32", program="eager", scheme="dense") as engine, torch.no_grad():
            torch.testing.assert_close(engine.logits(tokens), model(torch.tensor([tokens])).logits[0])


def test_a_flat_config_loads(models, tmp_path):
    """As Qwen2.5-VL is published."""
    path = save("qwen2_5_vl", models)
    config = json.loads((path / "config.json").read_text())
    text = config.pop("text_config")
    del text["model_type"]
    rope = text.pop("rope_parameters")
    text |= {"rope_theta": rope["rope_theta"], "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}}
    (tmp_path / "config.json").write_text(json.dumps({**config, **text}))
    (tmp_path / "model.safetensors").write_bytes((path / "model.safetensors").read_bytes())
    with load(tmp_path, dtype="float32", program="eager", scheme="dense") as engine, torch.no_grad():
        right = reference("qwen2_5_vl")(torch.tensor([prompt(9)])).logits[0]
        torch.testing.assert_close(engine.logits(prompt(9)), right)
