"""lm-eval's `local-completions`, which asks for log-probabilities of prompts, scores a task as the library does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serve.conftest import served

pytestmark = pytest.mark.clients

PROGRAM = Path(__file__).with_name("lm_eval_scores.py")


def test_scores_are_those_of_the_library(chat_model):
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OPENAI_API_KEY": "none"}
    with served(chat_model) as server:
        command = [sys.executable, PROGRAM, server.url, chat_model]
        done = subprocess.run(
            command, env=os.environ | offline, capture_output=True, text=True, timeout=600, check=False
        )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    through_server, through_library = found["server"], found["library"]
    assert through_server["metrics"] == through_library["metrics"] and len(through_server["metrics"]) >= 2
    for answers, wanted in zip(through_server["answers"], through_library["answers"], strict=True):
        assert [value for value, _ in answers] == pytest.approx([value for value, _ in wanted], abs=1e-4)
        assert [is_greedy for _, is_greedy in answers] == [is_greedy for _, is_greedy in wanted]
