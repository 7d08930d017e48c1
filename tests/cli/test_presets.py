"""`--preset NAME` of chat, generate and serve, and `tokenmill presets`."""

import json
from pathlib import Path

import pytest

from tokenmill.cli.parser.config_file import presets_file
from tokenmill.cli.serve import verb as serve

TABLES = """
[miller]
model = "{model}"
system = "w1 w2"
temperature = 0.5
seed = 7
max_new_tokens = 3
max-length = 64
stop = ["w3"]

[plain]
max_new_tokens = 2
"""


@pytest.fixture
def presets(tmp_path, monkeypatch, model):
    """Writes the file of presets, by default with TABLES; its path."""
    monkeypatch.setenv("TOKENMILL_CONFIG", str(tmp_path))

    def write(text=TABLES):
        path = tmp_path / "presets.toml"
        path.write_text(text.format(model=model) if "{model}" in text else text)
        return path

    write()
    return write


@pytest.fixture
def taken(monkeypatch, tm):
    """Runs `serve` without serving; the settings of the engine that it would have loaded."""
    found = []
    monkeypatch.setattr(serve, "serve_one", lambda engine, *_: not found.append(engine))

    def run(*arguments):
        code, _, err = tm("serve", *arguments)
        assert code == 0, err
        return found.pop(), err

    return run


def test_chat_takes_model_system_sampling_and_engine_settings(presets, tm, model, piped):
    piped(b"w5\n")
    code, out, err = tm("chat", "--preset", "miller")
    assert code == 0 and len(out.split()) <= 3
    assert "of 64 tokens used" in err and err.count("w1 w2") == 0
    piped(b"w5\n")
    typed = tm("chat", model, "--system", "w1 w2", "--temperature", 0.5, "--seed", 7, "-n", 3, "-c", 64, "--stop", "w3")
    assert typed[:2] == (code, out)


def test_what_is_typed_goes_over_the_profile(presets, tm, model, piped):
    piped(b"w5\n")
    assert "of 32 tokens used" in tm("chat", "--preset", "miller", "--max-length", 32)[2]
    _, out, _ = tm("generate", "--preset", "plain", "-m", model, "-p", "w1", "-n", 5, "--json")
    assert len(json.loads(out)["tokens"]) == 5
    _, out, _ = tm("generate", "--preset", "plain", "-m", model, "-p", "w1", "--json")
    assert len(json.loads(out)["tokens"]) == 2


def test_generate_says_that_a_system_message_wants_a_conversation(presets, tm):
    code, _, err = tm("generate", "--preset", "miller", "-p", "w1")
    assert code == 2 and "only together with --chat" in err
    assert f"(set in {presets_file()}, [miller])" in err
    assert tm("generate", "--preset", "miller", "-p", "w1", "--chat")[0] == 0


def test_serve_leaves_out_what_requests_say_for_themselves(presets, taken):
    config, err = taken("--preset", "miller")
    assert config.max_length == 64
    assert "serve has no system, temperature, max_new_tokens, stop, so that is left out" in err


def test_a_config_file_goes_over_a_profile_and_what_is_typed_over_both(presets, taken, tmp_path):
    file = tmp_path / "serve.toml"
    file.write_text("max_length = 48\n")
    both = ("--preset", "miller", "--config", file)
    assert taken(*both)[0].max_length == 48
    assert taken(*both[2:], *both[:2])[0].max_length == 48
    assert taken(*both, "-c", 40)[0].max_length == 40


