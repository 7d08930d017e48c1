"""`tokenmill verify`: what it says and how it exits."""

import json

import pytest

from tests.word_model import save_chat_model, save_word_model
from tokenmill.receipts.receipt import hash_of

MAKE = ("--max-length", 64, "--dtype", "float32", "--quiet", "--receipt")


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    return save_word_model(tmp_path_factory.mktemp("words"))


@pytest.fixture
def made(tm, words, tmp_path):
    """A file with three receipts of two prompts."""
    path = tmp_path / "x.jsonl"
    asked = ("-p", "w1 w2", "-p", "w3", "-n", 12, "--temperature", 0.9, "--seed", 5, "--n", 2)
    code, _, err = tm("generate", words, *asked, *MAKE, path)
    assert code == 0, err
    return path


def edited(path, change, number=0, again=True):
    """Change one of a file's receipts, by default with a hash that is right."""
    documents = [json.loads(line) for line in path.read_text().splitlines()]
    change(documents[number])
    if again:
        documents[number]["hash"] = hash_of(documents[number])
    path.write_text("".join(f"{json.dumps(each)}\n" for each in documents))


def test_receipts_are_verified(tm, made):
    code, out, err = tm("verify", made)
    assert code == 0 and "Traceback" not in err
    assert out.count(" verified ") == 4 and "4 receipts: 4 verified" in out
    document = json.loads(tm("verify", made, "--json")[1])
    assert document["verified"] == 4 and [each["tokens"] for each in document["receipts"]] == [12] * 4


def test_a_text_that_ended_long_before_its_limit_needs_no_room_for_that(tm, words, tmp_path):
    for name, program in (("a", "native"), ("b", "eager")):
        asked = (
            "-p",
            "w1 w2",
            "-n",
            120,
            "--temperature",
            0.9,
            "--seed",
            5,
            "--stop-token-ids",
            "7,8,9,10,11,12,13,14,15",
        )
        assert tm("generate", words, *asked, "--program", program, "--quiet", "--receipt", tmp_path / name)[0] == 0
        receipt = json.loads((tmp_path / name).read_text())
        assert len(receipt["tokens"]) < 60 and receipt["sampling"]["max_new_tokens"] == 120
        assert tm("verify", tmp_path / name)[0] == 0


def test_a_streamed_text_has_the_same_receipt(tm, words, tmp_path):
    asked = ("generate", words, "-p", "w1 w2", "-n", 9, *MAKE)
    for name, more in (("a", ()), ("b", ("--no-stream",)), ("c", ("--speculate", "suffix"))):
        tm(*asked, tmp_path / name, *more)
    assert len({(tmp_path / name).read_text() for name in "abc"}) == 1


def test_what_was_changed_is_named(tm, made):
    edited(made, lambda document: document["tokens"].__setitem__(4, 7), number=2)
    code, out, _ = tm("verify", made)
    assert code == 1 and "4 receipts: 3 verified, 1 refused" in out
    assert f"{made}:3: token 4 of 12 (position 5): 7 ('w7') is claimed, the engine chooses" in out
    found = json.loads(tm("verify", made, "--json")[1])["receipts"][2]["findings"][0]
    assert (found["what"], found["position"], found["claimed"]) == ("tokens", 4, 7)


def test_an_edited_hash(tm, made):
    edited(made, lambda document: document.update(hash="0" * 64), again=False)
    code, out, _ = tm("verify", made)
    assert code == 1 and "the hash does not match the receipt's fields" in out


def test_a_damaged_line_leaves_the_others_and_gives_2(tm, made):
    made.write_text(made.read_text()[:-40])
    code, out, _ = tm("verify", made)
    assert code == 2 and "4 receipts: 3 verified, 1 unreadable" in out and "x.jsonl:4: is cut or damaged" in out


@pytest.mark.parametrize("content", ["", "x", "{}", '{"receipt": 9}'])
def test_a_file_that_holds_no_receipt(tm, tmp_path, content):
    (tmp_path / "x").write_text(content)
    code, out, err = tm("verify", tmp_path / "x")
    assert code == 2 and "Traceback" not in err
    assert str(tmp_path / "x") in out + err


def test_no_file(tm, tmp_path):
    code, _, err = tm("verify", tmp_path / "absent")
    assert code == 2 and "No such file" in err


def test_a_file_that_is_absent_or_empty_leaves_the_others(tm, made, tmp_path):
    edited(made, lambda document: document.update(text="forged"), number=1)
    (tmp_path / "empty").write_text("")
    code, out, _ = tm("verify", tmp_path / "absent", made, tmp_path / "empty")
    assert code == 1 and "6 receipts: 3 verified, 1 refused, 2 unreadable" in out
    assert f"{tmp_path / 'absent'}: cannot be read: No such file" in out and "empty: is empty" in out
    assert tm("verify", tmp_path / "absent", tmp_path / "empty")[0] == 2


