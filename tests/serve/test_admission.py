"""Admission slots, and when a client that found none should come again."""

import math

import httpx2
import pytest

from tests.serve.conftest import served
from tokenmill.errors import CapacityError
from tokenmill.serve.admission import LONGEST_S, Admission


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


def test_a_refusal_says_it(chat_model):
    with served(chat_model, {"max_sequences": 1}, max_queued=1) as server:
        clock = server.admission._clock = Clock()
        with server.admission.slots(2):
            clock.now_s += 14
            refused = httpx2.post(f"{server.url}/v1/completions", json={"prompt": "w1"}, timeout=60)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "7")
