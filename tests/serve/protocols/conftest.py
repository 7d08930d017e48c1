"""A server whose model writes bytes, so that it can write calls, and Anthropic's own client."""

import json

import anthropic
import openai
import pytest

from tests.byte_model import save_byte_model
from tests.serve.conftest import served

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
