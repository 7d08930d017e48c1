"""OpenAI's JavaScript client, pinned in javascript/package.json: calls.test.js against real servers."""

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.empty import check_empty
from tests.serve.conftest import hold, served

pytestmark = pytest.mark.clients

FOLDER = Path(__file__).parent / "javascript"


def node(*arguments, **environment):
    """Run node in the folder of the JavaScript tests; what it prints."""
    program = shutil.which("node")
    assert program, "there is no node: `make test-clients` says how to get it"
    assert (FOLDER / "node_modules" / "openai").is_dir(), "`make test-clients` installs the client with npm ci"
    command = [program, *arguments]
    done = subprocess.run(
        command, cwd=FOLDER, env=os.environ | environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_call(chat_model):
    with (
        served(chat_model) as opened,
        served(chat_model, keys=("one-key",), max_body=20_000) as locked,
        served(chat_model, {"max_sequences": 1}, max_queued=0) as full,
        served(chat_model) as draining,
        served(chat_model) as held,
        full.admission.slots(1),
    ):
        hold(held.driver)
        draining.served.service.is_draining = True
        urls = {"OPEN": opened, "LOCKED": locked, "FULL": full, "DRAINING": draining, "HELD": held}
        said = node(
            "--test", "--test-reporter=tap", "calls.test.js", **{name: server.url for name, server in urls.items()}
        )
        assert int(re.search(r"^# pass (\d+)$", said, re.MULTILINE)[1]) >= 40, said
        ends_s = time.monotonic() + 20
        while held.admission.num_open or held.driver.core.trackers:
            assert time.monotonic() < ends_s, "a request that was cancelled still runs"
            time.sleep(0.01)
        check_empty(held.driver.core)
        assert 'finished_reason="length"' not in held.driver.metrics.text().decode()
