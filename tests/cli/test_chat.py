"""`tokenmill chat` as it is typed on a terminal, or piped."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.cli.terminal import PROMPT, Terminal
from tests.tiny_encoders import save_encoder
from tests.word_model import save_chat_model
from tokenmill.cli import prompt_progress
from tokenmill.cli.chat.conversation import LEAVE, Conversation
from tokenmill.cli.chat.typed import Typed, read_typed


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_chat_model(tmp_path_factory.mktemp("models"))


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("TOKENMILL_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


# Waits for ever after the third piece of the first answer, and says that it does.
PAUSED = """
import contextlib, sys, time
from tokenmill.engine.session import Session
stream, paused = Session.stream, []
def pausing(self, *arguments, **settings):
    with contextlib.closing(stream(self, *arguments, **settings)) as pieces:
        for number, piece in enumerate(pieces):
            yield piece
            if number == 2 and not paused:
                paused.append(True)
                print("PAUSED", file=sys.stderr, flush=True)
                while True:  # short sleeps: a signal just before an endless one would not wake it
                    time.sleep(0.01)
Session.stream = pausing
"""


def test_what_the_files_recommend_holds_unless_an_option_says_otherwise(tm, piped, model, tmp_path):
    copy = shutil.copytree(model, tmp_path / "copy")
    found = {"do_sample": True, "temperature": 0.7, "top_k": 5}
    (copy / "generation_config.json").write_text(json.dumps(found))
    said = "Sampling: temperature 0.7, top_k 5 (generation_config.json). --no-generation-config is greedy.\n"
    typed = ["chat", copy, "-n", 2, "--seed", 3]
    texts = {}
    for options in [(), ("--temperature", 0), ("--no-generation-config",)]:
        piped(b"w1 w2\n")
        code, texts[options], err = tm(*typed, *options)
        assert code == 0
        assert (said in err) == (options != ("--no-generation-config",))
    piped(b"w1 w2\n")
    asked = tm("chat", model, "-n", 2, "--seed", 3, "--temperature", 0.7, "--top-k", 5)
    assert texts[()] == asked[1]
    assert "recommend" not in asked[2]
    piped(b"w1 w2\n")
    assert texts["--no-generation-config",] == tm("chat", model, "-n", 2)[1]


def test_a_conversation_on_a_terminal(model, data):
    with Terminal("chat", model, "-n", "4") as terminal:
        greeting = terminal.type("w1 w2")
        assert model in greeting and "/help" in greeting and "/bye" in greeting
        answer = terminal.type("/stats")
        assert answer.count("stopped at -n 4; /continue goes on") == 1
        assert "2 messages" in terminal.type("/foo")
        assert "unknown command /foo (did you mean /fork?); there are /retry, " in terminal.type("/help")
        assert "/compact" in terminal.type("/usr/bin w3")
        assert "4 messages" not in terminal.type("/stats")  # it was a message: it has an answer now
        assert "4 messages" in terminal.type("exit")
        terminal.type("n", prompt="leave\\? .*: $")
        terminal.type("quit")
        terminal.type("y", prompt="leave\\? .*: $")
        assert terminal.end()[1] == 0
    assert "w1 w2" in (data / "chat_history").read_text()


@pytest.mark.slow
def test_commands_after_ctrl_c_do_not_answer_and_continue_does(model, piped, tmp_path):
    whole = piped("w1 w2\n", "-n", 30, "-q")[1].split()
    with Terminal("chat", model, "-n", "12", "--plain", prepare=PAUSED) as terminal:
        terminal.type("w1 w2")
        part = terminal.wait("PAUSED").split("\n")[1].removesuffix("PAUSED").split()
        assert part == whole[: len(part)] != []
        terminal.interrupt()
        shown = terminal.type("/stats")
        assert "stopped by Ctrl-C: /continue goes on" in shown
        for command in (
            "/help",
            f"/save {tmp_path}/x.kv",
            "/fork",
            "/set seed 3",
            "/back",
            "/undo",
            f"/open {tmp_path}/x.kv",
        ):
            assert "first token" not in terminal.type(command)
        assert "2 messages" in terminal.wait(PROMPT)
        shown = terminal.type("/continue")
        assert "first token" not in shown and "stopped by Ctrl-C" in shown
        assert terminal.type("/bye").split("\n")[1].split() == whole[len(part) : len(part) + 12]
    code, out, err = piped("/stats\n/continue\n/continue\n", "-n", 5, "--open", tmp_path / "x.kv")
    assert code == 0 and "stopped by Ctrl-C" in err.split("messages")[1]
    assert out.split() == whole[len(part) : len(part) + 10]


@pytest.mark.slow
def test_several_lines(model):
    """Pasted, continued by a backslash, or between three quotes: one message."""
    with Terminal("chat", model, "-n", "2") as terminal:
        terminal.wait(PROMPT)
        terminal.send("\x1b[200~w1 w2\nw3 w4\n\x1b[201~\r")
        assert len(terminal.type("/stats").split("first token")) == 2
        assert "2 messages" in terminal.type("w1\\")
        terminal.type("w2", prompt=r"\n\.\.\. $")
        terminal.type('"""w5')
        terminal.type("/undo", prompt=r"\n\.\.\. $")
        terminal.type('w6"""', prompt=r"\n\.\.\. $")
        terminal.type("/stats")
        assert "6 messages" in terminal.type("/undo")
        assert 'forgot: "w5 /undo w6"' in terminal.type("/undo")
        assert 'forgot: "w1 w2"' in terminal.type("/undo")
        assert 'forgot: "w1 w2 w3 w4"' in terminal.type("/bye")


