"""`tokenmill info` of a model that no program can run: what its files say, and why."""

import json
import shutil
from pathlib import Path

import pytest

from tests.published import PUBLISHED
from tests.tiny_models import save
from tests.weights.test_outline import gguf_file


@pytest.fixture
def hybrid(tmp_path, model):
    """The files of a model that has a tokenizer, under the config of a family with states."""
    path = Path(shutil.copytree(model, tmp_path / "hybrid"))
    config = PUBLISHED["Qwen3-Next-80B-A3B-Instruct"]["config"]
    (path / "config.json").write_text(json.dumps(config | {"model_type": "qwen4_next"}))
    return path


def test_it_says_what_it_can_and_why(tm, hybrid):
    code, out, err = tm("info", hybrid)
    assert (code, err) == (0, "")
    for part in ("qwen4_next, Qwen3NextForCausalLM", "layers with state", "512, 10 for each token", "float32"):
        assert part in out, part
    assert "in no program:" in out and "model_type 'qwen4_next' is not implemented" in " ".join(out.split())
    facts = json.loads(tm("info", hybrid, "--json", "--tensors")[1])
    assert (facts["runs"], facts["num_layers"], facts["chat_template"]) == (None, 48, True)
    assert "model_type 'qwen4_next' is not implemented" in facts["why_not"]
    assert len(facts["tensors"]) == facts["types"]["float32"]["count"]
    assert facts["num_bytes"] == 4 * facts["num_stored"]
    assert "{" in tm("info", hybrid, "--template")[1]


def test_others_refuse_it_as_ever(refused, hybrid):
    for words in (["plan"], ["generate", "-p", "x"], ["info", "--check"]):
        assert "model_type 'qwen4_next' is not implemented" in refused(words[0], hybrid, *words[1:])


def test_a_gguf_file_of_an_unknown_architecture(tm, tmp_path):
    file = gguf_file(tmp_path / "m.gguf", "mamba9", {"mamba9.block_count": 4, "mamba9.ssm.state_size": 16})
    code, out, _ = tm("info", file)
    assert code == 0
    assert "mamba9" in out and "1 F32" in out and "layers with state" in out
    assert "general.architecture = 'mamba9' is not implemented" in " ".join(out.split())


def test_a_key_that_is_not_known(tm, tmp_path, model):
    path = Path(shutil.copytree(model, tmp_path / "new"))
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "gated_logits": 3}))
    assert "does not know: gated_logits = 3" in json.loads(tm("info", path, "--json")[1])["why_not"]


def test_a_model_that_sees_has_its_text_part(tm, tmp_path):
    path = save("gemma3", tmp_path)
    assert "gemma3_text, the text part of a gemma3 model" in tm("info", path)[1]
    assert json.loads(tm("info", path, "--json")[1])["part_of"] == "gemma3"
