"""Client libraries that agents are made with: each runs its page of calls against a server with a script's answers.

Those of Python have an environment of their own, libraries/requirements.txt: instructor, langchain-openai, litellm,
pydantic-ai, Ollama's own client, langchain-ollama, and the embeddings of langchain and llama-index. Vercel's `ai` and
Ollama's client are pinned in javascript/package.json.
"""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.serve.clients.test_javascript import node
from tests.serve.conftest import served
from tests.serve.scripted import call, save_scripted_model, scripted

pytestmark = pytest.mark.clients

HERE, REPOSITORY = Path(__file__).parent, Path(__file__).parents[3]
SETTINGS = {"max_length": 4096, "max_sequences": 4, "cache_tokens": 16_384}
NAMES = (
    *("instructor", "langchain", "litellm", "pydantic_ai", "ollama", "langchain_ollama", "litellm_ollama"),
    "embeddings",
)
PARIS = {"name": "Paris", "population": 2_100_000}


def answer(prompt):
    """The weather by a call and from its result, an object by a call or as JSON, or a greeting."""
    if "<tool_response>" in prompt:
        return "It is 21 degrees."
    names = re.findall(r'{"type": "function", "function": {"name": "(\w+)"', prompt)
    if "as an object" in prompt:
        return call(names[0], **PARIS) if names else json.dumps(PARIS, separators=(",", ":"))
    return call("get_weather", city="Paris") if "get_weather" in names else "Hello from the mill."


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    path = save_scripted_model(tmp_path_factory.mktemp("scripted"))
    lines = []
    with served(path, SETTINGS, lines.append) as server, scripted(server.driver.core, answer) as script:
        server.script, server.lines = script, lines
        yield server


@pytest.fixture(autouse=True)
def follows_the_script(server):
    server.script.departures.clear()
    server.lines.clear()
    yield
    assert not server.script.departures
    assert not [line for line in server.lines if " POST " in line and " 200 " not in line]


def python():
    """The Python of the libraries' environment."""
    found = Path(os.environ.get("TOKENMILL_LIBRARIES", REPOSITORY / ".venv" / "libraries")) / "bin" / "python"
    assert found.is_file(), f"there is no {found}: `make test-clients` makes it"
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_page_of_calls(server, name, tmp_path):
    own = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LITELLM_LOCAL_MODEL_COST_MAP": "True", "URL": server.url}
    program = HERE / "libraries" / f"calls_{name}.py"
    done = subprocess.run([python(), program], env=own, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_vercels_ai(server):
    said = node("--test", "--test-reporter=tap", "ai.test.js", URL=server.url)
    assert int(re.search(r"^# pass (\d+)$", said, re.MULTILINE)[1]) >= 4, said


def test_ollamas_own(server):
    said = node("--test", "--test-reporter=tap", "ollama.test.js", URL=server.url)
    assert int(re.search(r"^# pass (\d+)$", said, re.MULTILINE)[1]) >= 6, said