def test_a_shown_text_that_was_changed_is_refused(tm, made, tmp_path):
    receipts, path = [json.loads(line) for line in made.read_text().splitlines()], tmp_path / "answer.json"
    choices = [{"text": each["text"], "receipt": each} for each in receipts]
    path.write_text(json.dumps({"choices": choices}))
    assert tm("verify", path)[0] == 0
    choices[0]["text"] = choices[1]["text"] = "I owe you 1,000"
    choices[1]["text"] += choices[1]["receipt"]["text"]
    choices[2] = {"message": {"content": choices[2]["text"], "reasoning": "forged"}, "receipt": choices[2]["receipt"]}
    del choices[3]["receipt"]
    path.write_text(json.dumps({"choices": choices}))
    code, out, _ = tm("verify", path)
    assert code == 1 and "4 receipts: 2 consistent, 1 refused, 1 unreadable" in out
    assert "choice 1: the answer shows 'I owe you 1,000', and the receipt is of" in out
    assert "choice 2: the shown text was not compared with the receipt" in out
    found = json.loads(tm("verify", path, "--json")[1])["receipts"]
    assert found[0]["findings"][0]["what"] == "shown" and "choice of an answer has no receipt" in found[3]["notes"][0]


def test_what_is_shown_of_very_many(tm, made):
    made.write_text("".join(f"{{{number}\n" for number in range(1500)) + made.read_text())
    edit = made.read_text().splitlines()
    edit[-1] = edit[-1].replace('"finish_reason": "length"', '"finish_reason": "eos"')
    made.write_text("\n".join(edit))
    code, out, _ = tm("verify", made)
    assert (
        code == 1 and "501 more are not shown here" in out and "1504 receipts: 3 verified, 1 refused, 1,500 un" in out
    )
    assert f"{made}:1504: the hash does not match" in out and f"{made}:1: is cut" in out and f"{made}:1000:" not in out


def test_a_model_that_is_not_here(tm, made, words, tmp_path):
    edited(made, lambda document: document["model"].update(name="nobody/has-this"))
    code, out, _ = tm("verify", made)
    assert code == 2 and "3 verified, 1 unchecked" in out
    assert "tokenmill pull nobody/has-this" in out and "--model says where it lies" in out
    code, out, _ = tm("verify", made, "--model", words)
    assert code == 0 and "4 verified" in out


def test_another_model(tm, made, tmp_path):
    code, out, _ = tm("verify", made, "--model", save_word_model(tmp_path / "other", tiny="qwen2"))
    assert code == 1 and "this is not the model of the receipt: " in out and "4 refused" in out


def test_settings_that_cannot_be(tm, made):
    edited(made, lambda document: document["engine"].update(program="abacus"))
    edited(made, lambda document: document["engine"].update(scheme="q4", dtype="float64"), number=1)
    code, out, _ = tm("verify", made)
    assert code == 1 and "2 verified, 2 refused" in out
    assert "program = 'abacus'" in out and "dtype = 'float64'" in out


def test_another_program_can_say_no_more_than_consistent(tm, made):
    code, out, _ = tm("verify", made, "--program", "eager")
    assert code == 2 and "4 consistent" in out and "program 'native', here 'eager'" in out


def test_a_text_that_is_longer_than_the_context(tm, made):
    edited(made, lambda document: document.update(prompt=[1] * 500))
    edited(made, lambda document: document["sampling"].update(max_new_tokens=10**15), number=1)
    code, out, _ = tm("verify", made)
    assert code == 1 and "2 verified, 2 refused" in out
    assert "the prompt has 500 tokens" in out and "max_new_tokens of 1000000000000000" in out


def test_a_chat_template_of_ones_own(tm, tmp_path):
    model, template = save_chat_model(tmp_path / "chat"), tmp_path / "own.jinja"
    template.write_text("{% for m in messages %}{{ m['content'] }} {% endfor %}")
    asked = ("generate", model, "--chat", "-p", "w1 w2", "-n", 4, "--chat-template", template, *MAKE)
    assert tm(*asked, tmp_path / "x")[0] == 0
    code, out, _ = tm("verify", tmp_path / "x")
    assert code == 1 and "the chat template is another one" in out
    assert tm("verify", tmp_path / "x", "--chat-template", template)[0] == 0


def test_a_tokenizer_of_another_model(tm, words, tmp_path):
    other = save_word_model(tmp_path / "other")
    asked = ("generate", words, "-p", "w1 w2", "-n", 4, "--tokenizer", other, *MAKE)
    assert tm(*asked, tmp_path / "x")[0] == 0
    code, out, _ = tm("verify", tmp_path / "x")
    assert code == 1 and "tokenizer of tokenizer.json is not here" in out and "--tokenizer" in out
    assert tm("verify", tmp_path / "x", "--tokenizer", other)[0] == 0
    code, out, _ = tm("verify", tmp_path / "x", "--tokenizer", tmp_path / "nowhere")
    assert code == 2 and "nowhere" in out and "Traceback" not in out


def test_a_receipt_that_cannot_be_written_is_refused_before_anything_is_computed(tm, words, tmp_path):
    (tmp_path / "file").write_text("")
    code, out, err = tm("generate", words, "-p", "w1", "--receipt", tmp_path / "file" / "x")
    assert code == 2 and not out and "--receipt" in err
