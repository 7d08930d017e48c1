"""Options of `tokenmill serve`, up to the point where it would listen: what they become, and where they come from."""

import subprocess
import sys

import pytest

from tokenmill.cli.serve import verb as serve
from tokenmill.errors import ConfigError
from tokenmill.serve.http.address import Address, listen


@pytest.fixture
def asked(tm, monkeypatch):
    """Runs `serve` with some arguments; the settings that it would serve with, or what it says on stderr."""

    def run(*arguments):
        seen = []
        monkeypatch.setattr(serve, "serve_one", lambda *given: seen.append(given[:6]) or True)
        code, _, err = tm("serve", *arguments)
        assert code == (0 if seen else 2), err
        return seen[0] if seen else err

    return run


@pytest.fixture
def written(tmp_path):
    """Writes a file for --config; its path."""

    def write(text):
        (tmp_path / "server.toml").write_text(text)
        return tmp_path / "server.toml"

    return write


@pytest.mark.parametrize(
    ("typed", "setting", "value"),
    [
        ("--max-model-len 64", "max_length", 64),
        ("--ctx-size 64", "max_length", 64),
        ("--max-num-seqs 3", "max_sequences", 3),
        ("--parallel 3", "max_sequences", 3),
        ("--max-num-batched-tokens 99", "max_step_tokens", 99),
        ("--kv-cache-dtype int8", "cache_format", "int8"),
        ("--kv-cache-dtype auto", "cache_format", "dense"),
        ("--no-prefix-caching", "prefix_cache", False),
        ("--no-enable-prefix-caching", "prefix_cache", False),
        ("--enable-prefix-caching", "prefix_cache", True),
    ],
)
def test_names_of_other_servers(asked, typed, setting, value):
    engine, *_ = asked(*typed.split())
    assert getattr(engine, setting) == value


def test_a_template_that_is_no_file_is_refused_before_the_model_is_looked_for(asked, tmp_path):
    said = asked("no-such-model", "--chat-template", tmp_path / "absent.jinja")
    assert "absent.jinja' (set in --chat-template) is not allowed: a file with a template in Jinja" in said


@pytest.mark.parametrize("host", ["192.0.2.1", "no-host.invalid"])
def test_an_address_that_is_not_this_machines_is_told_of_the_host(host):
    with pytest.raises(
        ConfigError, match=f"host = '{host}' .set in --host. is not allowed: an address of this machine"
    ):
        listen(Address(host, 0))


def folder(asked, *arguments):
    *_, options, _, _ = asked(*arguments)
    return options.session_dir


def test_where_sessions_are_kept(asked, monkeypatch, tmp_path):
    monkeypatch.setenv("TOKENMILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TOKENMILL_DATA", str(tmp_path / "data"))
    assert folder(asked) == tmp_path / "data" / "sessions"
    assert folder(asked, "--session-dir", str(tmp_path)) == tmp_path
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TOKENMILL_DATA", str(tmp_path / "file" / "data"))
    assert folder(asked) == tmp_path / "cache" / "sessions"


def test_a_cache_format_that_there_is_not(asked):
    assert "use one of auto, dense, int8" in asked("--kv-cache-dtype", "fp8")


def test_defaults(asked):
    _, num_sequences, template, options, address, quiet = asked()
    assert (num_sequences, template, options.seed, address.port, quiet) == (None, None, None, 8000, False)
    assert asked("--max-sequences", 1)[1] == 1


def test_a_default_is_shown_once(tm):
    text = " ".join(tm("serve", "--help")[1].split())
    assert "Default: 8 for each processor, at most 64." in text
    assert text.count("[default: 1]") == 1 and "[default: 512]" in text  # of --tensor-parallel


