"""Faults of each kind are found by the case that is for them; a server without one passes."""

import sys

import httpx2
import pytest

from tests.prove.fake import Fake, crowds_of, running
from tokenmill.errors import TokenmillError
from tokenmill.hub.progress import Progress
from tokenmill.prove.report import document, notes
from tokenmill.prove.run import prove
from tokenmill.prove.settings import Settings
from tokenmill.registry import PROOFS

SETTINGS = {"requests": 1000, "max_tokens": 6, "seed": 3, "concurrency": 4}


def slow(*values):
    """Parameters of a test that takes a second."""
    return pytest.param(*values, marks=pytest.mark.slow)


def check(fake, **settings):
    """The outcome of a check of a fake; it may restart it."""
    with crowds_of(fake), running(fake.app) as url:

        async def restart():
            async with httpx2.AsyncClient(trust_env=False, timeout=120, verify=False) as http:
                await http.post(f"{url}/restart")

        return prove(Settings(url, **{**SETTINGS, **settings}), restart)


def found_by(outcome):
    return {tally.name for tally in outcome.tallies if tally.total.differ or tally.logprobs.differ}


@pytest.mark.slow
def test_a_right_server_passes():
    outcome = check(Fake(), logprobs=True)
    assert outcome.num_differences == 0 and outcome.num_failed == 0
    for tally in outcome.tallies:
        assert tally.total.comparisons and not tally.empty and len(tally.seen) > 1
        assert not tally.not_offered or tally.name == "continued"  # no ids for a conversation
    assert {key for tally in outcome.tallies for key in tally.by} == {
        (route, temperature) for route in ("completions", "chat/completions") for temperature in (0.0, 0.8)
    }
    assert outcome.num_requests == 1000 and outcome.ended_by == "--requests 1000"


QUICK = ("crowd", "streamed")


@pytest.mark.parametrize("fault", [each if each in QUICK else slow(each) for each in PROOFS])
def test_a_fault_is_found(fault):
    outcome = check(Fake(fault), cases=(fault,), comparisons=30, restart="unused")
    assert found_by(outcome) == {fault}
    (tally,) = outcome.tallies
    example = tally.examples[0].facts()
    assert example["texts"][0] != example["texts"][1] and example["first_difference"]


@pytest.mark.long
@pytest.mark.parametrize("fault", ["warm", "continued", "restart"])
def test_a_fault_is_found_by_its_own_case_alone(fault):
    """What has to do with the state of a server, and not with who is beside whom, is not blamed on neighbours."""
    assert found_by(check(Fake(fault), requests=700, cases=tuple({*PROOFS} - {"restart"} | {fault}), restart="")) == {
        fault
    }


@pytest.mark.slow
def test_log_probabilities_that_differ_are_found_if_they_are_compared():
    outcome = check(Fake("logprobs"), cases=("crowd",), logprobs=True, comparisons=20)
    (tally,) = outcome.tallies
    assert tally.logprobs.differ and not tally.total.differ
    assert tally.max_logprob_distance == pytest.approx(1e-6)
    assert outcome.num_differences == tally.logprobs.differ
    assert not check(Fake("logprobs"), cases=("crowd",), logprobs=True, tolerance=1e-5, comparisons=20).num_differences
    assert not check(Fake("logprobs"), cases=("crowd",), comparisons=20).num_differences


@pytest.mark.parametrize(
    ("without", "case", "reason"),
    [
        ("n", "copies", "n: n has no effect"),
        slow("seed", "neighbours", "seed: 4 requests with one seed gave 4 texts: it has no effect"),
        slow("stream", "streamed", "stream: "),
        slow("return_token_ids", "continued", "ids as a prompt: no token ids to continue"),
    ],
)
def test_what_a_server_does_not_do_is_no_pass(without, case, reason):
    with pytest.raises(TokenmillError, match=r"not offered|nothing"):
        raise_if_nothing(outcome := check(Fake(without=[without]), cases=(case,), comparisons=10))
    (tally,) = outcome.tallies
    assert not tally.total.comparisons and not tally.requests
    assert any(f"/v1/completions: {reason}" in each for each in tally.not_offered)


