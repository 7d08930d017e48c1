"""Tiny models for the command line, and a way to run it."""

import io
import sys

import pytest

from tests.tiny_models import save
from tests.word_model import save_word_model
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
    return str(save_word_model(tmp_path_factory.mktemp("models"), TEMPLATE))


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
