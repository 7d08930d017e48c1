"""Tiny models for the command line, and a way to run it."""

import io
import json
import sys

import pytest
import tokenizers

from tests.tiny_models import VOCABULARY, save
from tokenmill.cli.main import main

TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}{% if add_generation_prompt %}w9{% endif %}"
)


@pytest.fixture(scope="module")
def wordless(tmp_path_factory):
    """A tiny model without a tokenizer."""
    return str(save("llama", tmp_path_factory.mktemp("models")))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny model whose token i is the word "wi"."""
    path = save("llama", tmp_path_factory.mktemp("models"))
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    words.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return str(path)


@pytest.fixture
def tm(capsys):
    """Runs one command line; gives exit code, stdout and stderr."""

    def run(*arguments):
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def piped(monkeypatch):
    """Gives stdin some bytes, as a pipe does."""
    return lambda data: monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
