"""A conversation: turns on one session, the commands that change it, and the end of its room."""

import json
from dataclasses import asdict, replace

import pytest

from tests.word_model import save_chat_model
from tokenmill.cli.chat.conversation import Conversation
from tokenmill.cli.chat.verb import with_room_for_forks
from tokenmill.cli.report import cut_by, summary
from tokenmill.engine.load import load
from tokenmill.engine.loop import Observer
from tokenmill.errors import ConfigError, RequestError, SnapshotError, TokenmillError
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.settings.sampling_params import SamplingParams

PARAMS = SamplingParams(max_new_tokens=6)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_chat_model(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def engine(model):
    settings = asdict(with_room_for_forks(EngineConfig(model=model, threads=1, speculate="off")))
    return load(**settings)


@pytest.fixture(scope="module")
def real():
    return load("smollm2-135m", max_length=256, block_size=16, max_sequences=2, threads=1)


def talking(engine, params=PARAMS, system="w4"):
    return Conversation(engine, params, system)


@pytest.fixture
def talk(engine):
    conversation = talking(engine)
    yield conversation
    conversation.session.close()


def asked(talk, text):
    talk.ask(text)
    return "".join(talk.answer())


def stopped(talk, text, num_pieces=2):
    """Ask, and close the answer after some pieces, as Ctrl-C does."""
    talk.ask(text)
    answer = talk.answer()
    shown = "".join(next(answer) for _ in range(num_pieces))
    answer.close()
    return shown


def computed(talk):
    """Tokens of the last prompt that were computed, and those that were known."""
    new, _, _, _, known, *_ = talk.figures.split()
    return int(new), int(known)


# ---- turns


@pytest.mark.slow
@pytest.mark.model
def test_turns_are_those_of_fresh_runs_and_only_what_is_new_is_computed(real):
    talk = talking(real, system="Answer briefly.")
    for text in ("Hello, I am Anna.", "What is my name?", "Thank you."):
        answer = asked(talk, text)
        prompt = real.chat_prompt([{key: m[key] for key in ("role", "content")} for m in talk.messages[:-1]])
        assert real.generate(prompt, max_new_tokens=6).text == answer
    assert talk.messages[-1]["content"] == answer
    assert computed(talk)[1] > 40  # known from the turns before
    assert "of 256 tokens used" in talk.figures


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_stopped_answer_goes_on_as_if_it_had_not_been(real, temperature, tmp_path):
    """The answer may come from a file, or be cut inside a character."""
    whole = talking(real, SamplingParams(max_new_tokens=40, temperature=temperature, seed=11), None)
    wanted = asked(whole, "Write five emojis: 😀")
    talk = talking(real, SamplingParams(max_new_tokens=6, temperature=temperature, seed=11), None)
    asked(talk, "Write five emojis: 😀")
    for _ in range(3):
        assert talk.do("continue") == ""
        list(talk.answer())
        assert talk.figures.endswith("stopped at -n 6; /continue goes on")
    talk.do("save", f"{tmp_path}/x.kv")
    other = talking(real, SamplingParams(max_new_tokens=60, temperature=temperature), None)
    assert "stopped at -n 6" in other.do("open", f"{tmp_path}/x.kv")
    assert not other.pending
    other.do("continue")
    list(other.answer())
    assert other.messages[-1]["content"].startswith(wanted.rstrip("\ufffd"))


def test_undo_retry_fork_and_back(talk):
    first = asked(talk, "w1 w2")
    before = list(talk.messages)
    talk.do("fork")
    asked(talk, "w3")
    assert talk.do("back") == f"back at {len(before)} messages"
    assert talk.messages == before
    assert "temperature 0" in talk.do("retry")
    assert talk.pending
    assert "".join(talk.answer()) == first
    assert talk.do("undo") == 'forgot: "w1 w2"'
    assert talk.messages == before[:1]
    assert talk.do("undo") == "there is nothing to undo"
    assert talk.do("retry") == "there is nothing to ask again"
    assert talk.do("continue") == "there is no answer to go on with"
    assert talk.do("back") == "there is no /fork to go back to"


def test_what_is_forgotten_is_not_in_the_session_either(engine, talk):
    asked(talk, "w1 w2")
    length = len(talk.session)
    asked(talk, "w77")
    talk.do("undo")
    assert len(talk.session) == length and "w77" not in talk.session.text.split()
    talk.do("undo")
    assert len(talk.session) == 0
    part = stopped(talk, "w1 w2")
    with pytest.raises(RequestError):
        asked(talk, "w1 " * 200)
    talk.do("undo")
    assert talk.messages[-1]["content"] == part
    talk.do("continue")
    list(talk.answer())
    assert computed(talk)[0] == 1


class Broken(Observer):
    """Breaks off the third step."""

    num_steps = 0

    def phase(self, name, plan):
        self.num_steps += name == "run"
        if name == "run" and self.num_steps == 3:
            raise MemoryError


def test_after_a_step_that_failed_the_figures_are_those_of_the_next_one(engine, talk):
    """The session has no rows then, and none are found."""
    asked(talk, "w1 w2 w3 w4 w5 w6 w7 w8 w9 w10 " * 3)
    fed = []
    with pytest.raises(MemoryError), engine.core.observed_by(Broken()):
        asked(talk, "w3")
    assert talk.session.num_cached == 0 and "computed" not in talk.do("stats")

    class Fed(Observer):
        def phase(self, name, plan):
            if name == "plan":
                fed.append(plan.work[0].count)

    talk.do("retry")
    with engine.core.observed_by(Fed()):
        list(talk.answer())
    new, known = computed(talk)
    assert (new, known) == (fed[0], 0)
    assert f"{talk.session.num_cached} computed" in talk.do("stats")


def test_a_fork_computes_only_what_is_new(talk):
    asked(talk, "w1 w2 w3 w4 w5 w6 w7 w8 w9 w10")
    length = len(talk.session)
    talk.do("fork")
    asked(talk, "w3")
    assert computed(talk)[1] >= length - 1 and computed(talk)[0] < 8
    talk.do("back")
    assert talk.session.num_cached >= length - 1  # nobody took its rows meanwhile
    asked(talk, "w5")
    assert computed(talk)[1] >= length - 1 and computed(talk)[0] < 8


def test_the_settings_of_chat_leave_room_for_forks():
    plain = EngineConfig()
    assert with_room_for_forks(plain).cache_tokens == 2 * 2048
    assert with_room_for_forks(EngineConfig(max_length=100_000)).cache_tokens == 108_192
    assert with_room_for_forks(EngineConfig(max_length=16)).block_size == 16
    given = EngineConfig(block_size=8, cache_tokens=64)
    assert with_room_for_forks(given) == given
    assert with_room_for_forks(EngineConfig(kernel="rows")).block_size is None  # it needs one block per sequence


def test_clear_and_system(talk):
    asked(talk, "w1")
    back = "; /undo returns to the old one"
    assert talk.do("clear") == "a new conversation, with the system message" + back
    assert talk.messages == [{"role": "system", "content": "w4"}]
    assert len(talk.session) == 0
    asked(talk, "w1")
    assert talk.do("system", "w5") == "a new conversation" + back
    assert talk.messages == [{"role": "system", "content": "w5"}]
    talk.do("system")
    assert talk.do("clear") == "a new conversation" and talk.messages == []


def test_undo_takes_back_clear_system_compact_and_edit_one_after_the_other(talk):
    first = asked(talk, "w1")
    begun = list(talk.messages)
    asked(talk, "w2")
    both = list(talk.messages)
    talk.do("compact")
    assert talk.messages == [begun[0], *both[3:]]
    talk.do("clear")
    talk.do("system", "w5")
    asked(talk, "w6")
    assert talk.do("undo") == 'forgot: "w6"'
    assert talk.do("undo") == "the conversation is back: 1 message" and talk.messages == begun[:1]
    talk.do("undo")
    assert talk.do("undo") == "the conversation is back: 5 messages" and talk.messages == both
    talk.do("undo")
    assert talk.messages == begun
    talk.do("edit", "w7")
    assert talk.pending
    answer = "".join(talk.answer())
    assert [message["content"] for message in talk.messages] == ["w4", "w7", answer]
    assert talk.do("undo") == "the conversation is back: 3 messages" and talk.messages == begun
    talk.do("retry")
    assert "".join(talk.answer()) == first


def test_a_question_is_edited_in_the_editor_of_the_user(engine, monkeypatch, tmp_path):
    talk = talking(engine)
    assert talk.do("edit") == "there is no question to edit"
    asked(talk, "w1 w2")
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.delenv("EDITOR", raising=False)
    with pytest.raises(TokenmillError, match="/edit TEXT, or an editor: set EDITOR"):
        talk.do("edit")
    monkeypatch.setenv("EDITOR", "false")
    with pytest.raises(TokenmillError, match="the editor 'false' failed"):
        talk.do("edit")
    monkeypatch.setenv("EDITOR", "true")
    assert talk.do("edit") == "the question is left as it was; /retry asks it again" and not talk.pending
    monkeypatch.setenv("EDITOR", "sed -i s/w1/w9/")
    assert talk.do("edit") == "" and talk.pending
    assert talk.messages[-1] == {"role": "user", "content": "w9 w2"}


def test_another_model_goes_on_with_the_conversation(engine, model, tmp_path):
    opened = []

    def open_model(name):
        settings = asdict(with_room_for_forks(EngineConfig(model=name, threads=1, speculate="off", max_length=128)))
        opened.append(load(**settings))
        return opened[-1], replace(PARAMS, temperature=0.5)

    other = save_chat_model(tmp_path / "other", tiny="qwen3")
    first = load(**asdict(with_room_for_forks(EngineConfig(model=model, threads=1, speculate="off"))))
    talk = Conversation(first, PARAMS, "w4", open_model)
    assert talk.do("model").startswith(str(model))
    with pytest.raises(TokenmillError):
        talk.do("model", str(tmp_path / "missing"))
    talk.do("set", "top_k 3")
    asked(talk, "w1")
    talk.do("fork")
    part = stopped(talk, "w2")
    said = talk.do("model", str(other))
    assert said == f"{other} goes on, 128 tokens of context; max_new_tokens 6, temperature 0.5, top_k 3"
    assert talk.messages[-1] == {"role": "assistant", "content": part}, "ids of the first model mean nothing to it"
    with pytest.raises(RequestError):
        first.generate([1], max_new_tokens=1)  # its memory is given back
    talk.do("set", "temperature 0")
    prompt = opened[0].chat_prompt([*talk.messages, {"role": "user", "content": "w3"}])
    assert asked(talk, "w3") == opened[0].generate(prompt, max_new_tokens=6).text
    talk.do("back")
    assert len(talk.messages) == 3 and asked(talk, "w5")
    opened[0].close()


def test_show_and_history(talk):
    asked(talk, "w1")
    answer = talk.messages[-1]["content"]
    assert talk.do("history") == f"system: w4\nuser: w1\nassistant: {answer}"
    lines = talk.do("show").splitlines()
    assert lines[0].startswith(f"model: {talk.engine.config.model}, llama, ") and "tokens of context" in lines[0]
    assert lines[1:] == ["settings: max_new_tokens 6", "system: w4"]
    assert talk.do("show", "parameters") == talk.do("show", "settings") == "max_new_tokens 6"
    assert talk.do("show", "template") == talk.engine.tokenizer.chat_template
    with pytest.raises(TokenmillError, match="/show license is not known: /show, or one of model, settings"):
        talk.do("show", "license")


# ---- what makes the model answer


def test_only_a_question_retry_and_continue_make_the_model_answer(talk, tmp_path):
    shown = stopped(talk, "w1 w2")
    assert talk.messages[-1]["content"] == shown != ""
    for name, argument in (
        ("stats", ""), ("help", ""), ("save", f"{tmp_path}/x.kv"), ("fork", ""), ("set", "seed 1"), ("back", ""),
        ("open", f"{tmp_path}/x.kv"), ("compact", ""),
    ):  # fmt: skip
        talk.do(name, argument)
        assert not talk.pending, name
    talk.do("continue")
    assert talk.pending
    list(talk.answer())
    assert not talk.pending
    assert talk.messages[-1]["content"].startswith(shown)
    talk.do("retry")
    assert talk.pending


def test_a_refused_question_waits_for_retry_alone(talk):
    with pytest.raises(RequestError, match="no room for an answer"):
        asked(talk, "w1 " * 200)
    for name in ("stats", "help", "fork", "back"):
        talk.do(name)
        assert not talk.pending
    assert "no answer yet" in talk.do("continue")
    assert talk.do("retry") == "" and talk.pending
    assert asked(talk, "w1")  # takes its place
    assert len(talk.messages) == 3


def test_a_part_belongs_to_the_conversation(engine, talk):
    part = stopped(talk, "w1 w2")
    asked(talk, "w3")
    messages = [("system", "w4"), ("user", "w1 w2"), ("assistant", part), ("user", "w3")]
    prompt = engine.chat_prompt([{"role": role, "content": content} for role, content in messages])
    assert talk.messages[-1]["content"] == engine.generate(prompt, max_new_tokens=6).text


def test_a_part_is_continued_after_a_detour(engine, talk):
    wanted = engine.generate(engine.chat_prompt([{"role": "user", "content": "w1 w2"}]), max_new_tokens=20).tokens
    talk = talking(engine, system=None)
    stopped(talk, "w1 w2")
    asked(talk, "w3")
    talk.do("undo")
    talk.do("continue")
    list(talk.answer())
    tokens = tuple(talk.messages[-1]["tokens"])
    assert len(tokens) > 6 and tokens == wanted[: len(tokens)]


def test_a_complete_answer_is_not_continued(engine, talk):
    whole = asked(talk, "w1 w2").split()
    ended = talking(engine, SamplingParams(stop=(whole[-1],)))
    asked(ended, "w1 w2")
    assert ended.do("continue").startswith("the answer is complete") and not ended.pending
    assert "stopped" not in ended.figures


def test_an_answer_that_begins_with_nothing_leaves_the_question(talk):
    talk.ask("w1")
    answer = talk.answer()
    answer.close()
    assert [message["role"] for message in talk.messages] == ["system", "user"]
    assert talk.state.startswith("there is no answer: /retry")


# ---- limits


def test_an_answer_runs_to_the_end_of_the_context_and_says_so(engine):
    talk = talking(engine, SamplingParams())
    asked(talk, "w1 w2")
    assert len(talk.session) == 128
    assert talk.figures.endswith("stopped at --max-length 128")
    assert talk.do("continue") == ""
    with pytest.raises(RequestError, match=r"129 tokens.*--max-length is 128.*/undo.*128 is the model's own"):
        list(talk.answer())
    assert len(talk.messages) == 3  # the answer is still there
    short = talking(engine, SamplingParams(max_new_tokens=5))
    asked(short, "w1 w2")
    assert short.figures.endswith("stopped at -n 5; /continue goes on")


def test_the_option_that_moves_the_limit_is_named(model):
    engine = load(model, max_length=64, block_size=16, cache_tokens=32, threads=1)
    talk = talking(engine, SamplingParams())
    asked(talk, "w1 w2")
    assert talk.figures.endswith("stopped at --cache-tokens 32")
    with pytest.raises(RequestError, match="chat --cache-tokens 256` has more"):
        asked(talk, "w1")
    engine = load(model, max_length=32, threads=1)
    talk = talking(engine, SamplingParams())
    asked(talk, "w1 w2")
    assert "chat --max-length 128" in talk.warning


def test_near_the_end_there_is_a_warning_and_compact_makes_room(engine):
    talk = talking(engine, SamplingParams(max_new_tokens=20))
    number = 0
    while "--max-length" not in talk.figures:  # -n shrinks to what is left
        asked(talk, f"w{number} w1")
        number += 1
        left = 128 - len(talk.session)
        assert talk.warning.startswith(f"{left} of 128 tokens are left: /compact drops" if left < 64 else "")
        assert bool(talk.warning) == (left < 64)
    assert len(talk.session) == 128 and talk.figures.endswith("stopped at --max-length 128")
    with pytest.raises(RequestError, match="/compact drops the oldest turns, then /retry"):
        asked(talk, "w77 w78")
    said = talk.do("compact")
    assert said.startswith('dropped the 3 oldest turns, from "w0 w1" to "w2 w1"; about ')
    assert said.endswith("/retry asks the last question")
    assert talk.messages[0] == {"role": "system", "content": "w4"}
    assert talk.messages[-1] == {"role": "user", "content": "w77 w78"}
    talk.do("retry")
    assert "".join(talk.answer())
    while len(talk.messages) > 3:
        assert talk.do("compact").startswith("dropped the oldest turn, ")
    assert "one turn" in talk.do("compact") and len(talk.messages) == 3


def test_compact_is_advised_only_where_it_can_help(engine):
    talk = talking(engine, SamplingParams())
    asked(talk, "w1")
    assert "/undo forgets the one turn; " in talk.warning and "/compact" not in talk.warning
    talk.do("continue")
    with pytest.raises(RequestError, match="there is no room") as refused:
        list(talk.answer())
    assert "/compact" not in str(refused.value) and "/undo forgets the last question" in str(refused.value)
    with pytest.raises(RequestError, match="/compact drops the oldest turns, then /retry asks again"):
        asked(talk, "w2")
    assert "/compact drops the oldest turns, /undo the last one" in talk.warning


def test_compact_that_cannot_help_is_not_advised_and_drops_nothing(engine):
    talk = talking(engine)
    asked(talk, "w1")
    asked(talk, "w2")
    with pytest.raises(RequestError, match="there is no room") as refused:
        asked(talk, "w1 " * 200)
    assert "/compact" not in str(refused.value)
    before = list(talk.messages)
    said = talk.do("compact")
    assert said.startswith("nothing is dropped: the last turn alone has 20") and "--max-length is 128; /undo" in said
    assert talk.messages == before
    talk.do("undo")
    assert talk.do("compact").startswith("dropped the oldest turn")


def test_after_compact_a_full_answer_goes_on(engine):
    talk = talking(engine, SamplingParams(max_new_tokens=50))
    for text in ("w1", "w2", "w3"):
        asked(talk, text)
    part = talk.messages[-1]["content"]
    talk.do("compact")
    talk.do("continue")
    list(talk.answer())
    assert talk.messages[-1]["content"].startswith(part) and len(talk.messages[-1]["content"]) > len(part)


def test_which_limit_ended_a_text(engine):
    done = engine.generate("w1 w2", max_new_tokens=5)
    assert cut_by(done, SamplingParams(max_new_tokens=5), engine.config) == "stopped at -n 5"
    assert summary(engine, [done], 1.0, SamplingParams()).endswith(f"{done.hash} · stopped at -n 5")
    default = engine.generate([3] * 5)
    assert cut_by(default, SamplingParams(), engine.config) == "stopped at --max-length 128"
    assert summary(engine, [done, default], 1.0, SamplingParams()).endswith(
        "1 stopped at -n 5 · 1 stopped at --max-length 128"
    )
    ended = engine.generate("w1 w2", max_new_tokens=5, stop_token_ids=(done.tokens[2],))
    assert cut_by(ended, SamplingParams(max_new_tokens=5), engine.config) == ""
    assert summary(engine, [ended], 1.0, SamplingParams()).endswith(ended.hash)


# ---- files and settings


def test_saved_and_opened(engine, talk, tmp_path):
    asked(talk, "w1")
    talk.do("save", f"{tmp_path}/x.kv")
    wanted = asked(talk, "w2")
    other = talking(engine)
    assert other.do("open", f"{tmp_path}/x.kv").startswith("3 messages")
    assert asked(other, "w2") == wanted
    plain = engine.session("w1 w2")
    plain.save(tmp_path / "y.kv")
    with pytest.raises(RequestError, match="holds no conversation"):
        other.do("open", f"{tmp_path}/y.kv")
    with pytest.raises(SnapshotError, match="does not exist"):
        other.do("open", f"{tmp_path}/z.kv")
    assert asked(other, "w3")


def test_a_system_message_alone_is_saved(engine, talk, tmp_path):
    wanted = asked(talk, "w1")
    for forget in ("clear", "undo"):
        talk = talking(engine)
        asked(talk, "w5")
        talk.do(forget)
        assert talk.do("save", f"{tmp_path}/x.kv").startswith(f"{tmp_path}/x.kv: ")
        other = talking(engine, system=None)
        assert other.do("open", f"{tmp_path}/x.kv").startswith("1 message, ")
        assert other.messages == [{"role": "system", "content": "w4"}]
        assert asked(talk, "w1") == asked(other, "w1") == wanted
    with pytest.raises(TokenmillError, match="nothing to save: the conversation has no message yet"):
        talking(engine, system=None).do("save", f"{tmp_path}/y.kv")


def test_save_overwrites_nothing_but_conversations(engine, talk, tmp_path):
    asked(talk, "w1")
    (tmp_path / "notes.txt").write_text("mine")
    engine.session("w1 w2").save(tmp_path / "plain.kv")
    before = (tmp_path / "plain.kv").read_bytes()
    for name in ("notes.txt", "plain.kv", "."):
        with pytest.raises(TokenmillError, match="no saved conversation: give another name"):
            talk.do("save", f"{tmp_path}/{name}")
    assert (tmp_path / "notes.txt").read_text() == "mine" and (tmp_path / "plain.kv").read_bytes() == before
    assert talk.do("save", f"{tmp_path}/x.kv") and talk.do("save", f"{tmp_path}/x.kv")
    for name in ("save", "open"):
        with pytest.raises(TokenmillError, match=f"/{name} needs the name of a file"):
            talk.do(name)


@pytest.mark.parametrize("file", ["x" * 5000, "~nobody-of-this-name/x", "a\0b", "/etc/passwd/x"])
def test_names_that_no_file_can_have(talk, file):
    asked(talk, "w1")
    for name in ("save", "open"):
        with pytest.raises(TokenmillError, match="cannot be used: "):
            talk.do(name, file)


PART = {"role": "assistant", "content": "w1", "cut": "stopped by Ctrl-C", "tokens": [1]}
QUESTION = {"role": "user", "content": "w1"}


@pytest.mark.parametrize(
    "messages",
    [
        7, {}, [7], [{}], [PART], [QUESTION, QUESTION], [QUESTION, {"role": "system", "content": ""}],
        [{"role": "user", "content": 7}], [{"role": "user"}], [QUESTION | {"cut": "x", "tokens": []}],
        [QUESTION, PART | {"tokens": ["w1"]}], [QUESTION, PART | {"tokens": [True]}], [QUESTION, PART | {"tokens": 7}],
        [QUESTION, PART | {"tokens": [-1]}], [QUESTION, PART | {"cut": 7}], [QUESTION, PART | {"more": 7}],
        [QUESTION, {key: PART[key] for key in ("role", "content", "cut")}],
    ],
    ids=lambda messages: json.dumps(messages)[:40],
)  # fmt: skip
def test_notes_that_are_no_conversation_are_refused(engine, talk, tmp_path, messages):
    asked(talk, "w1")
    before, session = list(talk.messages), talk.session
    other = engine.session("w1 w2")
    other.notes = {"messages": messages}
    other.save(tmp_path / "x.kv")
    with pytest.raises(RequestError, match=r"x\.kv is damaged: "):
        talk.do("open", f"{tmp_path}/x.kv")
    assert talk.messages == before and talk.session is session


def test_a_part_with_ids_of_another_vocabulary_is_refused(engine, talk, tmp_path):
    other = engine.session("w1 w2")
    other.notes = {"messages": [QUESTION, PART | {"tokens": [10**6]}]}
    other.save(tmp_path / "x.kv")
    with pytest.raises(RequestError, match="1000000"):
        talk.do("open", f"{tmp_path}/x.kv")


@pytest.mark.parametrize("columns", [40, 55, 80, 100])
def test_help_is_as_wide_as_the_terminal(talk, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    help_text = talk.do("help")
    assert talk.do("") == talk.do("?") == help_text
    assert columns - 16 < max(map(len, help_text.splitlines())) <= columns
    assert all(f"  /{name} " in help_text for name in (*talk.commands, "bye"))
    assert '\\, or type """ before' in " ".join(help_text.split())


def test_settings(talk):
    assert talk.do("set", "temperature 0.5") == "temperature 0.5"
    assert "temperature 0.5" in talk.do("stats")
    assert talk.do("set", "stop w7") == "stop ('w7',)"
    assert talk.do("set", "stop none") == "stop ()"
    assert talk.do("set", "--top-p 0.9") == "top_p 0.9"
    assert talk.do("set", "max_tokens 5") == "max_new_tokens 5"
    assert talk.do("set", "parameter num_predict 4") == "max_new_tokens 4"
    assert talk.do("set", "temp 0.25") == "temperature 0.25"
    assert talk.do("set", "max_new_tokens none") == "max_new_tokens None"
    for name, argument, message in (
        ("foo", "", r"^unknown command /foo \(did you mean /fork\?\); there are /retry, .*/bye.*begin|space"),
        ("set", "system You", "/system TEXT sets the system message"),
        ("set", "parameter num_ctx 4096", "--max-length N"),
        ("set", "format json", "--json-schema"),
        ("set", "temperatur 1", r"no setting 'temperatur' \(did you mean temperature\?\); the settings are .*top_k"),
        ("set", "", "/set NAME VALUE; the settings are"),
        ("set", "seed", "/set NAME VALUE; the settings are"),
    ):
        with pytest.raises(TokenmillError, match=message):
            talk.do(name, argument)
    with pytest.raises(ConfigError, match="top_p"):
        talk.do("set", "top_p 7")
