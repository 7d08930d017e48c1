"""The ways of a prompt to a verb: options, files, stdin, the words of other engines; and what is said without one."""

import shutil
import sys
from pathlib import Path

import pytest

import tokenmill
from tokenmill.cli import models, prompt_progress
from tokenmill.cli.eval import perplexity as evaluation
from tokenmill.cli.generate import show
from tokenmill.hub.progress import Progress
from tokenmill.settings.engine_config import EngineConfig

NAMES_A_MODEL = "was read as the name of a model; if it is the prompt, type -p"


def test_stdin_is_the_prompt_where_no_other_is_given(tm, model, piped):
    wanted = tm("generate", model, "-p", "w1 w2 w3", "-n", 5, "-q")
    piped(b"w1 w2 w3\n")
    assert tm("generate", model, "-n", 5, "-q") == wanted
    piped(b"w4\n")
    assert tm("generate", model, "-p", "w1 w2 w3", "-n", 5, "-q") == wanted


def test_no_prompt_says_what_to_type(tm, refused, model, piped, monkeypatch):
    piped(b"")
    err = refused("generate", model)
    assert err == "error: no prompt: give one with -p TEXT, with --prompt-file FILE, or on stdin\n"
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    assert tm("prefill", model, "-o", "x.kv")[2] == err


@pytest.mark.parametrize("verb", [["generate"], ["prefill", "-o", "x.kv"]])
def test_a_prompt_that_is_read_as_a_model_is_answered_with_what_to_type(tm, refused, verb, piped):
    err = refused(*verb, "Once upon a time")
    assert err == f"error: no prompt: 'Once upon a time' {NAMES_A_MODEL} 'Once upon a time'\n"
    piped(b"")
    assert f"'Hello' {NAMES_A_MODEL} Hello" in tm(*verb, "Hello")[2]
    assert NAMES_A_MODEL not in tm("generate", "no/model", "-p", "w1")[2]


def test_what_is_not_utf_8_is_named(tm, model, piped, tmp_path):
    (tmp_path / "program").write_bytes(b"\x7fELF\xff")
    for verb in (["generate", model, "--prompt-file"], ["eval", "perplexity", model]):
        code, _, err = tm(*verb, tmp_path / "program")
        assert (code, err) == (2, f"error: {tmp_path / 'program'} is not valid UTF-8\n")
    for verb in (["generate", model], ["generate", model, "-p", "-"], ["eval", "perplexity", model, "-"]):
        piped(b"\xff")
        assert tm(*verb)[::2] == (2, "error: the input is not valid UTF-8\n")
    assert tm("generate", model, "-p", "\udcff")[2] == "error: --prompt is not valid UTF-8\n"
    missing = "error: /no/such/file cannot be read: No such file or directory\n"
    assert tm("generate", model, "--prompt-file", "/no/such/file")[2] == missing
    assert tm("eval", "perplexity", model, "/no/such/file")[2] == missing


def test_a_byte_order_mark_is_no_part_of_a_prompt(tm, model, piped, tmp_path):
    wanted = tm("generate", model, "-p", "w1 w2", "-n", 3, "-q")
    (tmp_path / "prompt.txt").write_bytes(b"\xef\xbb\xbfw1 w2\n")
    assert tm("generate", model, "-f", tmp_path / "prompt.txt", "-n", 3, "-q") == wanted
    for how in ([], ["-p", "-"], ["-f", "-"]):
        piped(b"\xef\xbb\xbfw1 w2\n")
        assert tm("generate", model, *how, "-n", 3, "-q") == wanted


def test_what_has_no_end_is_refused_by_name(tm, model, monkeypatch):
    said = "has more than 64.0 MB, which is no text to be read at once: shorten it"
    assert tm("generate", model, "-f", "/dev/zero")[::2] == (2, f"error: /dev/zero {said}\n")
    for how in ([], ["-p", "-"], ["-f", "-"]):
        with Path("/dev/zero").open() as endless:
            monkeypatch.setattr(sys, "stdin", endless)
            assert tm("generate", model, *how)[::2] == (2, f"error: the input {said}\n")
    monkeypatch.setattr(evaluation, "MAX_BYTES", 10)
    assert "/dev/zero has more than 10 B" in tm("eval", "perplexity", model, "/dev/zero")[2]