@pytest.mark.slow
def test_a_block_is_one_message_where_answers_go_to_a_file(model, tmp_path):
    log = tmp_path / "log"
    redirect = f"import os; os.dup2(os.open({str(log)!r}, os.O_WRONLY | os.O_CREAT), 1)"
    with Terminal("chat", model, "-n", "2", prepare=redirect) as terminal:
        terminal.wait(PROMPT)
        terminal.send("\x1b[200~w1 w2\nw3 w4\n\x1b[201~\r")
        assert len(terminal.type("/undo").split("first token")) == 2
        assert 'forgot: "w1 w2 w3 w4"' in terminal.type("/bye")
        terminal.end()
    assert log.read_text().count("\n") == 1 and ">" not in log.read_text()


@pytest.mark.slow
def test_a_history_that_cannot_be_kept_costs_a_remark(model, tmp_path):
    (tmp_path / "file").write_text("")
    with Terminal("chat", model, "-n", "2", env={"TOKENMILL_DATA": str(tmp_path / "file" / "data")}) as terminal:
        terminal.type("w1")
        assert "first token" in terminal.type("/bye")
        shown, code = terminal.end()
    assert code == 0 and "Traceback" not in shown
    assert shown.count("TOKENMILL_DATA") == 1


@pytest.mark.slow
def test_the_history_follows_xdg_data_home_and_ctrl_c_at_the_prompt_says_how_to_leave(model, tmp_path):
    places = {"TOKENMILL_DATA": "", "XDG_DATA_HOME": str(tmp_path), "TOKENMILL_CACHE": str(tmp_path)}
    with Terminal("chat", model, env=places) as terminal:
        terminal.wait(PROMPT)
        terminal.send("w1 w2")
        terminal.wait("w1 w2")  # echoed, so the line is being read
        terminal.interrupt()
        assert "/bye or Ctrl-D leaves" in terminal.type("/stats")
        assert "0 messages" in terminal.wait(PROMPT)
        terminal.send("\x04")
        assert terminal.end()[1] == 0
    assert "/stats" in (tmp_path / "tokenmill" / "chat_history").read_text()


# ---- piped


@pytest.fixture
def piped(piped, tm, model):
    """Runs chat on what is piped; gives exit code, stdout and stderr."""

    def run(text, *arguments):
        piped(text if isinstance(text, bytes) else text.encode())
        return tm("chat", model, *arguments)

    return run


def test_what_fails_in_a_pipe_is_an_exit_code(piped):
    code, out, err = piped("w1\n\nw2\n", "-n", 3)
    assert code == 0 and len(out.splitlines()) == 2
    for line in ("/nope", "w1 " * 200, "/set temperature x", "/open /no/such/file"):
        code, out, err = piped(f"{line}\nw1\n", "-n", 3)
        assert code == 2 and len(out.splitlines()) == 1
        assert err.count("error: ") == 1
    code, out, err = piped(b"w1\n\xff\nw2\n", "-n", 3)
    assert code == 2 and len(out.splitlines()) == 2
    assert "error: line 2 of the input is not valid UTF-8" in err
    assert "0 messages" in piped(b"\xef\xbb\xbf/stats\n")[2], "a byte order mark is no message"
    for word in LEAVE:
        assert piped(f"w1\n/{word}\n/nope\n", "-n", 3)[0] == 0


