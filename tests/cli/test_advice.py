"""The advice of an error exists under that name on the command line, and following it leads to success."""

import json
import logging
import shutil

import pytest

from tests.word_model import save_chat_model
from tokenmill.cli.elsewhere.hints import PROGRAMS
from tokenmill.cli.parser.command import Command
from tokenmill.cli.process.display import say_on_stderr
from tokenmill.errors import CheckpointError


def test_a_model_without_a_chat_template(tm, model, tmp_path):
    plain = shutil.copytree(model, tmp_path / "plain")
    (plain / "tokenizer_config.json").unlink()
    for verb, *more in (["generate"], ["prefill", "-o", tmp_path / "a.kv"]):
        code, _, err = tm(verb, plain, "--chat", "-p", "w1 w2", "-q", *more)
        assert (code, err) == (2, "error: this model has no chat template: leave out --chat\n")
        assert tm(verb, plain, "-p", "w1 w2", "-q", *more)[0] == 0


def test_a_model_without_a_tokenizer(tm, wordless):
    code, _, err = tm("generate", wordless, "-p", "w1", "-q")
    assert (code, err) == (2, "error: this model has no tokenizer: give --tokens\n")
    code, _, err = tm("generate", wordless, "--chat", "-p", "w1", "-q")
    advice = "this model has no tokenizer, so it has no conversations: give --tokens without --chat"
    assert (code, err) == (2, f"error: {advice}\n")
    assert tm("generate", wordless, "--tokens", "1,2", "-n", 2, "-q")[0] == 0


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("--program aot", "auto, or aot with an AOT package as --aot-package"),
        ("--block-size 4000", "at most --max-length, which is 128"),
        ("--max-sequences 600", "at most --max-step-tokens, which is 512"),
        ("--speculate draft_model", "a model, because speculate is 'draft_model'"),
        ("--speculate no_such", "use one of auto, off, adaptive, multi_step, suffix, draft_model"),
        ("--kernel rows --block-size 8 --program eager", "--block-size 8 is under --max-length 128"),
    ],
)
def test_settings_are_named_as_options_whether_they_were_typed_or_not(refused, model, typed, said):
    assert said in refused("generate", model, "-p", "w1", "-q", *typed.split())


@pytest.mark.slow
def test_a_backend_that_cannot_compile(tm, refused, model):
    typed = ["generate", model, "-p", "w1", "-n", 1, "-q", "--compile-backend", "tvm"]
    err = refused(*typed, "--compile", "static")
    assert err.endswith("use another, or --compile no\n")
    assert tm(*typed, "--compile", "no")[0] == 0


def test_both_settings_of_a_saved_text_are_named_at_once(tm, model, tmp_path):
    file = tmp_path / "a.kv"
    assert tm("prefill", model, "-p", "w1 w2", "-o", file)[0] == 0
    code, _, err = tm("decode", file, "-n", 2, "-q", "--dtype", "bfloat16", "--scheme", "q8")
    assert code == 2
    assert err == (
        f"error: {file} has dtype 'float32' and scheme 'dense' and this engine 'bfloat16' and 'q8': the text would not "
        "be the same; load the model with --dtype float32 and --scheme dense, or open it with --convert\n"
    )
    assert tm("decode", file, "-n", 2, "-q", "--dtype", "float32", "--scheme", "dense")[0] == 0
    assert tm("decode", file, "-n", 2, "-q", "--dtype", "bfloat16", "--scheme", "q8", "--convert")[0] == 0


def test_a_text_that_is_longer_than_the_cache_that_was_set(tm, refused, model):
    typed = ["generate", model, "-p", "w1 w2", "-n", 70, "-q"]
    err = refused(*typed, "--max-length", 48, "--cache-tokens", 32)
    assert "(or raise --max-length and --cache-tokens to 72)" in err
    assert tm(*typed, "--max-length", 72, "--cache-tokens", 72)[0] == 0
    assert "(or raise --max-length to 72)" in refused(*typed, "--max-length", 48)
    assert tm(*typed, "--max-length", 72)[0] == 0


def test_what_the_files_recommend_can_be_used_where_it_is_advised(tm, model, tmp_path):
    """`decode` had no --generation-config, and named it."""
    copy = shutil.copytree(model, tmp_path / "copy")
    (copy / "generation_config.json").write_text(json.dumps({"do_sample": True, "temperature": 0.7}))
    file = tmp_path / "a.kv"
    assert tm("prefill", copy, "-p", "w1", "-o", file, "-q")[0] == 0
    _, _, err = tm("decode", file, "-n", 2)
    assert "; --generation-config uses that (an option of generate, decode and profile; chat and serve do)" in err
    for verb in ("generate", "chat", "decode", "profile"):
        assert "--generation-config" in tm(verb, "--help")[1]
    code, out, err = tm("decode", file, "-n", 2, "--json", "--generation-config")
    assert code == 0 and json.loads(out)["settings"]["temperature"] == 0.7


