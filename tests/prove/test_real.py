"""Our own server in this process, checked by HTTP, with each program that this machine runs."""

import pytest

from tests.byte_model import save_byte_model
from tests.serve.conftest import served
from tokenmill.kernels.native_library import why_not
from tokenmill.prove.run import prove
from tokenmill.prove.settings import Settings
from tokenmill.registry import PROOFS

NATIVE = pytest.mark.skipif(why_not() is not None, reason=f"the library {why_not()}")


@pytest.mark.slow
@pytest.mark.parametrize("program", ["eager", pytest.param("native", marks=NATIVE)])
def test_our_server_passes(tmp_path, program):
    """The native program with a model whose tokens are close calls, where a sum in another order shows soon, and with
    its log-probabilities. Of the eager program only tokens that are no ties are promised.
    """
    bits = program == "native"
    model = str(save_byte_model(tmp_path, std=0.04 if bits else 0.15))
    settings = {"program": program, "max_length": 1024, "max_sequences": 8, "block_size": 16, "cache_tokens": 4096}
    with served(model, settings, max_queued=64) as server:
        cases = tuple(name for name in PROOFS if name != "restart")
        checked = Settings(
            server.url, requests=900, concurrency=6, max_tokens=8, seed=11, cases=cases, logprobs=bits, time_s=300
        )
        outcome = prove(checked)
    assert not any(tally.failures for tally in outcome.tallies), [tally.failures for tally in outcome.tallies]
    assert outcome.offer.missing == {} and outcome.offer.compares == "token ids"
    for tally in outcome.tallies:
        assert tally.total.comparisons and not tally.total.differ and not tally.logprobs.differ, tally.examples
        assert not tally.not_offered or tally.name == "continued"
        assert len(tally.seen) > 1
