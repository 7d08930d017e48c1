"""Options: what their help says, how a value that is refused is named, and that one letter means one thing."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_cli import commands
from tokenmill.cli.parser.other_names import ALIASES
from tokenmill.cli.process.display import table_text
from tokenmill.registry import ATTEND, FORMATS, PROGRAMS, PROPOSERS, SCHEMES
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.settings.field import settings_of

REGISTRIES = {
    "program": PROGRAMS,
    "kernel": ATTEND,
    "cache_format": FORMATS,
    "scheme": SCHEMES,
    "speculate": PROPOSERS,
}


@pytest.mark.parametrize("setting", REGISTRIES)
def test_the_names_of_the_help_are_those_of_the_registries(setting):
    told = settings_of(EngineConfig)[setting]
    assert told.names is REGISTRIES[setting]
    assert set(REGISTRIES[setting]) <= set(re.findall(r"\w+", told.help))


REFUSED = [
    ("--program", "nativ", "use one of auto, native, aot, compiled, graphs, eager (did you mean 'native'?)"),
    ("--kernel", "quantum", "use one of auto, rows, gather, padded"),
    ("--cache-format", "int7", "use one of auto, dense, int8 (did you mean 'int8'?)"),
    ("--scheme", "q5", "use one of auto, packed, dense, q8, q4, file"),
    ("--device", "tpu", "here there are auto, cpu"),
    ("--dtype", "int3", "use one of auto, float32"),
    ("--max-step-tokens", "0", "a whole number"),
]


@pytest.mark.parametrize(("option", "value", "allowed"), REFUSED)
@pytest.mark.parametrize("verb", ["generate -p x", "eval perplexity", "bench", "plan"])
def test_an_unknown_name_is_refused_by_its_option_before_a_model_is_looked_for(refused, verb, option, value, allowed):
    verb, *more = verb.partition(" -p")
    name = ["no-such-model", *(["-"] if verb.startswith("eval") else [])]
    err = refused(*verb.split(), *name, *"".join(more).split(), option, value)
    assert err.startswith(f"error: {option[2:].replace('-', '_')} = ")
    assert f"(set in {option}) is not allowed: {allowed}" in err
    assert err.count("\n") == 1


def test_a_setting_that_is_refused_after_loading_names_its_option_too(tm, refused, model):
    for option, value in (("--max-length", 4096), ("--compile-backend", "none"), ("--fuse", "none")):
        more = {"--compile-backend": ["--program", "compiled"], "--fuse": ["--scheme", "q8"]}.get(option, [])
        code, _, err = tm("generate", model, "-p", "w1", "-n", 1, "-q", option, value, *more)
        if code:
            assert f"(set in {option})" in err
    err = refused("generate", model, "-p", "w1", "--max-length", 4096)
    assert "max_length = 4096 (set in --max-length) is not allowed: at most this model's context" in err
    assert "(set in --compile-phases)" in refused("compile", model, "-o", "x.aot", "--compile-phases", "none")
    assert "(set in --group)" in refused("quantize", model, "-o", "x", "--group", 48)


def test_a_setting_that_was_not_typed_names_no_option(tm, model):
    _, _, err = tm("generate", model, "-p", "w1", "--prefix-dir", "x", "--no-cache")
    assert "set in" not in err.replace("(set in --prefix-dir)", "")
    _, _, err = tm("generate", model, "-p", "w1", "--max-sequences", 100000)
    assert "max_sequences = 100000 (set in --max-sequences)" in err


def test_what_is_nearly_an_option_or_a_verb(refused):
    for line, hint in (
        ("generate -p x --temprature 1", "did you mean --temperature?"),
        ("bench sweep --bacht 1", "did you mean --batch?"),
        ("generat", "Did you mean 'generate'?"),
        ("bench swep", "Did you mean 'sweep'?"),
        ("eval perplexty", "Did you mean 'perplexity'?"),
        ("run smollm2-135m", "No such command 'run'. Did you mean 'chat' or 'generate'? See `tokenmill --help`"),
        ("eval perplexity README.md", "Missing argument 'FILE': tokenmill eval perplexity [OPTIONS] MODEL FILE; see"),
    ):
        err = refused(*line.split())
        assert hint in err and err.count("\n") == 1


def test_a_text_without_a_verb_says_what_to_type(tm):
    assert "To continue that text, type tokenmill generate -p …" in tm("Once upon a time")[2]


@pytest.mark.parametrize("typed", ["-m x.gguf -p w1 -ngl 99", "-p w1", "-ngl 5", "--bogus"])
def test_an_option_without_a_verb_is_named_whole(refused, typed):
    said = f"error: No such option: {typed.split()[0]}. A verb comes first, as in `tokenmill generate -p …`"
    assert refused(*typed.split()).startswith(said)


def test_an_option_that_is_nearly_one_is_suggested_without_a_verb(refused):
    assert "did you mean --version?" in refused("--versio")


def test_a_message_behind_the_model_of_chat_says_what_to_type(refused, model):
    assert "`tokenmill generate --chat -p TEXT` answers one message" in refused("chat", model, "w1 w2")


def test_a_prefix_dir_that_is_a_file_is_refused_before_the_weights_are_read(refused, model, tmp_path, monkeypatch):
    (tmp_path / "notes.txt").write_text("important")
    monkeypatch.setattr("tokenmill.loader.load_model.WeightSource", None)
    err = refused("generate", model, "-p", "w1", "--prefix-dir", tmp_path / "notes.txt")
    assert "(set in --prefix-dir) is not allowed: a directory, which may be new" in err


def test_a_missing_device_is_a_sentence_of_its_own(tm, model, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    code, _, err = tm("generate", model, "-p", "w1", "--device", "cuda")
    assert (code, err) == (2, "error: this machine has no cuda device; use cpu, or auto\n")


def test_an_option_without_its_value_points_to_its_verb(refused, model):
    for line, verb in (
        ("generate -p", "generate"),
        ("generate MODEL -p w1 -n", "generate"),
        ("generate -m", "generate"),
        ("bench --shape", "bench run"),
        ("eval perplexity --window", "eval perplexity"),
    ):
        err = refused(*line.replace("MODEL", model).split())
        assert err == f"error: Option '{line.split()[-1]}' requires an argument; see `tokenmill {verb} --help`\n"


def test_values_are_read_as_their_types():
    line = (
        "MODEL -p a --prompt=b -n 007 --seed -3 --temperature 0.70 --top-p 1 --min-p .5 --prompt-file x --stop -c -p -d"
    )
    read = commands()["generate"].parse(line.split())
    assert read == {
        "model": "MODEL",
        "prompt": ["a", "b", "-d"],
        "max_new_tokens": 7,
        "seed": -3,
        "temperature": 0.7,
        "top_p": 1.0,
        "min_p": 0.5,
        "prompt_file": [Path("x")],
        "stop": ["-c"],
    }


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("serve --port 70000", "port = 70000 (set in --port) is not allowed: 0 to 65535"),
        ("quantize -o x --num-texts 1", "num_texts = 1 (set in --num-texts) is not allowed: 2 to 4096"),
        ("bench load --concurrency 0", "concurrency = "),
        (
            "quantize",
            "Missing option '--output': tokenmill quantize [OPTIONS] [MODEL]; see `tokenmill quantize --help`",
        ),
        ("info --json=1", "--json ignored explicit argument '1'; see `tokenmill info --help`"),
        ("info -- --json --json", "unexpected extra argument (--json); see `tokenmill info --help`"),
    ],
)
def test_what_is_out_of_range_missing_or_too_much(refused, line, said):
    assert said in refused(*line.split())


def test_a_value_out_of_the_environment_is_named_with_its_variable(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    prove = commands()["prove"]
    for typed, value, origin in (({}, "secret", "OPENAI_API_KEY"), ({"key": "other"}, "other", "--key")):
        context = prove.context({"url": "http://x", **typed})
        assert (context.values["key"], context.origins["key"]) == (value, origin)


def test_an_output_that_is_no_name_is_refused(refused, model, tmp_path):
    for verb in ("prefill", "profile", "quantize", "pack", "compile", "pull", "bench", "bench load"):
        err = refused(*verb.split(), *([] if verb == "bench load" else [model]), "-o", "-")
        assert "'-' (set in --output) is not allowed: the name of a file or directory; nothing of it can go to" in err
        bad = os.fsdecode(bytes(tmp_path / "x") + b"\xff")
        err = refused(*verb.split(), *([] if verb == "bench load" else [model]), "-o", bad)
        assert err.endswith("(set in --output) is not allowed: a name in UTF-8\n")
    assert not list(tmp_path.iterdir())


def test_an_argument_is_named_as_help_names_it(tm, refused, model, tmp_path):
    assert tm("pack", model, "-o", tmp_path / "x.packed", "-q")[0] == 0
    assert "(set in MODEL)" in refused("pack", tmp_path / "x.packed", "-o", tmp_path / "y.packed", "-q")


def test_a_letter_means_one_thing_in_all_verbs():
    meanings = {
        "-p": "--prompt",
        "-P": "--prompt",
        "-o": "--output",
        "-n": None,
        "-q": "--quiet",
        "-b": "--batch",
        "-t": "--threads",
    }
    for name, command in commands().items():
        for param in command.parameters:
            for letter, long in meanings.items():
                if letter in param.names and long is not None:
                    assert long in param.names, (name, letter)
            if "-p" in param.names:
                assert param.is_list and not name.startswith("bench"), name
            if "-P" in param.names:
                assert name.startswith("bench"), name
            if "--output" in param.names:
                assert "-o" in param.names, name


def test_an_alias_stands_for_an_option_that_a_verb_has():
    options = {option for command in commands().values() for option in command.known}
    assert set(ALIASES.values()) <= options | {"--model"}


@pytest.mark.parametrize("columns", [40, 80])
@pytest.mark.parametrize("verb", ["", *commands()])
def test_help_fits_and_nothing_is_cut(tm, monkeypatch, columns, verb):
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, _ = tm(*verb.split(), "--help")
    assert code == 0 and "..." not in re.sub(r"(\]|FILE|TASK|NAME)\.\.\.", "", out)
    text = out.partition("\nExamples:")[0]
    for line in text.splitlines():
        assert len(line) <= columns or line.strip().startswith("-"), line
    command = commands().get(verb)
    for param in command.parameters if command is not None else []:
        assert all(option in text for option in param.names)
        assert param.told.help, param.name


def test_the_words_of_the_help(tm):
    out = " ".join(tm("generate", "--help")[1].split())
    for words in (
        "Data type of weights and cache",
        "Size limit of that directory in MB; least recently used blocks are deleted",
        "Maximum number of tokens in one step",
        "stop at the first difference",
        "Repeat for a batch",
    ):
        assert words in out
    assert "Compute and save the KV cache of one prompt." in tm("prefill", "--help")[1]
    for verb in ("prefill", "decode"):
        assert "batch" not in tm(verb, "--help")[1].partition("Engine:")[0]


def test_the_help_of_chat_says_what_holds_there(tm):
    out = " ".join(tm("chat", "--help")[1].split())
    for words in (
        "Maximum number of new tokens of an answer. Default: all that the context leaves.",
        "Slots in the cache. Default: max-length, and as much again, at most 8192, for /fork.",
        "The same seed gives the same tokens. Default: a new one for each answer.",
    ):
        assert words in out
    assert "128" not in out and "--json " not in out and "max-sequences times" not in out


def test_the_module_is_the_command():
    done = subprocess.run([sys.executable, "-m", "tokenmill", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("tokenmill ")


def test_a_title_is_a_line_of_its_own():
    title = "a title that is much longer than the table below it"
    assert table_text(title, [("a", "b")]).splitlines()[0] == title
    assert table_text("", [("a", "b")]).count("\n") == 1


def test_a_request_that_cannot_be_served_names_options(tm, model):
    code, _, err = tm("generate", model, "-p", "w1", "-n", 5000)
    assert code == 2
    assert "--max-new-tokens of 5000 is over --max-length of 128" in err
    for num_tokens, length, remedy in (
        (50, 40, "or raise --max-length to 51"),
        (128, 128, "this is the model's own context"),
        (200, 40, "the model's own context is 128"),
    ):
        for new in ([], ["-n", -1]):
            code, _, err = tm("generate", model, "-p", "w1 " * num_tokens, "--max-length", length, "-q", *new)
            assert (code, err) == (
                2,
                f"error: the prompt has {num_tokens} tokens, and with --max-length of {length} not one more fits: "
                f"shorten the prompt ({remedy})\n",
            )
    assert "(or raise --max-length to 55)" in tm("generate", model, "-p", "w1 " * 50, "--max-length", 40, "-n", 5)[2]
    assert tm("generate", model, "-p", "w1 " * 50, "--max-length", 55, "-n", 5)[0] == 0
    code, _, err = tm("generate", model, "-p", "w1", "-n", 60, "--cache-tokens", 32)
    assert code == 2
    assert "change --cache-tokens (more), or --max-new-tokens or the prompt (fewer)" in err


def test_what_other_programs_call_it_or_mistake_is_told_in_plain_words(tm, model):
    for line, said in (
        ("-p w1 --temperature abc", "--temperature needs a number, not 'abc'; see `tokenmill generate --help`"),
        ("-p w1 -n x", "--max-new-tokens needs a whole number, not 'x'; see"),
        ("w2", "(w2): a prompt is given with -p; see"),
        ("-p w1 --ctx 5", "did you mean --max-length?"),
        ("-p w1 --device mps", "this machine has no mps device; use cpu, or auto"),
    ):
        code, out, err = tm("generate", model, *line.split())
        assert (code, out, err.count("\n")) == (2, "", 1) and said in err


def test_options_are_known_by_the_names_that_they_have_elsewhere(tm, refused, model):
    """The names are those of Ollama, llama.cpp, transformers and vLLM, or have the underscores of settings."""
    wanted = tm("generate", model, "-p", "w1", "-n", 3, "--dtype", "float32")
    assert wanted[0] == 0
    for names in (
        ("--num-predict", 3, "--dtype", "fp32"),
        ("--n-predict", 3, "--dtype", "torch.float32"),
        ("--max_new_tokens=3", "--dtype=float"),
        ("--max_tokens", 3, "--dtype", "float32"),
    ):
        assert tm("generate", model, "-p", "w1", *names)[:2] == wanted[:2]
    err = refused("generate", model, "-p", "w1", "-n", 3, "--assistant-model", "/no/such")
    assert "/no/such" in err and "No such option" not in err
    for setting, value, meant in (("speculate", "prompt_lookup", "suffix"), ("scheme", "int8", "q8")):
        assert f"did you mean {meant!r}?" in tm("generate", model, "-p", "w1", f"--{setting}", value)[2]
    for alias, name in (("half", "float16"), ("fp16", "float16"), ("bf16", "bfloat16"), ("fp32", "float32")):
        assert EngineConfig(dtype=alias).dtype == name


def test_advice_of_decode_is_in_words_of_the_command_line_and_works(tm, refused, model, tmp_path):
    file = tmp_path / "new" / "folder" / "x.kv"
    assert tm("prefill", model, "-p", "w1", "-o", file, "--dtype", "float32")[0] == 0, "folders are made"
    err = refused("decode", file, "--dtype", "bfloat16", "-n", 2)
    assert err.rstrip().endswith("load the model with --dtype float32, or open it with --convert")
    assert tm("decode", file, "--dtype", "float32", "-n", 2)[0] == 0
    assert tm("decode", file, "--dtype", "bfloat16", "-n", 2, "--convert")[0] == 0
    assert "lower --max-new-tokens (this is the model's own context)" in refused("decode", file, "-n", 4000)


def test_a_saved_cache_is_told_from_a_model_and_from_other_files(tm, model, tmp_path):
    file = tmp_path / "x.kv"
    code, out, _ = tm("prefill", model, "-p", "w1", "-o", file)
    assert code == 0 and out.startswith(f"{file}: 1 token, ")
    assert f"{file} is a saved cache, not a model: tokenmill decode {file}" in tm("generate", file, "-p", "w1")[2]
    (tmp_path / "p.txt").write_text("hello")
    assert f"{tmp_path / 'p.txt'} is no saved cache, or is damaged" in tm("decode", tmp_path / "p.txt")[2]
    shown = tm("info", file)[1]
    assert "Rope(" not in shown and "theta 10000.0" in shown


def test_one_is_singular_and_one_token_has_no_speed(tm, model):
    err = tm("generate", model, "-p", "w1", "-n", 1, "--threads", 1)[2].splitlines()[-1]
    assert "1 new token · " in err and ", 1 thread · " in err and "tokens/s" not in err


def test_an_unknown_peer_is_told_which_there_are(tm):
    for verb in (["install-peer", "foo"], ["peers", "--peer", "foo=/x"]):
        assert "error: no peer 'foo': there are " in tm("bench", *verb)[2]


def test_a_narrow_terminal_does_without_columns_and_cuts_no_data(monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    header, row = ("name", "speed", "memory", "hash"), ("a-long-name-of-a-file", "1,234.5", "12,345", "0123abcd")
    text = table_text("title", [row], header, expendable=("memory", "speed"))
    assert row[0] in text and row[3] in text and "12,345" not in text and "…" not in text
    assert "(no room for memory" in text and len(text.splitlines()[2]) <= 40
    monkeypatch.setenv("COLUMNS", "80")
    assert all(word in table_text("title", [row], header, expendable=("memory", "speed")) for word in row)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [(["--profile", "x"], "--preset"), (["--verify"], "--check-float32")],
)
def test_a_word_means_one_thing(tm, typed, meant):
    """`profile` is the verb that measures and `verify` the verb that checks receipts; options have other words."""
    code, _, err = tm("generate", *typed)
    assert code == 2 and meant in err
    assert not {"--profile", "--verify"} & set(tm("generate", "--help")[1].split())
