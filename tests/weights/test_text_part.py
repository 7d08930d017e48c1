"""The text part of a model that sees: names of tensors, old and new, and what config.json says outside of it."""

import json
import logging

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.tiny_models import prompt, reference, save
from tokenmill import CheckpointError, load
from tokenmill.model.families import read_config

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
    said = f"{len(left_out)} tensors of multi_modal_projector and vision_tower are not read"
    assert [said in line for line in caplog.text.splitlines() if "not read" in line] == [True]


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
