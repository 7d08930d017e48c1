"""The text part of a model that sees: names of tensors, old and new, and what config.json says outside of it."""

import json
import logging

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.laws.test_law_01_families import check_logits
from tests.marks import each
from tests.tiny_models import FAMILY_NAMES, prompt, reference, save
from tokenmill import CheckpointError, load
from tokenmill.model.families import find_family, read_config

SIZES = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 6}
SIZES |= {"num_key_value_heads": 2, "vocab_size": 211}
MISTRAL3 = {"model_type": "mistral3", "text_config": {"model_type": "mistral", **SIZES}}
SPELLINGS = [
    ("language_model.model.", "language_model.lm_head.", ""),  # before transformers 4.52, and as it writes
    ("model.language_model.", "lm_head.", "model."),
]


@pytest.mark.parametrize("spelling", SPELLINGS, ids=["old", "new"])
@pytest.mark.parametrize("name", ["gemma3", "mistral3"])
def test_tensors_have_names_of_two_kinds(name, spelling, models, tmp_path, caplog):
    path, (body, head, other) = save(name, models), spelling
    tensors = {}
    for key, tensor in load_file(path / "model.safetensors").items():
        old = key.removeprefix("model.")
        if "lm_head." in old:
            renamed = head + old.partition("lm_head.")[2]
        elif "language_model." in old:
            renamed = body + old.partition("language_model.")[2].removeprefix("model.")
        else:
            renamed = other + old
        tensors[renamed] = tensor
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((path / "config.json").read_text())
    with caplog.at_level(logging.WARNING):
        logits = load(tmp_path, dtype="float32").logits(prompt(20))
    with torch.no_grad():
        torch.testing.assert_close(logits, reference(name)(torch.tensor([prompt(20)])).logits[0])
    left_out = [key for key in tensors if "vision_tower" in key or "projector" in key]
    said = f"left out are {len(left_out)} tensors of multi_modal_projector and vision_tower"
    assert [said in line for line in caplog.text.splitlines() if "left out" in line] == [True]


# How merged fine-tunes, wrappers and other programs name the text part of a whole model: its body, and its head.
WHOLE = [
    ("model.language_model.", "lm_head."),
    ("language_model.model.", "language_model.lm_head."),
    ("language_model.", "lm_head."),
    ("model.language_model.model.", "model.language_model.lm_head."),
    ("base_model.model.model.", "base_model.model.lm_head."),
    ("thinker.model.", "thinker.lm_head."),
    ("model.text_model.", "lm_head."),
]


@pytest.mark.parametrize(("body", "head"), WHOLE)
@pytest.mark.parametrize("name", each(FAMILY_NAMES))
def test_a_text_config_beside_the_names_of_the_whole_model(name, body, head, models, tmp_path, caplog):
    family = find_family(reference(name).config.to_dict())
    if family.text is not None or not family.prefix:
        pytest.skip("its names are those of a whole model already, or have no prefix")
    path, tensors = save(name, models), {}
    for key, tensor in load_file(path / "model.safetensors").items():
        tensors[key.replace("lm_head.", head) if "lm_head." in key else body + key.removeprefix(family.prefix)] = tensor
    outer = {"thinker.model.": "thinker.", "base_model.model.model.": "base_model.model."}.get(body, "")
    # An embedding of the same name in another part would be another candidate, which a refusal lists.
    tower = "patches" if "embeddings.weight" in family.names else "embeddings"
    tensors |= {f"{outer}{part}.weight": torch.zeros(4, 4) for part in (f"vision_tower.{tower}", "visual.merger")}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text((path / "config.json").read_text())
    with caplog.at_level(logging.WARNING):
        engine = load(tmp_path, dtype="float32", program="eager", scheme="dense")
    assert "left out are 2 tensors of vision_tower and visual: text alone is implemented" in caplog.text
    check_logits(engine.logits(prompt(9)), name, prompt(9))


def test_names_that_fit_no_part_are_told(models, tmp_path):
    path = save("llama", models)
    (tmp_path / "config.json").write_text((path / "config.json").read_text())
    tensors = load_file(path / "model.safetensors")
    twice = {f"{part}.{key}": tensor.clone() for part in ("one", "two") for key, tensor in tensors.items()}
    save_file(twice, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"unknown: one.model.embed_tokens.weight, two.model.embed_tokens.weight"):
        load(tmp_path)
    renamed = {key.replace("model.embed_tokens", "wte").replace("model.", "h."): each for key, each in tensors.items()}
    save_file({key: each for key, each in renamed.items() if "lm_head" not in key}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"no tensor has a name of this family; the names begin with \['h.layers"):
        load(tmp_path)


def test_what_is_said_outside_goes_first():
    config = {
        **MISTRAL3,
        "tie_word_embeddings": False,
        "eos_token_id": [7, 9],
        "dtype": "bfloat16",
        "torch_dtype": None,
    }
    model = read_config(config)
    assert (model.tie_embeddings, model.eos_token_ids, model.dtype) == (False, (7, 9), "bfloat16")
    inside = {**MISTRAL3["text_config"], "eos_token_id": 3, "tie_word_embeddings": False}
    model = read_config({**MISTRAL3, "text_config": inside, "eos_token_id": None})
    assert (model.tie_embeddings, model.eos_token_ids) == (
        True,
        (3,),
    )  # of the tie the whole model's class alone is asked
    assert read_config(MISTRAL3).tie_embeddings


def test_the_text_part_says_its_family():
    assert read_config(MISTRAL3).attention_temperature is None
    ministral = {**MISTRAL3, "text_config": {**SIZES, "model_type": "ministral3"}}
    assert read_config(ministral).attention_temperature == (0.1, 16384)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text_config": 3}, "text_config must be an object"),
        (
            {"text_config": {**SIZES, "model_type": "llama"}},
            "model_type = 'llama' is not implemented: only 'mistral', ",
        ),
        ({"some_new_key": 3}, "keys that tokenmill does not know: some_new_key = 3"),
        ({"text_config": {**SIZES, "some_new_key": 3}}, "keys that tokenmill does not know: some_new_key = 3"),
    ],
)
def test_what_is_refused(change, message):
    with pytest.raises(CheckpointError, match=message):
        read_config(json.loads(json.dumps({**MISTRAL3, **change})))
