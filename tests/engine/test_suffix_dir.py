"""Texts that are kept in a directory to draft from: after a restart, of sessions, of no tenant."""

import pytest

from tests.tiny_models import prompt
from tokenmill import SamplingParams, load
from tokenmill.errors import ConfigError

PROMPT = prompt(9, seed=4)
SETTINGS = {"max_new_tokens": 40, "ignore_eos": True}


@pytest.fixture
def engine(llama, tmp_path):
    """Makes engines that share a directory, one after the other."""

    def make(**settings):
        settings = {"dtype": "float32", "speculate": "suffix", "suffix_dir": str(tmp_path / "texts"), **settings}
        return load(llama, **settings)

    return make


def drafted(engine, start=PROMPT):
    """How many drafts of the same text are accepted, and the text."""
    done = engine.generate(start, **SETTINGS)
    return engine.core.speculation.stats.num_accepted, done.tokens


def test_a_text_that_was_said_before_is_drafted_after_a_restart(engine):
    with engine() as first:
        before, text = drafted(first)
    with engine() as second:
        after, again = drafted(second)
    assert again == text
    assert after >= 30 > before


def test_within_one_process_too(engine):
    with engine() as one:
        before, text = drafted(one)
        assert drafted(one) == (pytest.approx(before + 35, abs=6), text)


def test_an_answer_that_was_broken_off_is_not_kept(engine):
    with engine() as one:
        stream = one.stream(PROMPT, **SETTINGS)
        next(stream)
        stream.close()
        assert not one.core.speculation.proposer._num_stored


def test_texts_of_a_tenant_are_neither_kept_nor_compared(engine):
    with engine() as one:
        before, text = drafted(one)
        request = one.core.request(PROMPT, SamplingParams(**SETTINGS), salt=b"tenant")
        assert one.core.finish([request])[0].tokens == text
        assert one.core.speculation.stats.num_accepted <= 2 * before
        assert len(one.core.speculation.proposer._num_stored) <= 1


def test_what_a_session_says_is_kept_once(engine):
    with engine() as one:
        store, added = one.core.speculation.proposer._store, []
        store.add = added.append
        session = one.session(PROMPT)
        said = [session.generate(max_new_tokens=30, ignore_eos=True).tokens for _ in range(3)]
    assert [tuple(tokens[-30:]) for tokens in added] == said
    assert max(map(len, added)) <= 30 + 64


def test_another_directory_that_cannot_be_used_is_refused(engine, tmp_path):
    (tmp_path / "texts").write_text("important")
    with pytest.raises(ConfigError, match=r"suffix_dir = .* a directory, which may be new"):
        engine()
    assert (tmp_path / "texts").read_text() == "important"


def test_only_with_a_proposer_that_reads_it(llama, tmp_path):
    with pytest.raises(ConfigError, match="none, because speculate is 'off'"):
        load(llama, speculate="off", suffix_dir=str(tmp_path))


def test_a_folder_that_cannot_be_written_costs_a_warning(engine, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(28, "No space left on device")

    one = engine()
    _, text = drafted(one)
    monkeypatch.setattr("tokenmill.speculate.suffix_store.write_segment", refuse)
    with pytest.warns(UserWarning, match="no more texts are kept in .*: No space left on device"):
        one.close()
    other = engine()
    assert other.generate(PROMPT, **SETTINGS).tokens == text
    with pytest.warns(UserWarning, match="no more texts are kept"):
        other.close()
