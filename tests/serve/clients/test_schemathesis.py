"""schemathesis makes requests out of /openapi.json, good and bad ones, and checks every answer against it.

One of its checks is left out: that whatever has the form of a request is accepted. Which token ids there are, how many
texts run at once and what a chat template takes, no schema says.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from tests.serve.conftest import served

pytestmark = pytest.mark.clients

# A loaded machine answers late, and a `timeout` of next to nothing passes before there is an answer.
CONFIG = """
request-timeout = 60

[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", "504"]
"""
# For each route, beside those of its coverage phase; 100 make over 2,000 cases.
EXAMPLES = os.environ.get("TOKENMILL_EXAMPLES", "20")


def test_every_answer_is_as_documented(chat_model, tmp_path):
    program, report = Path(sys.executable).with_name("schemathesis"), tmp_path / "report.json"
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    key = "Authorization: Bearer one-key"
    options = f"--checks all --exclude-checks positive_data_acceptance --seed 1 --no-color -n {EXAMPLES}".split()
    with served(chat_model, keys=("one-key",), session_dir=tmp_path / "sessions") as server:
        command = [program, "run", f"{server.url}/openapi.json", "-H", key, "--report-json-path", report, *options]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=1800, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert httpx2.get(f"{server.url}/ready", timeout=60).status_code == 200
    found = json.loads(report.read_text())
    assert found["complete"] and found["operations"]["tested"] == found["operations"]["total"] >= 13
    assert found["test_cases"]["generated"] >= 1000 and not found["failures"]
