"""A tiny model that speaks in words, and two replicas of it in this process."""

import pytest

from tests.scale.fakes import FakeFleet
from tests.word_model import save_chat_model


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory):
    return save_chat_model(tmp_path_factory.mktemp("chat"))


@pytest.fixture(scope="module")
def fleet(chat_model):
    made = FakeFleet(chat_model, 2)
    yield made
    made.close()
