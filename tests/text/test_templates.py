"""The places of a model's chat templates, and what is refused."""

import json

import gguf
import pytest

from tokenmill.errors import CheckpointError
from tokenmill.text.templates import FOLDER, KEY, templates_from_directory, templates_from_gguf, templates_to_gguf
from tokenmill.weights.gguf.header import read_header


def test_files_stand_in_the_place_of_the_config(tmp_path):
    config = {"chat_template": "of the config"}
    assert templates_from_directory(tmp_path, {}) == {}
    assert templates_from_directory(tmp_path, config) == {"default": "of the config"}
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "tool_use.jinja").write_text("tools ▁")
    (tmp_path / FOLDER / "notes.txt").write_text("none")
    assert templates_from_directory(tmp_path, config) == {"tool_use": "tools ▁"}
    (tmp_path / "chat_template.jinja").write_text("of the file")
    found = templates_from_directory(tmp_path, config)
    assert list(found.items()) == [("default", "of the file"), ("tool_use", "tools ▁")]


@pytest.mark.parametrize(
    "given",
    [
        [{"name": "default", "template": "a"}, {"name": "rag", "template": "b"}],
        {"default": "a", "rag": "b"},
    ],
)
def test_named_templates_of_a_config(given, tmp_path):
    assert templates_from_directory(tmp_path, {"chat_template": given}) == {"default": "a", "rag": "b"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (5, "chat_template = 5 is not allowed: a text, or a list of named ones"),
        (["a"], "chat_template: entry 0"),
        ([{"template": "a"}], "entry 0.*name"),
        ({"default": 3}, "chat_template.*default"),
    ],
)
def test_what_is_no_template_is_refused(given, says, tmp_path):
    with pytest.raises(CheckpointError, match=says):
        templates_from_directory(tmp_path, {"chat_template": given})


def test_a_file_that_is_no_text_is_named(tmp_path):
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja cannot be read as text in UTF-8"):
        templates_from_directory(tmp_path, {})


def test_there_and_back_through_the_metadata_of_a_gguf():
    named = {"tool_use": "t", "rag": "r"}
    keys = templates_to_gguf("d", named)
    assert json.dumps(keys, sort_keys=True) == json.dumps(
        {KEY: "d", f"{KEY}.rag": "r", f"{KEY}.tool_use": "t", "tokenizer.chat_templates": ["tool_use", "rag"]},
        sort_keys=True,
    )
    assert templates_from_gguf({"general.name": "x", **keys}) == {"default": "d", **named}
    assert templates_to_gguf(None, {}) == {} and templates_from_gguf({"general.name": "x"}) == {}
    assert templates_to_gguf("d", {}) == {KEY: "d"} and templates_from_gguf({KEY: None}) == {}
    with pytest.raises(CheckpointError, match=r"tokenizer\.chat_template"):
        templates_from_gguf({KEY: 5})


def test_templates_that_the_gguf_package_writes_are_read(tmp_path):
    """As llama.cpp's converter writes those of a model with several; it takes letters and digits of a name alone."""
    writer = gguf.GGUFWriter(None, "llama")
    writer.add_chat_template([{"name": name, "template": name[0]} for name in ("rag", "default", "tool-use")])
    writer.write_header_to_file(tmp_path / "x.gguf")
    writer.write_kv_data_to_file()
    writer.close()
    metadata = read_header(tmp_path / "x.gguf").metadata
    assert sorted(metadata["tokenizer.chat_templates"]) == ["rag", "tool_use"]
    assert templates_from_gguf(metadata) == {"default": "d", "rag": "r", "tool_use": "t"}
