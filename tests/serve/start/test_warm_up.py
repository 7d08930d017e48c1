"""The warm-up, before the server says that it is ready."""

import httpx2
import pytest

from tests.serve.conftest import served
from tests.word_model import save_chat_model
from tokenmill import load
from tokenmill.engine.loop import Observer
from tokenmill.serve.start.server import use_engine

KEYS = ("one-key",)


class Steps(Observer):
    """Counts the steps that were made."""

    count = 0

    def phase(self, name, plan):
        self.count += name == "begin"


@pytest.mark.parametrize(("block_size", "keys"), [(8, KEYS), (2, ()), (1, ())])
def test_the_routes_were_used_and_nothing_counts_it(chat_model, tmp_path, block_size, keys):
    prefixes, sessions, lines = tmp_path / "prefixes", tmp_path / "sessions", []
    prefixes.mkdir()
    settings = {"prefix_dir": str(prefixes), "block_size": block_size}
    headers = {"Authorization": "Bearer one-key"}
    with (
        served(chat_model, settings, lines.append, session_dir=sessions, keys=keys) as server,
        httpx2.Client(base_url=server.url, headers=headers, timeout=60) as http,
    ):
        assert http.get("/ready").status_code == 200
        assert server.served.app.middleware_stack is not None
        found = http.get("/metrics").text.splitlines()
        constant = ("# ", "tokenmill:cache_config_info")
        assert not [
            line
            for line in found
            if not line.startswith(constant) and "_created" not in line and not line.endswith(" 0.0")
        ]
        assert set(http.get("/v1/cache").json()["blocks"]) == {"f"}
    assert len(lines) == 2, "of /ready and /metrics"
    assert not [path for path in [*prefixes.rglob("*"), *sessions.rglob("*")] if path.is_file() and path.stat().st_size]


@pytest.mark.parametrize("missing", ["tokenizer_config.json", "tokenizer.json"])
def test_a_model_without_a_template_or_a_tokenizer(tmp_path, missing):
    path = save_chat_model(tmp_path)
    (tmp_path / "llama" / missing).unlink()
    with served(path) as server:
        body = {"prompt": [1, 2], "max_tokens": 2}
        assert httpx2.get(f"{server.url}/ready", timeout=60).status_code == 200
        assert httpx2.post(f"{server.url}/v1/completions", json=body, timeout=60).status_code == 200


@pytest.mark.parametrize(("max_length", "num_steps"), [(1, 0), (2, 1), (3, 2), (96, 2)])
def test_steps_of_short_contexts(chat_model, max_length, num_steps):
    with load(chat_model, dtype="float32", max_length=max_length) as engine:
        with engine.core.observed_by(steps := Steps()):
            use_engine(engine)
        assert steps.count >= num_steps and bool(steps.count) == bool(num_steps)
