"""An agent whose server is killed and started again while it runs a command: it notices nothing, and what was computed
is found."""

import re
import threading
import time

import httpx2
import pytest
from benchmarks.agent_turns import Server

from tests.serve.agents.conftest import Desk
from tests.serve.scripted import call

pytestmark = pytest.mark.clients

WAIT = "touch waiting; until test -e restarted; do sleep 0.1; done; echo it is there again"
DONE = "All is as it was."


def counted(url):
    """Tokens of prompts, and those of them that were found, since the start."""
    text = httpx2.get(f"{url}/metrics", trust_env=False, timeout=120).text
    names = ("prompt_tokens_total", "prompt_tokens_cached_total")
    return [float(re.search(rf"^\w+:{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)[1]) for name in names]


def test_claude_code_notices_no_kill(tmp_path, model):
    desk = Desk("", tmp_path / "task", tmp_path / "home", None)
    desk.folder.mkdir()
    desk.home.mkdir()
    answers = [
        call("Bash", command="echo one", description="One"),
        call("Bash", command=WAIT, description="Wait"),
        DONE,
    ]
    server = Server(tmp_path, model, answers, 60_000, name="local")
    desk.url = server.url

    def restart():
        while not (desk.folder / "waiting").exists():
            time.sleep(0.05)
        server.kill()
        server.start()
        (desk.folder / "restarted").touch()

    threading.Thread(target=restart, daemon=True).start()
    try:
        assert DONE in desk.documented("Claude Code", CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1")
        asked, found = counted(server.url)
        assert asked > 10_000 and found / asked > 0.98  # all but the last command and its result
    finally:
        server.kill()
