"""Sampling settings of a model's files: read and checked, warned of when they are not used, used when asked for."""

import json
import logging
import shutil

import pytest
from typer.testing import CliRunner

from tests import gguf_files
from tests.tiny_models import prompt
from tokenmill import CheckpointError, load
from tokenmill.cli.main import app
from tokenmill.loader.pack import save_packed_model
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.weights.checkpoint import open_checkpoint

QWEN = {  # Qwen2.5-0.5B-Instruct's
    "bos_token_id": 151643,
    "do_sample": True,
    "repetition_penalty": 1.1,
    "temperature": 0.7,
    "top_p": 0.8,
    "top_k": 20,
    "transformers_version": "4.37.0",
}
FOUND = {"repetition_penalty": 1.1, "temperature": 0.7, "top_p": 0.8, "top_k": 20}


def directory(llama, path, **values):
    shutil.copytree(llama, path, dirs_exist_ok=True)
    (path / "generation_config.json").write_text(json.dumps(values))
    return path


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (QWEN, FOUND),
        ({"do_sample": True}, {"temperature": 1.0}),
        ({"do_sample": True, "temperature": 0.6, "top_p": 1.0, "top_k": None}, {"temperature": 0.6}),
        ({"temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.2}, {"repetition_penalty": 1.2}),
        ({"do_sample": False, "temperature": 0.0, "top_k": -1}, {}),
        ({}, {}),
    ],
)
def test_a_directory_s_settings_are_those_that_transformers_would_apply(values, found, llama, tmp_path):
    assert open_checkpoint(directory(llama, tmp_path, **values)).generation_defaults() == found


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"do_sample": "yes"}, "do_sample = 'yes'"),
        ({"do_sample": True, "temperature": "hot"}, "temperature"),
        ({"do_sample": True, "top_p": 7}, "top_p"),
        ({"do_sample": True, "top_k": 1.5}, "top_k"),
        ({"repetition_penalty": [1]}, "repetition_penalty"),
    ],
)
def test_values_that_are_not_allowed_are_refused_by_name(values, message, llama, tmp_path):
    with pytest.raises(CheckpointError, match=rf"generation_config\.json.*{message}"):
        load(directory(llama, tmp_path, **values), generation_config=True)


def test_values_that_are_not_allowed_stop_no_load_that_does_not_use_them(llama, tmp_path, caplog):
    path = directory(llama, tmp_path, do_sample=True, top_p=0)
    assert load(path).core.inputs.defaults == {}
    assert "generation_config.json: top_p = 0" in caplog.text and "; it is not used" in caplog.text
    with pytest.raises(CheckpointError, match="top_p = 0"):
        load(path, generation_config=True)


def test_settings_that_are_not_used_are_warned_of_once(llama, tmp_path, caplog):
    path = directory(llama, tmp_path, **QWEN, num_beams=4)
    load(path)
    unused, absent = (sorted(r.getMessage() for r in caplog.records if r.levelno == logging.WARNING))[::-1]
    assert "recommends temperature = 0.7, top_k = 20, top_p = 0.8, repetition_penalty = 1.1" in unused
    assert "--generation-config" in unused
    assert "num_beams = 4" in absent
    caplog.clear()
    assert load(path, generation_config=True).core.inputs.defaults == FOUND
    assert [record.getMessage() for record in caplog.records] == [absent]


def test_they_are_the_defaults_of_every_call_where_they_are_asked_for(llama, tmp_path):
    plain = load(llama, dtype="float32")
    engine = load(directory(llama, tmp_path, **QWEN), dtype="float32", generation_config=True)
    asked = {"seed": 5, "max_new_tokens": 12}
    wanted = plain.generate(prompt(8), **FOUND, **asked).tokens
    assert engine.generate(prompt(8), **asked).tokens == wanted
    assert [*engine.stream(prompt(8), **asked)][-1].done.tokens == wanted
    with engine.session(prompt(8)) as session:
        assert session.generate(**asked).tokens == wanted
    greedy = {"temperature": 0.0, "repetition_penalty": 1.0}
    assert engine.generate(prompt(8), **greedy, **asked).tokens == plain.generate(prompt(8), **asked).tokens


def test_a_gguf_file_has_them_in_its_metadata_and_an_image_keeps_them(tmp_path):
    metadata = {"general.sampling.temp": 0.7, "general.sampling.top_k": 20, "general.sampling.penalty_repeat": 1.1}
    path = gguf_files.write(tmp_path / "model.gguf", "llama", metadata=metadata)
    found = {"temperature": 0.7, "top_k": 20, "repetition_penalty": 1.1}
    assert open_checkpoint(path).generation_defaults() == found
    image = tmp_path / "model.image"
    save_packed_model(open_checkpoint(path), EngineConfig(program="native"), image, lambda done, total: None)
    assert open_checkpoint(image).generation_defaults() == found


def test_options_that_were_typed_go_before_them(llama, tmp_path):
    path = directory(llama, tmp_path, **QWEN)

    def tokens(*options: str) -> str:
        words = ["generate", str(path), "--tokens", "1,2,3", "-n", "9", "--seed", "5", "--json", "--quiet", *options]
        result = CliRunner().invoke(app, words, catch_exceptions=False)
        return json.loads(result.stdout.splitlines()[-1])["tokens"]

    drawn = tokens("--temperature", "0.7", "--top-k", "20", "--top-p", "0.8", "--repetition-penalty", "1.1")
    assert tokens("--generation-config") == drawn
    assert tokens("--generation-config", "--temperature", "0", "--repetition-penalty", "1") == tokens() != drawn
