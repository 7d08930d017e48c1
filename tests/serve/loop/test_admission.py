"""Admission slots, and when a client that found none should come again."""

import math

import anthropic
import httpx2
import openai
import pytest
from openai._models import FinalRequestOptions

from tests.serve.conftest import served
from tokenmill.errors import CapacityError
from tokenmill.serve.http.errors import QueueFull
from tokenmill.serve.loop.limits import LONGEST_S, Admission


class Clock:
    now_s = 100.0

    def __call__(self):
        return self.now_s


class Rejections:
    """Replaces Metrics."""

    def __init__(self):
        self.reasons = []

    def count_rejected(self, reason):
        self.reasons.append(reason)


def test_as_many_as_there_are_and_not_one_more():
    admission = Admission(rejections := Rejections(), 4)
    with admission.slots(3):
        refused = pytest.raises(CapacityError, match="2 needed, 1 available; change max-queued-requests")
        with refused, admission.slots(2):
            pass
        assert rejections.reasons == ["queue_full"]
        with admission.slots(1):
            assert admission.num_open == 4
    assert admission.num_open == 0 and rejections.reasons == ["queue_full"]


def test_one_key_never_takes_all():
    admission = Admission(Rejections(), 4, num_keys=2)
    with admission.slots(2, b"one"):
        with pytest.raises(CapacityError, match="1 needed, 0 available"), admission.slots(1, b"one"):
            pass
        with admission.slots(2, b"two"):
            assert admission.num_open == 4
    with admission.slots(2, b"one"):
        assert admission.num_open == 2


@pytest.mark.parametrize(
    ("max_open", "num_keys", "of_one"), [(4, 1, 4), (4, 0, 4), (4, 2, 2), (9, 2, 5), (9, 3, 6), (1, 2, 1)]
)
def test_what_one_key_may_take(max_open, num_keys, of_one):
    assert Admission(Rejections(), max_open, num_keys).max_open_of_one == of_one


def test_the_mean_of_the_last_requests_is_divided_among_the_places():
    admission = Admission(Rejections(), 4, clock=(clock := Clock()))
    for seconds in (10, 30):
        with admission.slots(1):
            clock.now_s += seconds
    with admission.slots(4):
        assert admission.wait_s(1) == 5  # a place of four, each held for 20 s
        assert admission.wait_s(3) == 15
    admission.num_open = 4
    clock.now_s += 3600  # in which nobody asked
    assert admission.wait_s(1) == math.ceil(40 / 3 / 4)  # three requests of 40 s together


def test_a_server_that_is_stuck_sends_clients_away_for_longer_and_longer():
    admission = Admission(Rejections(), 4, clock=(clock := Clock()))
    assert admission.wait_s(1) == 1
    with admission.slots(1):
        clock.now_s += 40
        assert admission.wait_s(1) == 40
        clock.now_s += 10_000
        assert admission.wait_s(1) == LONGEST_S


@pytest.mark.parametrize("held_s", [30, 59, 60, 90, 150, 3600])
def test_official_clients_obey_the_longest_wait_too(held_s):
    """openai's in JavaScript waits as told only below 60 s: `0 <= timeoutMillis && timeoutMillis < 60 * 1000`."""
    admission = Admission(Rejections(), 1, clock=(clock := Clock()))
    with admission.slots(1):
        clock.now_s += held_s
        with pytest.raises(QueueFull) as full, admission.slots(1):
            pass
    told = full.value.retry_after_s
    assert told == min(held_s, LONGEST_S) < 60
    headers = httpx2.Headers({"retry-after": str(told)})
    for client in (openai.OpenAI(api_key="none"), anthropic.Anthropic(api_key="none")):
        options = FinalRequestOptions(method="post", url="/", max_retries=2)
        assert client._calculate_retry_timeout(2, options, headers) == told
        client.close()


def test_a_refusal_says_it(chat_model):
    with served(chat_model, {"max_sequences": 1}, max_queued=1) as server:
        clock = server.admission._clock = Clock()
        with server.admission.slots(2):
            clock.now_s += 14
            refused = httpx2.post(f"{server.url}/v1/completions", json={"prompt": "w1"}, timeout=60)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "7")
