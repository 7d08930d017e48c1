"""Sampling settings of a model's files: read and checked, warned of when they are not used, used when asked for."""

import json
import logging
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import transformers

from tests import gguf_files
from tests.tiny_models import prompt
from tokenmill import CheckpointError, load
from tokenmill.loader.pack import save_packed_model
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.generation import (
    checked,
    defaults_of_directory,
    defaults_of_gguf,
    directory_of_defaults,
    gguf_of_defaults,
    recommended,
    usable,
)

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
        ({"do_sample": True, "temperature": 0.6, "top_p": 1.0, "top_k": None}, {"temperature": 0.6, "top_p": 1.0}),
        ({"temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.2}, {"repetition_penalty": 1.2}),
        ({"do_sample": False, "temperature": 0.7, "top_k": -1}, {"temperature": 0.0}),
        ({"do_sample": None, "top_k": 5}, {}),
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
    assert "generation_config=True uses that" in unused
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


def test_options_that_were_typed_go_before_them(llama, tmp_path, tm):
    path = directory(llama, tmp_path, **QWEN)

    def tokens(*options: str) -> str:
        _, out, _ = tm("generate", path, "--tokens", "1,2,3", "-n", 9, "--seed", 5, "--json", "--quiet", *options)
        return json.loads(out)["tokens"]

    drawn = tokens("--temperature", "0.7", "--top-k", "20", "--top-p", "0.8", "--repetition-penalty", "1.1")
    assert tokens("--generation-config") == drawn
    assert tokens("--generation-config", "--temperature", "0", "--repetition-penalty", "1") == tokens() != drawn


def file_of(folder, **values):
    (folder / "generation_config.json").write_text(json.dumps(values))
    return defaults_of_directory(folder)


# What each key of transformers' GenerationConfig is where it changes nothing, and another value.
IGNORED = {
    "typical_p": (1.0, 0.9),
    "epsilon_cutoff": (0.0, 0.1),
    "eta_cutoff": (0.0, 0.1),
    "no_repeat_ngram_size": (0, 1),
    "encoder_repetition_penalty": (1.0, 1.1),
    "num_beams": (1, 2),
    "penalty_alpha": (0.0, 0.6),
    "begin_suppress_tokens": ([], [5]),
    "bad_words_ids": ([], [[5]]),
}


@pytest.mark.parametrize("key", IGNORED)
def test_a_key_that_cannot_be_followed_is_warned_of_where_it_has_an_effect(tmp_path, key, caplog):
    neutral, other = IGNORED[key]
    assert file_of(tmp_path, **{key: neutral}) == file_of(tmp_path, **{key: None}) == {}
    assert not caplog.messages
    assert file_of(tmp_path, **{key: other}) == {}
    file = tmp_path / "generation_config.json"
    assert caplog.messages == [f"{file} has settings that tokenmill does not have: {key} = {other!r}"]


def test_several_such_keys_are_said_together(tmp_path, caplog):
    file_of(tmp_path, num_beams=4, typical_p=0.5)
    assert caplog.messages[0].endswith("does not have: typical_p = 0.5, num_beams = 4")


def test_a_directory_without_the_file_recommends_nothing(tmp_path):
    assert defaults_of_directory(tmp_path) == {}


@pytest.mark.parametrize("name", ["temperature", "top_k", "top_p", "min_p"])
def test_settings_of_a_draw_count_where_there_is_one(tmp_path, name):
    value = {"temperature": 0.5, "top_k": 5, "top_p": 0.5, "min_p": 0.5}[name]
    assert file_of(tmp_path, **{name: value}) == {}
    assert file_of(tmp_path, do_sample=False, **{name: value}) == {"temperature": 0.0}
    assert file_of(tmp_path, do_sample=True, **{name: value}) == {"temperature": 1.0} | {name: value}


def test_a_gguf_file_s_keys_and_their_settings(caplog):
    metadata = {
        "general.sampling.temp": float(np.float32(0.7)),
        "general.sampling.top_k": 40,
        "general.sampling.top_p": float(np.float32(0.95)),
        "general.sampling.min_p": float(np.float32(0.05)),
        "general.sampling.penalty_repeat": float(np.float32(1.1)),
        "general.name": "x",
        "sampling.top_k": 3,
    }
    found = {"temperature": 0.7, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.1}
    assert defaults_of_gguf(Path("x.gguf"), metadata) == found
    assert type(defaults_of_gguf(Path("x.gguf"), metadata)["top_k"]) is int
    assert defaults_of_gguf(Path("x.gguf"), {"general.name": "x"}) == {}
    back = gguf_of_defaults(found | {"seed": 5})
    assert back == {key: pytest.approx(metadata[key], rel=1e-6) for key in list(metadata)[:5]}
    assert gguf_of_defaults({"top_k": 3}) == {"general.sampling.top_k": 3}
    assert not caplog.messages


@pytest.mark.parametrize(
    ("key", "neutral", "other"),
    [("sequence", "", "kpt"), ("mirostat", 0, 1)],
)
def test_what_a_gguf_file_asks_for_and_is_not_there(key, neutral, other, caplog):
    assert defaults_of_gguf(Path("x.gguf"), {f"general.sampling.{key}": neutral}) == {}
    assert not caplog.messages
    assert defaults_of_gguf(Path("x.gguf"), {f"general.sampling.{key}": other}) == {}
    assert caplog.messages == [f"x.gguf has settings that tokenmill does not have: {key} = {other!r}"]


@pytest.mark.parametrize(
    ("values", "warned"),
    [
        ({"penalty_last_n": 64}, False),
        ({"penalty_last_n": 64, "penalty_repeat": 1.0}, False),
        ({"penalty_last_n": -1, "penalty_repeat": 1.1}, False),
        ({"penalty_last_n": 64, "penalty_repeat": 1.1}, True),
    ],
    ids=str,
)
def test_the_window_of_a_penalty(values, warned, caplog):
    metadata = {f"general.sampling.{key}": value for key, value in values.items()}
    wanted = {"repetition_penalty": values["penalty_repeat"]} if "penalty_repeat" in values else {}
    assert defaults_of_gguf(Path("x.gguf"), metadata) == wanted
    assert bool(caplog.messages) == warned


def test_values_that_turn_a_setting_off_are_kept_since_a_protocol_may_have_another():
    values = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0, "repetition_penalty": 1}
    found = checked(Path("x"), values, "a file")
    assert found == values and found.origin == "a file"
    with pytest.raises(CheckpointError, match=r"^x: top_p = 2 is not allowed: a number above 0 and up to 1$"):
        checked(Path("x"), {"top_p": 2}, "a file")


def test_where_the_settings_come_from_is_told(llama, tmp_path):
    assert (
        open_checkpoint(directory(llama, tmp_path / "a", **QWEN)).generation_defaults().origin
        == "generation_config.json"
    )
    nothing = open_checkpoint(directory(llama, tmp_path / "b", bos_token_id=1)).generation_defaults()
    assert (nothing, nothing.origin) == ({}, "")
    assert defaults_of_gguf(Path("x.gguf"), {"general.sampling.top_k": 3}).origin == "general.sampling of the GGUF file"


def test_a_gguf_file_with_a_short_name_has_its_maker_s_settings(tmp_path, caplog):
    """They go wherever the model goes: into a packed model, and into a directory that is written of it."""
    file = "SmolLM2-135M-Instruct.Q4_1.gguf"
    path = gguf_files.write(tmp_path / file, "llama")
    found = open_checkpoint(path).generation_defaults()
    assert found == {"temperature": 0.2, "top_p": 0.9} and found.origin == "the maker's model card"
    assert load(path, generation_config=True).core.inputs.defaults == found
    with caplog.at_level(logging.WARNING):
        assert load(path).core.inputs.defaults == {}, "generate is greedy, and is not told of it in each run"
    assert not caplog.messages
    image = tmp_path / "model.image"
    save_packed_model(open_checkpoint(path), EngineConfig(program="native"), image, lambda done, total: None)
    packed = open_checkpoint(image).generation_defaults()
    assert (packed, packed.origin) == (found, found.origin)
    assert directory_of_defaults(found) == {"temperature": 0.2, "top_p": 0.9, "do_sample": True}
    own = gguf_files.write(tmp_path / file, "llama", metadata={"general.sampling.temp": 0.5})
    assert open_checkpoint(own).generation_defaults() == {"temperature": 0.5}, "the file's own go first"


@pytest.mark.parametrize(
    "found", [{"temperature": 0.0, "top_k": 5, "repetition_penalty": 1.1}, {"temperature": 0.7}, {}]
)
def test_what_is_written_into_a_directory_is_taken_by_transformers(found, tmp_path):
    """And by ours: the likeliest token is do_sample false there, and a temperature of 0 beside do_sample is refused."""
    values = directory_of_defaults(found)
    (tmp_path / "generation_config.json").write_text(json.dumps(values))
    theirs = transformers.GenerationConfig.from_pretrained(tmp_path)
    theirs.validate(strict=True)
    drawn = {name: value for name, value in found.items() if found.get("temperature") or name in KEPT}
    assert defaults_of_directory(tmp_path) == drawn
    assert bool(theirs.do_sample) == bool(found.get("temperature"))


KEPT = ("temperature", "repetition_penalty")


class Recommending(SimpleNamespace):
    """A checkpoint whose files recommend `found`, or whose values are not allowed where that is None."""

    path = Path("/models/this")

    def generation_defaults(self):
        if self.found is None:
            raise CheckpointError("x: top_p = 2 is not allowed")
        return self.found


def test_recommendations_are_used_or_said(caplog):
    some, none, wrong = Recommending(found={"top_k": 5, "top_p": 0.5}), Recommending(found={}), Recommending(found=None)
    assert recommended(some, True) == {"top_k": 5, "top_p": 0.5} and recommended(none, True) == {}
    assert recommended(none, False) == {} and usable(some) == {"top_k": 5, "top_p": 0.5}
    assert not caplog.messages
    assert recommended(some, False) == {}
    with pytest.raises(CheckpointError, match="top_p = 2"):
        recommended(wrong, True)
    uses = "generation_config=True uses that (an option of generate, decode and profile; chat and serve do)"
    assert caplog.messages == [f"this recommends top_k = 5, top_p = 0.5; {uses}"]
    caplog.clear()
    assert recommended(wrong, False) == usable(wrong) == {}
    assert caplog.messages == ["x: top_p = 2 is not allowed; it is not used"] * 2


CHANGES_TOKENS = {
    "top_h": 0.3, "min_length": 5, "min_new_tokens": 5, "sequence_bias": [[[5], -1.0]], "guidance_scale": 2.0,
    "exponential_decay_length_penalty": [1, 2.0], "stop_strings": ["x"], "forced_bos_token_id": 5,
    "forced_eos_token_id": 5, "dola_layers": "high",
}  # fmt: skip


@pytest.mark.parametrize("key", CHANGES_TOKENS)
def test_what_changes_tokens_elsewhere_is_told_of(key, tmp_path, caplog):
    assert key in vars(transformers.GenerationConfig()), "a name that transformers has"
    (tmp_path / "generation_config.json").write_text(json.dumps({key: CHANGES_TOKENS[key]}))
    assert defaults_of_directory(tmp_path) == {}
    assert f"has settings that tokenmill does not have: {key} = " in caplog.text


def test_what_transformers_writes_by_itself_is_not_told_of(tmp_path, caplog):
    transformers.GenerationConfig(do_sample=True, min_length=0, guidance_scale=1.0).save_pretrained(tmp_path)
    defaults_of_directory(tmp_path)
    assert not caplog.text