def test_options_out_of_a_file(asked, written, monkeypatch):
    path = written(
        """
        model = "some-model"
        port = 9000
        max_queued_requests = 5
        shutdown-timeout = 3
        strict = true
        prefix-cache = false
        max-num-seqs = 4
        api-key-file = "keys"
        """
    )
    path.with_name("keys").write_text("secret\n")
    monkeypatch.chdir(path.parent)
    engine, num_sequences, _, options, address, _ = asked("--config", path)
    assert (engine.model, num_sequences, engine.prefix_cache) == ("some-model", 4, False)
    assert (address.port, options.max_queued, options.drain_s, options.is_strict) == (9000, 5, 3.0, True)
    assert options.keys == ("secret",)
    typed = "other-model --port 9001 --max-queued-requests 6 --max-sequences 2 --prefix-cache --config"
    engine, num_sequences, _, options, address, _ = asked(*typed.split(), path)
    assert (engine.model, num_sequences, engine.prefix_cache) == ("other-model", 2, True)
    assert (address.port, options.max_queued, options.is_strict) == (9001, 6, True)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("prot = 9000", ["prot = 9000", "did you mean 'port'?", "there are adapter, aot-fallback, ", "server.toml"]),
        ("config = 'other.toml'", ["config = 'other.toml'", "no such option"]),
        ("no-prefix-cache = true", ["no-prefix-cache", "did you mean 'prefix-cache'?"]),
        ("port = '9000'", ["port = '9000' (set in ", "server.toml) is not allowed: a whole number"]),
        ("port = true", ["port = True", "a whole number"]),
        ("port = 1.5", ["port = 1.5", "a whole number"]),
        ("port = [9000]", ["port = [9000]", "a whole number"]),
        ("strict = 1", ["strict = 1", "true or false"]),
        ("host = 5", ["host = 5", "a text"]),
        ("shutdown-timeout = 'x'", ["shutdown-timeout = 'x'", "a number"]),
        ("session-dir = 5", ["session-dir = 5", "a text"]),
        ("[port]\na = 1", ["port = {'a': 1}", "a whole number"]),
        ("max-length = 9\nmax-model-len = 9", ["max-model-len = 9", "given once"]),
        ("max-length = 0", ["max_length = 0 (set in ", "server.toml)"]),
        ("cache-format = 'fp8'", ["cache_format = 'fp8' (set in ", "server.toml)", "auto, dense, int8"]),
        ("port = 70000", ["port = 70000 (set in ", "not allowed: 0 to 65535"]),
        ("port 9000", ["a TOML file (", "line 1"]),
        ("host = '\xff'", ["a TOML file ("]),
    ],
)
def test_a_file_that_is_refused(asked, written, text, says):
    path = written("")
    path.write_bytes(text.encode("latin-1"))
    said = asked("--config", path)
    assert said.startswith("error: ") and said.count("\n") == 1
    assert all(each in said for each in says), said


def test_a_file_that_is_not_there(asked, tmp_path):
    assert "a TOML file (No such file" in asked("--config", tmp_path / "missing.toml")


def test_seed(asked):
    assert asked("--seed", 7)[3].seed == 7
    assert "--seed" in asked("--seed", "-1")


@pytest.mark.slow
def test_offline():
    command = [sys.executable, "-m", "tokenmill", "serve", "no-such-owner/model", "--offline", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "forbids asking the hub" in done.stderr


def test_a_chat_template_out_of_a_file(tm, model, tmp_path):
    (tmp_path / "own.jinja").write_text("w5 {{ messages[-1]['content'] }} w9")
    template = ["--chat-template", tmp_path / "own.jinja"]
    ways = ["generate", model, "-n", 4, "-q", "-p"]
    assert tm(*ways, "w2", "--chat", *template) == tm(*ways, "w5 w2 w9")
    assert "only together with --chat" in tm(*ways, "w2", *template)[2]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "No such file"),
        ("{% if %}", "is wrong in line 1"),
        ("{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}", "more work than its limit"),
    ],
)
def test_a_chat_template_that_is_refused(refused, model, tmp_path, text, says):
    if text is not None:
        (tmp_path / "own.jinja").write_text(text)
    err = refused("generate", model, "--chat", "-p", "w1", "--chat-template", tmp_path / "own.jinja", "-q")
    assert says in err and err.count("\n") == 1


def test_an_address_says_the_port_that_the_system_has_chosen():
    with listen(Address(port=0)) as taken:
        port = taken.getsockname()[1]
        assert port and Address(port=0).at(taken).url == f"http://127.0.0.1:{port}"
