"""Servers of several tiny models: one of words, one of bytes, and one of words whose text differs."""

from contextlib import contextmanager
from dataclasses import replace

import httpx2
import pytest

from tests.byte_model import save_byte_model
from tests.serve.conftest import SETTINGS, begun
from tests.word_model import save_chat_model
from tokenmill import load
from tokenmill.cli.serve.several import residents_of
from tokenmill.serve.http.address import Address, listen
from tokenmill.serve.models.hosted import ModelSetup
from tokenmill.serve.models.server import ModelsServer
from tokenmill.serve.start.options import Options
from tokenmill.settings.engine_config import EngineConfig

MODEL_BYTES = 10**9  # each counts so much, whatever it takes
PROMPTS = ["w3 w14 w15 w9 w2 w6", "w1 w2", "w30 w31 w32 w33 w34 w35 w36 w37 w38 w39"]


@pytest.fixture(scope="session")
def paths(tmp_path_factory):
    """Directories of models, by their names."""
    folder = tmp_path_factory.mktemp("models")
    return {
        "words": str(save_chat_model(folder / "w")),
        "bytes": str(save_byte_model(folder / "bytes", context=256)),
        "other": str(save_chat_model(folder / "o", tiny="qwen2")),
    }


@pytest.fixture(scope="session")
def wanted(paths):
    found = quiet_texts(paths, PROMPTS, 6)
    assert len(set(found.values())) >= 6
    return found


def quiet_texts(paths, prompts, count):
    """What each model says to each prompt, in so many tokens, by an engine that has nothing else to do."""
    found = {}
    for name, path in paths.items():
        with load(path, **SETTINGS, speculate="off") as quiet:
            found |= {(name, each): quiet.generate(each, max_new_tokens=count).text for each in prompts}
    return found


@contextmanager
def several(paths, room=3, settings=None, options=None, keep_alive_s=None, tell=None, plan=lambda setup: MODEL_BYTES):
    """A server of several models, of which `room` fit together; it is drained at the end. plan: the bytes of each."""
    taken = listen(Address(port=0))
    common = Options(**{"name": "", "drain_s": 10.0, "may_go": True, **(options or {})})
    config = EngineConfig(**(SETTINGS | (settings or {})))
    own = {name: common.session_dir and common.session_dir / name for name in paths}  # as the verb has it
    setups = [
        ModelSetup(
            replace(config, model=path),
            replace(common, name=name, session_dir=own[name]),
            None,
            keep_alive_s,
            MODEL_BYTES,
        )
        for name, path in paths.items()
    ]
    residents = residents_of(setups, int(room * MODEL_BYTES), len(common.keys), True, plan)
    server = ModelsServer(residents, taken, replace(common, name=next(iter(paths))), tell)
    server.url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    thread = begun(server)
    try:
        with httpx2.Client(base_url=server.url, timeout=120, trust_env=False, verify=False) as server.http:
            yield server
    finally:
        server.drain()
        thread.join(120)
        assert not thread.is_alive(), "the server does not end"


def loaded(server):
    """The names of the models that are in memory."""
    return [each.name for each in server.residents.all if each.state == "loaded"]