ALIASES = [
    ("--temperature 0.7 --seed 1", "--temp 0.7 --seed 1"),
    ("--max-new-tokens 3", "--max-tokens 3"),
    ("--max-length 64 -n 3", "-c 64 -n 3"),
    ("--max-length 64 -n 3", "--ctx-size 64 -n 3"),
    ("--max-length 64 -n 3", "--max-model-len 64 -n 3"),
    ("--threads 1 -n 3", "-t 1 -n 3"),
    ("--cache-format int8 -n 3", "--kv-cache-dtype int8 -n 3"),
    ("--cache-format dense -n 3", "--kv-cache-dtype auto -n 3"),
    ("--no-prefix-cache -n 3", "--no-prefix-caching -n 3"),
    ("--prefix-cache -n 3", "--enable-prefix-caching -n 3"),
]


@pytest.mark.parametrize(("ours", "theirs"), ALIASES)
def test_the_words_of_other_engines_are_understood(tm, model, ours, theirs):
    wanted = tm("generate", model, "-p", "w1 w2", "-q", *ours.split())
    assert wanted[0] == 0
    assert tm("generate", model, "-p", "w1 w2", "-q", *theirs.split()) == wanted
    assert theirs.split()[0] not in tm("generate", "--help")[1].split()


def test_model_and_file_by_option(tm, refused, model, tmp_path):
    wanted = tm("generate", model, "-p", "w1 w2", "-n", 3, "-q")
    (tmp_path / "prompt.txt").write_text("w1 w2\n")
    for name in ("-m", "--model"):
        assert tm("generate", name, model, "-p", "w1 w2", "-n", 3, "-q") == wanted
    for name in ("-f", "--file"):
        assert tm("generate", model, name, tmp_path / "prompt.txt", "-n", 3, "-q") == wanted
    err = refused("generate", model, "-m", model, "-p", "w1")
    assert err.startswith("error: MODEL is given twice")


def test_the_value_of_an_option_may_look_like_an_alias(tm, model):
    assert tm("generate", model, "-p", "w1 w2", "--stop", "-t", "-n", 2, "-q")[0] == 0


def test_n_of_minus_1_goes_on_to_the_end_of_the_context(tm, refused, model, tmp_path):
    done = tokenmill.load(model, max_length=40).generate("w1 w2 w3", max_new_tokens=37, ignore_eos=True)
    code, out, _ = tm("generate", model, "-p", "w1 w2 w3", "-n", -1, "--max-length", 40, "--ignore-eos", "-q")
    assert (code, out) == (0, done.text + "\n")
    file = tmp_path / "x.kv"
    assert tm("prefill", model, "-p", "w1 w2", "-o", file, "-q")[0] == 0
    how = ["--max-length", 40, "--ignore-eos", "-q"]
    assert tm("decode", file, "-p", "w3", "-n", -1, *how)[:2] == (0, done.text + "\n")
    assert "50 tokens" in refused("generate", model, "-p", "w1 " * 50, "-n", -1, *how)
    assert "--max-new-tokens" in tm("generate", model, "-p", "w1", "-n", -2)[2]


def test_a_long_prompt_shows_how_far_it_is_on_a_terminal_only(tm, model, monkeypatch):
    arguments = ["generate", model, "-p", "w1 " * 20, "-n", 2, "--max-step-tokens", 4]
    plain = tm(*arguments)
    monkeypatch.setattr(prompt_progress, "AFTER_S", 0.0)
    assert "computing the prompt" not in tm(*arguments)[2]
    monkeypatch.setattr(sys.stderr.__class__, "isatty", lambda _: True)
    code, out, err = tm(*arguments)
    assert (code, out) == plain[:2]
    assert "computing the prompt" in err and "of 20 tokens" in err
    assert "computing the prompt" not in tm(*arguments, "-q")[2]
    monkeypatch.setattr(prompt_progress, "AFTER_S", 3600.0)
    assert "computing the prompt" not in tm(*arguments)[2]


def test_a_text_that_never_began_has_no_line_break(model, capsys):
    """Ctrl-C while the prompt is computed: the bar, which then goes away, must be on the last line."""

    def pieces():
        raise KeyboardInterrupt
        yield

    with pytest.raises(KeyboardInterrupt):
        show(tokenmill.load(model), pieces())
    assert capsys.readouterr().out == ""


