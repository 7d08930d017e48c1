"""Tiny models for the command line, and a way to run it."""

import io
import sys

import pytest

from tests import disk_of_models
from tests.tiny_models import save
from tests.word_model import save_word_model

TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}{% if add_generation_prompt %}w9{% endif %}"
)


@pytest.fixture(scope="module")
def wordless(llama):
    """A tiny model without a tokenizer."""
    return str(llama)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny model whose token i is the word "wi"."""
    return str(save_word_model(tmp_path_factory.mktemp("models"), TEMPLATE))


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """The tiny models that tests/disk_of_models.py copies to many places."""
    folder = tmp_path_factory.mktemp("sources")
    return disk_of_models.sources(folder, save("llama", folder))


@pytest.fixture
def refused(tm):
    """Runs one command line that the user has to put right; what is said on stderr, the last line of it the error."""

    def run(*arguments):
        code, out, err = tm(*arguments)
        assert (code, out) == (2, "") and "Traceback" not in err
        assert err.splitlines()[-1].startswith("error: ")
        return err

    return run


@pytest.fixture
def piped(monkeypatch):
    """Gives stdin some bytes, as a pipe does."""
    return lambda data: monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
