"""Servers in a thread, each at a free port, with tiny models that speak in words or write bytes, and their clients."""

import json
import socket
import threading
import time
from contextlib import contextmanager

import anthropic
import httpx2
import openai
import pytest

from tests.byte_model import save_byte_model
from tests.word_model import save_chat_model
from tokenmill import load
from tokenmill.serve.http.address import Address, listen
from tokenmill.serve.start.options import Options
from tokenmill.serve.start.server import Server

MODEL = "words"
SETTINGS = {"dtype": "float32", "max_length": 96, "max_sequences": 4, "block_size": 8}
FEW_STEPS = 3  # at most 33 tokens, of which a step that has drafts gives 16


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory):
    return save_chat_model(tmp_path_factory.mktemp("chat"))


def begun(server):
    """A thread in which a server serves to its end, which gives it the exit code of its process."""

    def serve():
        try:
            server.exit_code = 0 if server.serve_to_end() else 1
        except SystemExit as ended:
            server.exit_code = ended.code

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    while thread.is_alive() and not server.started:  # after the warm-up, which steps too
        time.sleep(0.001)
    return thread


@contextmanager
def served(path, settings=None, tell=None, **options):
    """A server that is drained at the end. `url` is where it is."""
    taken = listen(Address(port=0))
    options = Options(**{"name": MODEL, "drain_s": 5.0, **options})
    try:
        server = Server(load(path, **(SETTINGS | (settings or {}))), taken, options, tell)
    except BaseException:
        taken.close()
        raise
    server.url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    thread = begun(server)
    try:
        yield server
    finally:
        server.drain()
        thread.join(120)
        assert not thread.is_alive(), "the server does not end"


def wire(url, data, is_half_closed=False):
    """The answer of a server to bytes, until it closes the connection. is_half_closed: nothing can be sent any more."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=120) as connection:
        connection.sendall(data)
        if is_half_closed:
            connection.shutdown(socket.SHUT_WR)
        received = b""
        while more := connection.recv(65536):
            received += more
        return received


def hold(driver):
    """Let a few steps be made, then none until the event loop wants something, which is that somebody has left."""
    step, made = driver.core.loop.step, 0

    def held():
        nonlocal made
        while made >= FEW_STEPS and driver.core.thread._inbox.empty():
            time.sleep(0.005)
        made = 0 if made >= FEW_STEPS else made + 1
        step()

    driver.core.loop.step = held


@pytest.fixture(scope="module")
def server(chat_model):
    with served(chat_model) as server:
        yield server


@pytest.fixture(scope="module")
def quiet(chat_model):
    """An engine of the same settings, for what the texts should be."""
    return load(chat_model, **SETTINGS, speculate="off")


@pytest.fixture
def client(server):
    plain = openai.DefaultHttpxClient(verify=False)  # no TLS context, which takes longer than most of these tests
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120, http_client=plain
    ) as client:
        yield client


@pytest.fixture
def http(server):
    with httpx2.Client(base_url=server.url, timeout=120, trust_env=False, verify=False) as http:
        yield http


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """A browser."""
    from tests.serve.chromium import browser  # here, because selenium is needed by few of these tests

    with browser(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture
def page(driver, server):
    """The server's page, in storage of its own."""
    from tests.serve.chromium import opened

    with opened(driver, server.url) as page:
        yield page


WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Paris"]}, "days": {"enum": [1, 2]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
CLOCK = {"type": "object", "properties": {}, "additionalProperties": False}


@pytest.fixture
def claude(server):
    plain = anthropic.DefaultHttpxClient(verify=False)  # no TLS context, which takes longer than most of these tests
    with anthropic.Anthropic(
        base_url=server.url, api_key="none", max_retries=0, timeout=120, http_client=plain
    ) as client:
        yield client


@pytest.fixture(scope="session")
def byte_model(tmp_path_factory):
    return str(save_byte_model(tmp_path_factory.mktemp("bytes"), context=8192))


@pytest.fixture(scope="module")
def writer(byte_model):
    """A server of a model that writes bytes."""
    with served(byte_model, {"max_length": 8192, "block_size": 32}) as server:
        yield server


@pytest.fixture(scope="module")
def openai_writer(writer):
    plain = openai.DefaultHttpxClient(verify=False)
    with openai.OpenAI(
        base_url=f"{writer.url}/v1", api_key="none", max_retries=0, timeout=120, http_client=plain
    ) as client:
        yield client


@pytest.fixture(scope="module")
def claude_writer(writer):
    plain = anthropic.DefaultHttpxClient(verify=False)
    with anthropic.Anthropic(
        base_url=writer.url, api_key="none", max_retries=0, timeout=120, http_client=plain
    ) as client:
        yield client


THINKS = """{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}
{% endfor %}{% if add_generation_prompt %}assistant: {% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% else %}<think>
{% endif %}{% endif %}"""


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    """A server of a model that thinks before it answers, unless it is told not to."""
    path = save_byte_model(tmp_path_factory.mktemp("thinks"), context=4096)
    config = json.loads((path / "tokenizer_config.json").read_text())
    (path / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": THINKS}))
    with served(str(path), {"max_length": 4096, "block_size": 32}) as server:
        yield server