def test_a_warning_names_the_option_that_was_typed(tm, model, monkeypatch):
    say_on_stderr()
    monkeypatch.setattr(logging.getLogger("tokenmill"), "level", logging.INFO)

    def warned(*_):
        logging.getLogger("tokenmill.loader").warning("threads = %d is ignored: the moon is full", 5)
        raise CheckpointError("nothing is loaded")

    monkeypatch.setattr("tokenmill.cli.generate.load_engine", warned)
    assert tm("generate", model, "-p", "w1", "--threads", 5)[2].startswith("warning: --threads 5 is ignored: the moon")


def test_one_text_has_one_continuation(tm, refused, model, tmp_path):
    tm("prefill", model, "-p", "w1", "-o", tmp_path / "a.kv", "-q")
    assert "No such option: --n" in refused("decode", tmp_path / "a.kv", "--n", 2)


def test_a_saved_conversation_in_the_place_of_the_model(tm, piped, tmp_path):
    talk = tmp_path / "talk.kv"
    piped(f"w1 w2\n/save {talk}\n".encode())
    assert tm("chat", save_chat_model(tmp_path), "-n", 2, "-q")[0] == 0
    code, _, err = tm("chat", talk)
    assert (code, err) == (2, f"error: {talk} is a saved conversation, not a model: `tokenmill chat --open {talk}`\n")
    piped(b"w1\n")
    assert tm("chat", "--open", talk, "-n", 2, "-q")[0] == 0  # with the model that the file names


def test_a_gguf_file_is_named_at_once(refused, model, tmp_path):
    said = "a file that does not exist yet, whose name ends in .gguf"
    for output in (tmp_path / "there", tmp_path / "there.gguf", tmp_path / "new"):
        if output.name != "new":
            output.mkdir()
        assert said in refused("quantize", model, "--export", "gguf", "-o", output)


@pytest.mark.parametrize("more", [[], ["--block-size", 16], ["--program", "eager", "--max-sequences", 3]])
def test_what_plan_says_fits_does(tm, model, monkeypatch, more):
    """The length fits in any memory, also where blocks are whole and a longer text needs more beside the cache."""
    _, out, _ = tm("plan", model, "--json", *more)
    total = json.loads(out)["total_bytes"]
    for available in (total * part // 40 for part in (22, 38, 55)):
        monkeypatch.setattr("tokenmill.kernels.devices.free_bytes", lambda _, available=available: available)
        _, out, _ = tm("plan", model, "--json", *more)
        facts = json.loads(out)
        for option, name in (("--max-length", "longest_that_fits"), ("--max-sequences", "most_sequences_that_fit")):
            if best := facts[name]:
                assert tm("plan", model, *more, option, best)[0] == 0
                most = {"--max-length": 128, "--max-sequences": 512}[option]
                assert best == most or tm("plan", model, *more, option, best + 1)[0] == 2


def test_plan_advises_what_moves_the_sum(tm, model, monkeypatch):
    monkeypatch.setattr("tokenmill.kernels.devices.free_bytes", lambda _: 10**9)
    code, out, _ = tm("plan", model, "--cache-tokens", 10**15)
    assert code == 2
    assert tm("plan", model, "--cache-tokens", out.rsplit(maxsplit=1)[-1])[0] == 0
    assert "does not fit: lower --cache-tokens to " in out


def _of_others():
    """(option, whose) of every option in the tables of other programs, and Ollama's parameters as options."""
    for program, lists in PROGRAMS.items():
        for row in (*lists.get("options", ()), *lists.get("parameters", ())):
            for name in row.names:
                yield (name if name.startswith("-") else f"--{name.replace('_', '-')}"), program


@pytest.mark.parametrize(("option", "program"), sorted(set(_of_others())))
def test_an_option_of_another_program_is_taken_or_explained(tm, option, program, monkeypatch):
    """Values are given as `--x=1`, so that no word after an option is read as one of ours."""
    monkeypatch.setattr(Command, "call", lambda *_: None)
    typed = f"{option}=1" if option.startswith("--") else option
    code, _, err = tm("serve", typed, *([] if "=" in typed else ["1"]))
    assert code == 0 or f"{option} is " in err or "No such option" not in err, err


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("generate -ngl 99 -p hi", "-ngl is llama.cpp's; here it is --device: the whole model is on one device"),
        ("chat --num-ctx 4096", "--num-ctx is Ollama's; here it is `--max-length` of the server"),
        ("remove x", "Did you mean 'rm'?"),
        ("version", "Did you mean '--version'?"),
        ("ps", "ollama ps is Ollama's; here it is `GET /v1/cache`"),
        ("create x", "here it is tokenmill chat --preset NAME"),
        ("llama-cli -m x", "here it is tokenmill chat FILE"),
    ],
)
def test_words_of_another_program_say_what_they_are_here(refused, typed, said):
    assert said in refused(*typed.split())


def test_a_prompt_in_the_place_of_a_model_is_told_apart(refused):
    for verb in ("chat", "serve", "info"):
        assert "tokenmill generate -p 'Why is the sky blue?'" in refused(verb, "Why is the sky blue?")
