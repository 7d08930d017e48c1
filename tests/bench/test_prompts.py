"""The prompts that peers get: no part of the text twice."""

import pytest

from tokenmill.bench.peers import contest as module
from tokenmill.bench.peers.contest import Prompts, documentation
from tokenmill.errors import ConfigError


class Text:
    """A checkpoint whose tokenizer has a token for each letter; without one, of a model that has none."""

    def __init__(self, has_tokenizer=True):
        self.has_tokenizer = has_tokenizer

    def tokenizer(self):
        return self if self.has_tokenizer else None

    def encode(self, text, add_special_tokens):
        assert not add_special_tokens
        return [ord(letter) for letter in text]


def test_pieces_follow_each_other(monkeypatch):
    monkeypatch.setattr(module, "documentation", lambda: "abcdefghij")
    prompts = Prompts(Text(), 200, 10)
    taken = [prompts.take(2, 2), prompts.take(3, 1), prompts.take(3, 1)]
    assert ["".join(map(chr, one)) for batch in taken for one in batch] == ["ab", "cd", "efg", "hij"]
    with pytest.raises(ConfigError) as refused:
        Prompts(Text(), 200, 11)
    assert str(refused.value) == (
        "--prompt = 'too many tokens' is not allowed: less: 11 tokens for every batch and round, and the text that is "
        "used has 10; or less of --batch, --rounds"
    )


def test_a_model_without_a_tokenizer_gets_random_ids_that_are_always_the_same():
    ids = Prompts(Text(False), 7, 500).take(500, 1)[0]
    assert set(ids) == set(range(7)) and ids == Prompts(Text(False), 7, 500).take(500, 1)[0]


def test_each_paragraph_is_there_once(monkeypatch):
    topics = {"b": "two  words\n\nlast", "a": "first\n\ntwo words\n\nFirst"}
    monkeypatch.setattr(module, "topics", topics)
    assert documentation() == "first\n\ntwo  words\n\nFirst\n\nlast"