WRONG = {
    "[x]\ntemprature = 1": "temprature = 1 (set in {path}, [x]) is not allowed: no such option; did you mean",
    "[x]\ntemperature = 'hot'": "temperature = 'hot' (set in {path}, [x]) is not allowed: a number",
    "[x]\ntemperature = -1": "temperature = -1.0 (set in {path}, [x]) is not allowed",
    "[x]\nprogram = 'fast'": "program = 'fast' (set in {path}, [x]) is not allowed: use one of auto, native",
    "[x]\nmax_length = 3.5": "max_length = 3.5 (set in {path}, [x]) is not allowed: a whole number",
    "[x]\nseed = 1\nrandom = 2": "random = 2 (set in {path}, [x]) is not allowed: no such option",
    "[x]\npreset = 'y'": "preset = 'y' (set in {path}, [x]) is not allowed: no such option",
    "[x]\nmax_new_tokens = 1\nnum-predict = 2": "given once, and another name of it is there too",
    "x = 1": "x = 1 (set in {path}) is not allowed: only within a preset",
    "[x": "is not allowed: a TOML file (",
    "[y]": "preset = 'x' (set in --preset) is not allowed: the name of a preset; {path} has y",
    "[xx]": "did you mean 'xx'?",
    "": "{path} has none",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_is_named_with_file_table_key_and_what_is_allowed(presets, tm, piped, text):
    path = presets(text)
    piped(b"")
    code, out, err = tm("chat", "--preset", "x")
    assert (code, out) == (2, "") and "Traceback" not in err
    assert WRONG[text].format(path=path) in err.splitlines()[-1]


def test_without_a_file(tmp_path, monkeypatch, tm):
    monkeypatch.setenv("TOKENMILL_CONFIG", str(tmp_path))
    assert f"{tmp_path / 'presets.toml'} is not there" in tm("chat", "--preset", "x")[2]
    assert "is not there, so there are no presets" in tm("presets")[1]
    (tmp_path / "presets.toml").mkdir()
    assert tm("chat", "--preset", "x")[0] == 2


def test_the_list_says_where_they_come_from_and_what_is_unknown(presets, tm, model):
    path = presets(TABLES + "[odd]\ntemprature = 3\n[typed]\nseed = 1.5\n")
    code, out, _ = tm("presets")
    assert code == 0 and out.splitlines()[0] == str(path)
    assert model in out and "temperature 0.5, seed 7" in out
    odd, typed = out.splitlines()[-2:]
    assert odd.startswith(f"odd: temprature = 3 (set in {path}, [odd]) is not allowed: no such option; did you mean")
    assert typed == f"typed: seed = 1.5 (set in {path}, [typed]) is not allowed: a whole number"
    document = json.loads(tm("presets", "--json")[1])
    assert document["path"] == str(path)
    assert [each["name"] for each in document["presets"]] == ["miller", "plain", "odd", "typed"]
    assert [each["problem"] is None for each in document["presets"]] == [True, True, False, False]


def test_the_list_says_which_values_are_out_of_range(presets, tm):
    path = presets(
        "[hot]\ntemperature = 500\n[fast]\nprogram = 'fast'\n[bias]\nlogit_bias = ['x']\n[good]\nlogit_bias = ['5=1']"
    )
    problems = {each["name"]: each["problem"] for each in json.loads(tm("presets", "--json")[1])["presets"]}
    assert problems["hot"].startswith(f"temperature = 500.0 (set in {path}, [hot]) is not allowed")
    assert "program = 'fast'" in problems["fast"] and problems["bias"] and problems["good"] is None


def test_what_json_has_no_form_for(presets, tm):
    presets("[x]\nseed = 2020-01-01\ntemperature = nan\nstop = ['a', 07:30:00]\n")
    text = tm("presets", "--json")[1]
    (found,) = json.loads(text, parse_constant=pytest.fail)["presets"]
    assert found["options"] == {"seed": "2020-01-01", "temperature": "nan", "stop": ["a", "07:30:00"]}
    assert "seed = " in found["problem"]


def test_a_table_that_is_nested_too_deeply(presets, tm):
    presets("a=" + "[" * 5000 + "]" * 5000)
    code, _, err = tm("presets")
    assert code == 2 and "is not allowed: a TOML file (" in err and "Traceback" not in err


def test_where_the_file_is(monkeypatch, tmp_path):
    for name in ("TOKENMILL_CONFIG", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert presets_file() == tmp_path / ".config" / "tokenmill" / "presets.toml"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    assert presets_file() == tmp_path / "xdg" / "tokenmill" / "presets.toml"
    monkeypatch.setenv("TOKENMILL_CONFIG", "~/mine")
    assert presets_file() == Path(tmp_path / "mine" / "presets.toml")