def test_an_option_that_a_conversation_cannot_take_is_none(piped):
    for option in ("--n", "--logprobs", "--max-sequences", "--max-waiting"):
        code, out, err = piped("w1\n", option, "2")
        assert (code, out) == (2, "") and option in err


def test_ctrl_c_ends_what_is_piped(piped, monkeypatch):
    def answer(_):
        yield "w1"
        raise KeyboardInterrupt

    monkeypatch.setattr(Conversation, "answer", answer)
    assert piped("w1\nw2\n", "-q") == (130, "w1\n", "")


def test_quiet_is_quiet(piped):
    assert piped("w1\n", "-n", 3, "-q")[::2] == (0, "")


def test_a_long_question_shows_how_far_it_is_on_a_terminal_only(piped, monkeypatch):
    monkeypatch.setattr(prompt_progress, "AFTER_S", 0.0)
    arguments = ("w1 " * 20 + "\n", "-n", 2, "--max-step-tokens", 4, "--plain")
    plain = piped(*arguments)
    assert "computing the prompt" not in plain[2]
    monkeypatch.setattr(sys.stderr.__class__, "isatty", lambda _: True)
    code, out, err = piped(*arguments)
    assert (code, out) == plain[:2] and "computing the prompt" in err
    assert "computing the prompt" not in piped(*arguments, "-q")[2]


def test_an_opened_conversation_has_its_own_system_message(piped):
    code, _, err = piped("w1\n", "--system", "w2", "--open", "/no/such/file")
    assert code == 2 and "--system and --open" in err


def test_a_model_without_a_template_is_refused(tm, wordless):
    code, _, err = tm("chat", wordless)
    assert code == 2 and "is a base model" in err and "loading" not in err


def test_a_model_that_gives_vectors_is_none_to_talk_with(tm, tmp_path):
    encoder = save_encoder("bert", tmp_path)
    code, _, err = tm("chat", encoder)
    assert code == 2 and "gives vectors of texts" in err and "tokenmill embed" in err and "loading" not in err
    assert json.loads(tm("info", encoder, "--json")[1])["writes_text"] is False
    assert "no: it gives vectors of texts" in tm("info", encoder)[1]
    decoder = Path(
        save_chat_model(tmp_path / "decoder")
    )  # as Qwen3-Embedding-8B is saved: with a template, without a head
    tensors = load_file(decoder / "model.safetensors")
    save_file({name: each for name, each in tensors.items() if "lm_head" not in name}, decoder / "model.safetensors")
    (decoder / "modules.json").write_text("[]")
    code, _, err = tm("chat", decoder)
    assert code == 2 and "gives vectors of texts" in err


@pytest.mark.parametrize(
    "lines, wanted",
    [
        (["hello"], Typed("hello")),
        (["/save a b"], Typed("/save a b", "save", "a b")),
        (["/SAVE  a"], Typed("/SAVE  a", "save", "a")),
        (["/"], Typed("/", "")),
        (["/?"], Typed("/?", "?")),
        (["/usr/bin is"], Typed("/usr/bin is")),
        ([" /save"], Typed(" /save")),
        (["/undo\nthis"], Typed("/undo\nthis")),
        (["/system a\\", "b"], Typed("/system a\nb", "system", "a\nb")),
        (["a\\", "b\\", "c"], Typed("a\nb\nc")),
        (["a\\"], Typed("a")),
        (['"""', "a", "", "b", '"""'], Typed("a\n\nb")),
        (['"""a"""'], Typed("a")),
        (['"""a', "/undo"], Typed("a\n/undo")),
        (['"""\na\nb"""'], Typed("a\nb")),
    ],
)
def test_what_is_read(lines, wanted):
    left = iter(lines)

    def read(_):
        for line in left:
            return line
        raise EOFError

    assert read_typed(read) == wanted
    with pytest.raises(EOFError):
        read_typed(read)