def test_a_model_of_the_hub_is_loaded_by_its_name(model, tmp_path, monkeypatch):
    """Its folder in the hub's cache has another name, which is a commit."""
    (tmp_path / "0123abcd").symlink_to(model)
    monkeypatch.setattr("tokenmill.hub.names.locate", lambda *_, **__: tmp_path / "0123abcd")
    told = []
    monkeypatch.setattr(Progress, "stage", lambda _, text: told.append(text))
    models.load_engine(EngineConfig(model="owner/name"), Progress())
    assert told[0] == "loading owner/name"


def test_a_saved_cache_does_not_replace_another_file(tm, model, tmp_path):
    notes, file = tmp_path / "notes.txt", tmp_path / "x.kv"
    notes.write_text("important")
    prefill = ["prefill", model, "-p", "w1 w2"]
    assert tm(*prefill, "-o", file, "-q") == (0, "", "")
    before = file.read_bytes()
    assert tm(*prefill, "-o", file)[0] == 0 and file.read_bytes() == before  # a saved cache may be written again
    for arguments in (
        [*prefill, "-o", notes],
        ["decode", file, "-n", 2, "-o", notes],
        ["decode", file, "--output", notes],
    ):
        code, out, err = tm(*arguments)
        assert (code, out, notes.read_text()) == (2, "", "important")
        assert err == (
            f"error: {notes} is there and is not a saved cache: give another name, or --force to overwrite it\n"
        )
    assert tm("decode", file, "-n", 2, "-q", "-o", notes, "--force")[0] == 0
    assert tm("decode", notes, "-n", 2, "-q")[0] == 0
    notes.write_text("important")
    assert tm(*prefill, "-q", "-o", notes, "--force") == (0, "", "")
    assert tm(*prefill, "-o", tmp_path, "--force")[0] == 2
    assert tm(*prefill, "-o", "/dev/null", "--force")[0] == 2
    assert "cannot be written: Not a directory" in tm(*prefill, "-o", "/dev/null/at/x.kv")[2]


def test_a_queue_with_too_few_places_is_refused_before_a_model_is_looked_for(tm):
    for arguments, needed in ((["-p", "w1", "-p", "w2"], 2), (["-p", "w1", "--n", 3], 3)):
        for verb in ("generate", "profile"):
            code, out, err = tm(verb, "no-such-model", *arguments, "--max-waiting", 1)
            assert (code, out) == (2, "")
            assert err == (
                f"error: max_waiting = 1 (set in --max-waiting) is not allowed: at least {needed}, since all texts of "
                "a run wait at first; or leave it out\n"
            )


def test_log_probabilities_are_shown_after_the_text(tm, model):
    arguments = ["generate", model, "-p", "w1 w2", "-n", 3]
    plain = tm(*arguments)
    code, out, err = tm(*arguments, "--logprobs", 2)
    assert (code, out) == plain[:2]
    done = tokenmill.load(model).generate("w1 w2", max_new_tokens=3, logprobs=2)
    lines = err.splitlines()[-5:-1]
    assert lines[0].split() == ["token", "logprob", "likeliest"]
    for line, token, entry in zip(lines[1:], done.tokens, done.logprobs):
        shown = [f"'w{token}'", f"{entry.logprob:.3f}"]
        assert line.split() == shown + [word for id, value in entry.top for word in (f"'w{id}'", f"{value:.3f}")]
    assert "likeliest" not in tm(*arguments, "--logprobs", 0)[2] and "logprob" in tm(*arguments, "--logprobs", 0)[2]
    assert tm(*arguments, "--logprobs", 2, "-q")[2] == ""
    assert tm(*arguments, "-p", "w3", "--logprobs", 1)[2].count("likeliest") == 2


def test_a_chat_template_that_makes_nothing_is_refused(tm, model, tmp_path):
    path = shutil.copytree(model, tmp_path / "model")
    (path / "tokenizer_config.json").write_text('{"chat_template": ""}')
    code, out, err = tm("generate", path, "-p", "w1", "--chat", "-n", 2)
    assert (code, out.strip()) == (2, "")
    assert "chat template" in err and "Traceback" not in err
