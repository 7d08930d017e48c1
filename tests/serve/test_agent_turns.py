"""Turns of an agent at a server that is killed in between: what stood before is found, in memory or on disk."""

from argparse import Namespace

import httpx2
import pytest
from benchmarks.agent_turns import run

from tests.serve.conftest import served
from tests.serve.scripted import in_turn, save_scripted_model, scripted

BLOCK = 32  # of the server, by default
SETTINGS = {"max_length": 4096, "max_sequences": 2, "cache_tokens": 12_000, "block_size": 16}


@pytest.mark.slow
def test_a_server_that_was_killed_finds_what_it_had_computed(tmp_path):
    rows = run(Namespace(turns=4, tokens=3000, new=100, kill="2", size="tiny", max_length=8000), tmp_path)
    assert [row["started_s"] is not None for row in rows] == [False, False, True, False]
    for row in rows[1:]:
        # The last token of an answer is not fed, so that a block may lack it.
        assert row["stood"] - BLOCK <= row["found"] <= row["stood"]


def test_the_next_server_finds_what_the_last_one_computed(tmp_path):
    model = save_scripted_model(tmp_path / "model")
    messages, tokens = [{"role": "system", "content": "Look here. " * 200}], []
    for number in range(2):
        messages.append({"role": "user", "content": f"And {number}?"})
        with (
            served(model, SETTINGS | {"prefix_dir": str(tmp_path)}) as server,
            scripted(server.driver.core, in_turn([], otherwise=f"Seen {number}.")) as script,
        ):
            done = httpx2.post(
                f"{server.url}/v1/chat/completions", json={"messages": messages}, trust_env=False, timeout=120
            )
        messages.append(done.json()["choices"][0]["message"])
        tokens.append((done.json()["usage"], script.sequences[0].tokens))
    (_, first), (usage, second) = tokens
    stood = len(first) - 1
    assert first[:stood] == second[:stood]
    assert stood - 16 <= usage["prompt_tokens_details"]["cached_tokens"] <= stood
