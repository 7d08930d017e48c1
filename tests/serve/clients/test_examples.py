"""Every example in JavaScript and for curl runs."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.serve.clients.test_javascript import FOLDER
from tests.serve.conftest import served

pytestmark = pytest.mark.clients

EXAMPLES = Path(__file__).parents[3] / "examples"
PROGRAMS = {".mjs": "node", ".sh": "sh"}


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.iterdir() if path.suffix in PROGRAMS))
def test_it_runs(chat_model, tmp_path, name):
    (tmp_path / "node_modules").symlink_to(FOLDER / "node_modules")
    example = shutil.copy(EXAMPLES / name, tmp_path)
    with served(chat_model, keys=("one-key",), session_dir=tmp_path / "sessions") as server:
        where = {"OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": "one-key"}
        command = [PROGRAMS[Path(name).suffix], example]
        done = subprocess.run(command, env=os.environ | where, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.split()) >= 5
    if name == "requests.sh":
        assert "data: [DONE]" in done.stdout and '"erased":true' in done.stdout
