"""`tokenmill chat`: turns on one session, and the commands that change it."""

import io

import pytest

from tokenmill.cli import chat
from tokenmill.cli.conversation import Conversation
from tokenmill.cli.main import main
from tokenmill.config import SamplingParams
from tokenmill.engine.build import load
from tokenmill.errors import ConfigError, RequestError, SnapshotError

pytestmark = pytest.mark.model
PARAMS = SamplingParams(max_new_tokens=6)


@pytest.fixture(scope="module")
def engine():
    return load("smollm2-135m", max_length=256, block_size=16, max_sequences=2, threads=1)


@pytest.fixture
def talk(engine):
    conversation = Conversation(engine, PARAMS, "Answer briefly.")
    yield conversation
    conversation.session.close()


def asked(talk, text):
    talk.ask(text)
    return "".join(talk.answer())


def test_turns_are_those_of_fresh_runs_and_only_what_is_new_is_computed(engine, talk):
    for text in ("Hello, I am Anna.", "What is my name?", "Thank you."):
        answer = asked(talk, text)
        prompt = engine.chat_prompt(talk.messages[:-1])
        assert engine.generate(prompt, max_new_tokens=6).text == answer
    assert talk.messages[-1] == {"role": "assistant", "content": answer}
    assert int(talk.figures.split()[4]) > 40  # known from the turns before
    assert "of 256 tokens used" in talk.figures


def test_undo_retry_fork_and_back(talk):
    first = asked(talk, "Hello!")
    before = list(talk.messages)
    talk.do("/fork")
    asked(talk, "Tell me a joke.")
    assert talk.do("/back") == f"back at {len(before)} messages"
    assert talk.messages == before
    assert "temperature 0" in talk.do("/retry")
    assert talk.pending
    assert "".join(talk.answer()) == first
    assert talk.do("/undo") == "forgot: Hello!"
    assert talk.messages == before[:1]
    assert talk.do("/undo") == "there is nothing to undo"
    assert talk.do("/retry") == "there is nothing to ask again"
    assert talk.do("/back") == "there is no /fork to go back to"


def test_saved_and_opened(engine, talk, tmp_path):
    asked(talk, "Hello!")
    talk.do(f"/save {tmp_path}/x.kv")
    wanted = asked(talk, "And now?")
    other = Conversation(engine, PARAMS)
    assert other.do(f"/open {tmp_path}/x.kv").startswith("3 messages")
    assert asked(other, "And now?") == wanted
    plain = engine.session("Just text")
    plain.save(tmp_path / "y.kv")
    with pytest.raises(RequestError, match="holds no conversation"):
        other.do(f"/open {tmp_path}/y.kv")
    with pytest.raises(SnapshotError, match="does not exist"):
        other.do(f"/open {tmp_path}/z.kv")
    assert asked(other, "Thanks.")


def test_settings(talk):
    assert talk.do("/set temperature 0.5") == "temperature 0.5"
    assert "temperature 0.5" in talk.do("/stats")
    assert talk.do("/system Be rude.") == "a new conversation"
    assert talk.messages == [{"role": "system", "content": "Be rude."}]
    assert "/fork" in talk.do("/help")
    for line, message in (
        ("/nope", "one of /save"),
        ("/set x 1", "one of "),
        ("/set top_p 7", "top_p"),
        ("/save", "file"),
    ):
        with pytest.raises(ConfigError, match=message):
            talk.do(line)


def test_lines_from_a_pipe(monkeypatch, capsys):
    monkeypatch.setattr(chat.sys, "stdin", io.StringIO("Hello!\n\n/nope\n/stats\n/undo\nHello!\n"))
    assert main(["chat", "-n", "5", "--max-length", "128"]) == 0
    out, err = capsys.readouterr()
    answers = out.splitlines()
    assert answers[0] == answers[1] != ""
    assert "error: command = '/nope' is not allowed" in err
    assert "3 messages" in err or "2 messages" in err
    assert err.count("first token") == 2
