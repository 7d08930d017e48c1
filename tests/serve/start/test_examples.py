"""Every example in Python runs; those in other languages do in clients/test_examples.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serve.conftest import served

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py") if path.name != "ray_data.py"))
def test_it_runs(chat_model, name):
    with served(chat_model, keys=("one-key",)) as server:
        where = {"OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": "one-key"}
        command = [sys.executable, "-W", "error", EXAMPLES / name]
        done = subprocess.run(command, env=os.environ | where, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) >= 5
