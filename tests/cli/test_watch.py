"""`serve --watch`: what it reads of an engine, what it draws, and where it is refused."""

import threading

import pytest
from rich.console import Console

from tests.serve.conftest import SETTINGS
from tokenmill import SamplingParams, load
from tokenmill.cli.serve.live import Glance, TextRow, drawn, live_view, look
from tokenmill.serve.start.options import Options
from tokenmill.serve.start.server import Served

PROMPT = "w1 w2 w3 w4 w5 w6 w7 w8 w9"


@pytest.fixture
def served(model):
    engine = load(model, **SETTINGS | {"max_sequences": 1, "max_step_tokens": 6, "block_size": 4, "speculate": "off"})
    yield Served(engine, Options("words"))
    engine.close()


def shown(looks, lines=20):
    console = Console(width=200, force_terminal=False)
    with console.capture() as capture:
        console.print(drawn(looks, lines))
    return capture.get().splitlines()


def test_a_text_is_told_from_its_arrival_to_its_end(served):
    core = served.engine.core
    first, second = (core.request(PROMPT, SamplingParams(max_new_tokens=4, ignore_eos=True)) for _ in range(2))
    core.call(lambda: (core.submit(first), core.submit(second)))
    seen = []
    while not second.is_done:
        core.step()
        seen.append(core.call(lambda: look(served)))
    assert [[row.state for row in each.rows] for each in seen[:2]] == [["reads 67%", "waits"], ["writes", "waits"]]
    assert (seen[0].waiting, seen[0].rows[0].prompt, seen[0].rows[0].found) == (1, 9, 0)
    later = [each for each in seen if len(each.rows) == 1][-1]
    assert later.rows[0].found == 8 and later.waiting == 0, "the second one finds the first one's blocks"
    assert max(row.new for each in seen for row in each.rows) == 3 and seen[-1].rows == []


def test_what_is_drawn():
    row = TextRow("cmpl-1", "writes", 1200, 1000, 30, 12.34, 2.5)
    lines = shown([Glance("a", [row] * 3, 1, 0.5), Glance("b\x1b[2J", [], 0, 0.0)], lines=7)
    assert lines[0] == "a: 2 running, 1 waiting, 37.0 tokens/s, cache 50%, 83% of prompts found"
    assert lines[1].startswith("b␛[2J: 0 running"), "a name has no effect on the terminal"
    assert lines[2].split() == ["text", "state", "prompt", "found", "new", "tokens/s", "seconds"]
    assert lines[3].split() == ["cmpl-1", "writes", "1,200", "1,000", "30", "12.3", "2.5"]
    assert lines[5].split() == ["and", "1", "more", "text"] and len(lines) == 6
    assert shown([]) == ["no model is loaded"]


def test_it_ends_with_the_server(served, monkeypatch):
    """Also when the engine was closed meanwhile, as it is at the end."""
    looked = threading.Event()
    monkeypatch.setattr("tokenmill.cli.serve.live.LOOK_S", 0.001)

    def engines():
        looked.set()
        return [served]

    with live_view(True, engines):
        assert looked.wait(60)
        (thread,) = [each for each in threading.enumerate() if each.name == "live view"]
        served.engine.close()
    thread.join(60)
    assert not thread.is_alive()


def test_where_nobody_would_see_it(tm, model):
    code, _, err = tm("serve", model, "--watch")
    assert code != 0 and "watch" in err and "only where stderr is a terminal" in err


def test_not_with_replicas(tm, model, monkeypatch):
    monkeypatch.setattr("tokenmill.cli.serve.live.shows_bars", lambda: True)
    code, _, err = tm("serve", model, "--watch", "--replicas", 2)
    assert code != 0 and "only without --replicas" in err
