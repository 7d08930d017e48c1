"""Faults of each kind are found by the case that is for them; a server without one passes."""

import httpx2
import pytest

from tests.prove.fake import Fake, running
from tokenmill.errors import TokenmillError
from tokenmill.prove.report import document
from tokenmill.prove.run import prove
from tokenmill.prove.settings import Settings
from tokenmill.registry import PROOFS

FAULTS = [*PROOFS, "logprobs"]


def check(fake, **settings):
    """The outcome of a check of a fake; it may restart it."""
    with running(fake.app) as url:

        async def restart():
            async with httpx2.AsyncClient(trust_env=False, verify=False) as http:
                await http.post(f"{url}/restart")

        return prove(Settings(url, **{"requests": 420, "max_tokens": 6, "seed": 3, **settings}), restart)


def found_by(outcome):
    return {tally.name for tally in outcome.tallies if tally.total.differ or tally.logprobs.differ}


def test_a_right_server_passes():
    outcome = check(Fake(), logprobs=True, requests=700)
    assert outcome.num_differences == 0 and outcome.num_failed == 0
    for tally in outcome.tallies:
        assert tally.total.comparisons and not tally.empty, tally.name
    assert {key for tally in outcome.tallies for key in tally.by} == {
        (route, temperature) for route in ("completions", "chat/completions") for temperature in (0.0, 0.8)
    }
    assert outcome.num_requests == 700 and outcome.ended_by == "--requests 700"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault):
    outcome = check(Fake(fault), logprobs=fault == "logprobs")
    assert outcome.num_differences
    assert ("crowd" if fault == "logprobs" else fault) in found_by(outcome)