def raise_if_nothing(outcome):
    if not outcome.num_comparisons:
        raise TokenmillError("nothing")


def test_a_field_that_is_refused_is_not_sent_again():
    outcome = check(Fake(refuses="return_token_ids"), cases=("again",), comparisons=8)
    assert outcome.num_comparisons and not outcome.num_failed
    assert outcome.offer.compares == "tokens"
    assert outcome.offer.routes[0].missing["token ids"] == "HTTP 400: return_token_ids is not known"


@pytest.mark.slow
def test_texts_without_tokens_are_compared_by_characters():
    fake = Fake("crowd", without=["return_token_ids", "logprobs"])
    outcome = check(fake, cases=("crowd",), comparisons=20)
    assert outcome.offer.compares == "characters"
    assert outcome.tallies[0].first()[0] == "character"


@pytest.mark.slow
def test_a_route_that_is_not_there():
    outcome = check(Fake(without=["completions"]), cases=("again",), comparisons=8)
    assert {route for route, _ in outcome.tallies[0].by} == {"chat/completions"}
    assert any(each.startswith("not offered: /v1/completions (HTTP 404") for each in notes(outcome))


@pytest.mark.slow
def test_the_same_seed_sends_the_same_requests():
    def sent(seed):
        return [
            each["texts"]
            for each in document(check(Fake("again"), seed=seed, cases=("again",), comparisons=20))["cases"][0][
                "examples"
            ]
        ]

    assert sent(5) == sent(5) != sent(6)


def test_a_server_that_is_full_for_a_while_is_asked_again():
    fake = Fake()
    fake.full_for = 7
    outcome = check(fake, cases=("again",), comparisons=8)
    assert outcome.num_waits == 7 and not outcome.num_failed and outcome.num_comparisons == 8


def test_a_server_that_is_always_full():
    fake = Fake()
    fake.full_for = 10**9
    with pytest.raises(TokenmillError, match=r"answered 429 all the time, for 0 s .the queue is full.: wait until"):
        check(fake, patience_s=0.1)


@pytest.mark.slow
def test_bounds():
    outcome = check(Fake(), requests=150)
    assert outcome.num_requests == 150 and outcome.ended_by == "--requests 150"
    assert check(Fake(), cases=("again",), comparisons=5).ended_by == "--comparisons 5"
    with pytest.raises(TokenmillError, match=r"--requests 3 is too little to learn what http.* offers"):
        check(Fake(), requests=3)
    with pytest.raises(TokenmillError, match=r"--time 0.001 is too little"):
        check(Fake(), time_s=0.001)


@pytest.mark.slow
def test_a_restart_by_a_command(tmp_path):
    fake = Fake("restart")
    with running(fake.app) as url:
        ask = f"import urllib.request as u; u.urlopen(u.Request('{url}/restart', data=b''))"
        outcome = prove(Settings(url, **SETTINGS, cases=("restart",), restart=f'{sys.executable} -c "{ask}"'))
        assert fake.restarts == 1 and outcome.num_differences
        failed = prove(Settings(url, **SETTINGS, cases=("restart",), restart="exit 3"))
    assert str(failed.error) == "--restart 'exit 3' failed with exit code 3" and not failed.num_comparisons


@pytest.mark.slow
def test_a_server_that_becomes_full_ends_the_check_and_loses_nothing():
    fake = Fake()
    with running(fake.app) as url:
        progress = Full(fake)
        outcome = prove(Settings(url, **SETTINGS, cases=("again",), patience_s=0.1), progress=progress)
    assert outcome.num_comparisons and "answered 429 all the time" in str(outcome.error)
    assert any(each.startswith("ended by an error (http") for each in notes(outcome))


class Full(Progress):
    """Makes a fake full as soon as something was compared."""

    def __init__(self, fake):
        self.fake = fake

    def advance(self, done, total):
        self.fake.full_for = 10**9 * (done > 60)
