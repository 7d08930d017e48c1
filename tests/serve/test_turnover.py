"""When a client that found no place should come again."""

import httpx2

from tests.serve.conftest import served
from tokenmill.serve.turnover import LONGEST_S, Turnover


class Clock:
    now_s = 100.0

    def __call__(self):
        return self.now_s


def test_the_mean_of_the_last_requests_is_divided_among_the_places():
    turnover = Turnover(clock := Clock())
    for seconds in (10, 30):
        with turnover.holding():
            clock.now_s += seconds
    assert turnover.wait_s(1, 4) == 5  # a place of four, each held for 20 s
    assert turnover.wait_s(3, 4) == 15
    clock.now_s += 3600  # in which nobody asked
    assert turnover.wait_s(1, 4) == 5


def test_a_server_that_is_stuck_sends_clients_away_for_longer_and_longer():
    turnover = Turnover(clock := Clock())
    assert turnover.wait_s(1, 0) == 1
    with turnover.holding():
        clock.now_s += 40
        assert turnover.wait_s(1, 1) == 40
        clock.now_s += 10_000
        assert turnover.wait_s(1, 1) == LONGEST_S


def test_a_refusal_says_it(chat_model):
    with served(chat_model, {"max_sequences": 1}, max_queued=1) as server:
        server.driver._turnover = Turnover(clock := Clock())
        with server.driver.admission_slots(2):
            clock.now_s += 14
            refused = httpx2.post(f"{server.url}/v1/completions", json={"prompt": "w1"}, timeout=60)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "7")
