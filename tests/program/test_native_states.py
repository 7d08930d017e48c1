"""States in the native program: stored after as many tokens as a step says, and between tokens that it finds itself."""

import itertools

import pytest
import torch

from tests.marks import needs_native
from tests.program.asked import Text
from tests.tiny_models import prompt, save
from tokenmill.kernels.native_library import builds
from tokenmill.program.native.program import Native

pytestmark = needs_native

FAMILIES = ("lfm2", "qwen3_5", "granitemoehybrid-mamba", "nemotron_h", "mamba2-departures", "falcon_h1")
TOKENS = prompt(23, seed=8)


def native(path):
    return Text(path, program="native")


def equal(some, others):
    assert len(some) == len(others) > 0
    return all(map(torch.equal, some, others))


@pytest.mark.parametrize("family", FAMILIES)
def test_units_of_a_matrix_have_no_row_twice(family, models):
    """Two threads would write the same columns, and one of them zeros, if a unit reached into the next part."""
    for op in native(save(family, models)).loaded.program.ops.array:
        units = [(unit.first, unit.first + unit.count) for unit in op.units[: op.num_units // max(1, op.experts)]]
        assert all(end <= first for (_, end), (first, _) in itertools.pairwise(units))


@pytest.mark.parametrize("family", FAMILIES)
def test_states_are_stored_after_any_number_of_tokens(family, models):
    text = native(save(family, models))
    text.spoil()
    wanted, logits = {}, []
    for number, token in enumerate(TOKENS):  # in place, but for the first
        logits.append(text.run([token], number, 0 if number else None, [(1, 0)]).logits_RV)
        wanted[number + 1] = text.states(0)
    text.spoil()
    saves = [(1, 3), (2, 1), (7, 4), (17, 5), (23, 2)]
    together = text.run(TOKENS, 0, None, saves).logits_RV
    assert torch.equal(together, torch.cat(logits))
    assert all(equal(text.states(slot), wanted[count]) for count, slot in saves)
    # From one slot to others, one of them its own.
    again = text.run(TOKENS[7:], 7, 4, [(10, 4), (16, 0)]).logits_RV
    assert torch.equal(again, together[7:])
    assert equal(text.states(4), wanted[17]) and equal(text.states(0), wanted[23])


@pytest.mark.parametrize("saves", [[(5, 1)], [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)], [(3, 2), (5, 1)]])
@pytest.mark.parametrize("family", FAMILIES)
def test_states_between_tokens_that_the_step_finds(family, saves, models):
    text = native(save(family, models))
    text.run(TOKENS[:6], 0, None, [(6, 0)])
    tokens, wanted, begin = [TOKENS[6]], {}, text.states(0)
    for number in range(5):
        logits = text.run(tokens[-1:], 6 + number, 0 if number == 0 else 7, [(1, 7)]).logits_RV
        tokens.append(int(logits.argmax()))
        wanted[number + 1] = text.states(7)
    assert equal(text.states(0), begin)
    found = text.run([tokens[0], -1, -1, -1, -1], 6, 0, saves)
    assert list(found.token_ids) == tokens[:5]
    assert equal(text.states(0), begin)
    assert all(equal(text.states(slot), wanted[count]) for count, slot in saves)


@pytest.mark.parametrize("family", FAMILIES)
def test_builds_store_the_same_states(family, models, monkeypatch):
    """The portable build on x86 rounds a product and a sum one after the other."""
    stored = {}
    for build in builds():
        monkeypatch.setattr(Native, "build", build)
        text = native(save(family, models))
        text.run(TOKENS, 0, None, [(23, 1)])
        stored[build] = text.states(1)
    best = stored[builds()[0]]
    for build, states in stored.items():
        if build == "portable":
            torch.testing.assert_close(states, best, rtol=1e-4, atol=1e-4)
        else:
            assert equal(states, best), build


def test_a_span_that_stores_its_states_nowhere_is_refused(models):
    text = native(save("lfm2", models))
    for saves in ([], [(22, 0)], [(23, 1000)], [(9, 0), (9, 1), (23, 2)]):
        with pytest.raises(RuntimeError, match=r"states (are stored|after a span)"):
            text.run(TOKENS, 0, None, saves)
    with pytest.raises(RuntimeError, match="begins with a state behind the last slot"):
        text.run(TOKENS, 0, 1000, [(23, 0)])
