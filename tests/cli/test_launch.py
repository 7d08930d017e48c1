"""`tokenmill launch`: what an agent is started with, by programs of the agents' names that write down what they got."""

import json
import os
import shlex
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.serve.conftest import served
from tests.word_model import save_chat_model
from tokenmill.cli.launch.agents import AGENTS, AskedModel

PROGRAM = """#!{python}
import json, os, sys
files = {{word: open(word).read() for word in sys.argv[1:] if word.endswith("config.yaml")}}
json.dump([sys.argv[1:], dict(os.environ), files], open({out!r}, "w"))
sys.exit(3)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    model = save_chat_model(tmp_path_factory.mktemp("chat"))
    with served(model, name="local", keys=("a-key",)) as server:
        yield server


@pytest.fixture
def launched(tm, tmp_path, monkeypatch, server):
    """Starts an agent; its exit code, arguments, environment and files."""
    for agent in AGENTS.values():
        program = tmp_path / agent.program
        program.write_text(PROGRAM.format(python=sys.executable, out=str(tmp_path / "out.json")))
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "of-another-service")
    monkeypatch.setenv("NO_PROXY", "example.com")

    def launched(agent, *more):
        code, _, err = tm("launch", agent, "--url", server.url, "--api-key", "a-key", *more)
        return code, *json.loads((tmp_path / "out.json").read_text()), err

    return launched


def test_claude_asks_this_server_and_no_other_key_is_sent(launched, server):
    code, arguments, environment, _, err = launched("claude", "--", "-p", "Write hello.py.")
    assert code == 3 and arguments == ["--model", "local", "-p", "Write hello.py."]
    assert environment["ANTHROPIC_BASE_URL"] == server.url and environment["ANTHROPIC_AUTH_TOKEN"] == "a-key"
    assert "ANTHROPIC_API_KEY" not in environment and environment["ANTHROPIC_DEFAULT_HAIKU_MODEL"] == "local"
    assert environment["NO_PROXY"] == "example.com,127.0.0.1,localhost"
    assert "a text may have 96 tokens" in err and "--max-length 65536" in err
    assert os.environ["ANTHROPIC_API_KEY"] == "of-another-service" and "ANTHROPIC_BASE_URL" not in os.environ


def test_codex_gets_its_settings_as_arguments(launched, server):
    _, arguments, environment, _, _ = launched("codex", "--", "exec", "hi")
    values = [arguments[place + 1] for place, word in enumerate(arguments) if word == "-c"]
    found = tomllib.loads("\n".join(values))
    assert found["model"] == "local" and found["model_provider"] == "tokenmill" and arguments[-2:] == ["exec", "hi"]
    provider = found["model_providers"]["tokenmill"]
    assert provider["base_url"] == f"{server.url}/v1" and environment[provider["env_key"]] == "a-key"


def test_opencode_gets_them_in_a_variable(launched, server):
    _, arguments, environment, _, _ = launched("opencode")
    found = json.loads(environment["OPENCODE_CONFIG_CONTENT"])
    assert arguments == [] and found["model"] == "tokenmill/local"
    provider = found["provider"]["tokenmill"]
    assert provider["options"] == {"baseURL": f"{server.url}/v1", "apiKey": "a-key"}
    assert provider["models"]["local"]["limit"] == {"context": 96, "output": 12}


def test_continue_gets_a_file_that_is_gone_at_the_end(launched, server):
    _, arguments, _, files, _ = launched("continue")
    ((path, text),) = files.items()
    (model,) = yaml.safe_load(text)["models"]
    assert arguments == ["--config", path] and model["apiBase"] == f"{server.url}/v1"
    assert not Path(path).exists() and not Path(path).parent.exists()


@pytest.mark.parametrize(
    ("agent", "name"), [("qwen", "OPENAI_BASE_URL"), ("aider", "OPENAI_API_BASE"), ("mini", "OPENAI_API_BASE")]
)
def test_agents_of_openais_variables(agent, name, launched, server):
    code, arguments, environment, _, _ = launched(agent, "-q")
    assert code == 3 and environment[name] == f"{server.url}/v1" and environment["OPENAI_API_KEY"] == "a-key"
    assert "local" in " ".join(arguments) or environment["OPENAI_MODEL"] == "local"


@pytest.mark.parametrize("agent", AGENTS)
def test_what_would_be_started_is_shown(agent, tm, server, monkeypatch):
    monkeypatch.setenv("PATH", "")
    code, out, _ = tm("launch", agent, "--url", f"{server.url}/v1/", "--api-key", "a-key", "--show", "-q", "--", "a b")
    *_, last = out.splitlines()
    assert code == 0 and shlex.split(last)[0] == AGENTS[agent].program and shlex.split(last)[-1] == "a b"
    assert server.url in out


def test_what_is_refused(tm, server, monkeypatch, tmp_path):
    def said(*arguments):
        code, _, err = tm("launch", *arguments)
        assert code == 2
        return err

    at = ("--url", server.url, "--api-key", "a-key")
    assert "agent = 'cloud'" in said("cloud") and "claude" in said("cloud")
    assert "start one with `tokenmill serve MODEL`" in said("claude", "--url", "http://127.0.0.1:9")
    assert "a server whose key is given: --api-key" in said("claude", "--url", server.url)
    assert "an address as http://127.0.0.1:8000" in said("claude", "--url", "file:///etc/passwd")
    assert "model = 'other'" in said("claude", *at, "--model", "other")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "npm install -g @anthropic-ai/claude-code" in said("claude", *at)
    assert "an address without a query" in said("claude", "--url", f"{server.url}?x=1")


def test_names_in_any_script_are_written_for_each_agent():
    target = AskedModel("http://127.0.0.1:8000", 'a "b" \\ {file} 😀\x7f', "", 65536)
    words = AGENTS["codex"].told(target).arguments
    assert tomllib.loads("\n".join(words[1::2]))["model"] == target.model
    launch = AGENTS["continue"].told(target)
    assert yaml.safe_load(launch.file.replace("\x7f", ""))["models"][0]["name"] == target.model.replace("\x7f", "")
    assert AGENTS["claude"].told(target).arguments == ("--model", target.model)


def test_a_signal_is_for_the_agent_and_the_file_goes(server, tmp_path):
    (tmp_path / "cn").write_text(f"""#!{sys.executable}
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print(sys.argv[2], flush=True)
time.sleep(120)
""")
    (tmp_path / "cn").chmod(0o755)
    command = [sys.executable, "-m", "tokenmill", "launch", "continue", "--url", server.url, "--api-key", "a-key", "-q"]
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        file = Path(process.stdout.readline().strip())
        assert file.exists()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 7
    assert not file.exists() and not file.parent.exists()
