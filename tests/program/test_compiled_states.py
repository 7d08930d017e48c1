"""Program compiled with layers that keep a state, several mixers in a layer, or latent rows: the texts, the logits and
the states of the modules.

Most is tried with `compile="no"`: the same functions of the same declared shapes, which nothing compiles.
"""

import pytest
import torch
from torch._dynamo.utils import counters

from tests.program.asked import MEETS, Text, said, texts, told_in_sessions
from tests.program.test_compiled import compiled, engine_for
from tests.tiny_models import HYBRIDS, prompt, save
from tokenmill.program.compiled.micro_batches import DynamicShapes

LAYERS = (*HYBRIDS, "falcon_h1", "deepseek_v2")
"""Each kind of layer that keeps a state, beside attention or latent rows; two mixers in a layer; latent rows alone."""

EAGER = {"program": "eager"}
UNCOMPILED = {"program": "compiled", "compile": "no", "compile_phases": "both"}
TOKENS = prompt(23, seed=8)
REPEATED = [prompt(5, seed=3) * 5, prompt(5, seed=4) * 5]


@pytest.mark.parametrize("family", LAYERS)
def test_logits_of_whole_prompts_and_of_chunks(family, models):
    path = save(family, models)
    wanted = engine_for(path, **EAGER).logits(TOKENS)
    for how in ({}, {"max_step_tokens": 6}):
        torch.testing.assert_close(engine_for(path, **UNCOMPILED, **how).logits(TOKENS), wanted)


def test_products_in_bfloat16_between_states_in_float32(models):
    path = save("nemotron_h", models)
    ours, theirs = (engine_for(path, **how, dtype="bfloat16").logits(TOKENS) for how in (UNCOMPILED, EAGER))
    torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0.02 * float(theirs.abs().max()))


@pytest.mark.parametrize("dynamic", [False, True], ids=["declared shapes", "any shapes"])
@pytest.mark.parametrize("family", [*HYBRIDS, "falcon_h1"])
def test_states_are_stored_after_any_number_of_tokens(family, dynamic, models):
    """Of padded spans and of such as are not; in slots of which nobody asked for, nothing changes."""
    text, modules = (Text(save(family, models), **how, scheme="dense") for how in (UNCOMPILED, EAGER))
    if dynamic:
        text.loaded.program.shapes = DynamicShapes(32)
    steps = [
        (TOKENS[:11], 0, None, [(1, 3), (2, 1), (7, 4), (11, 2)]),
        (TOKENS[11:13], 11, 2, [(2, 0)]),
        (TOKENS[13:14], 13, 0, [(1, 0)]),
        (TOKENS[13:], 13, 0, [(4, 5), (10, 0)]),
        (TOKENS[7:9], 7, 4, [(1, 4), (2, 6)]),
    ]
    for each in (text, modules):
        each.spoil()
    for step in steps:
        torch.testing.assert_close(text.run(*step).logits_RV, modules.run(*step).logits_RV)
    for slot in range(8):
        torch.testing.assert_close(text.states(slot), modules.states(slot), equal_nan=True)


@pytest.mark.parametrize("how", MEETS)
@pytest.mark.parametrize("family", LAYERS)
def test_it_meets_other_features(family, how, models, engine_of):
    """The texts of the modules without any of them: texts of 1, 9 and 20 tokens, of which each ends at another time."""
    path = save(family, models)
    sampling = {"temperature": 0.8, "seed": 3} if how in ("async", "chunks of 5") else {}
    ours = engine_for(path, **UNCOMPILED, **MEETS[how])
    wanted = texts(engine_of(path, **EAGER, dtype="float32", max_length=96), max_new_tokens=6, **sampling)
    assert texts(ours, max_new_tokens=6, **sampling) == wanted
    assert how != "preempted" or ours.core.scheduler.num_preemptions > 0


@pytest.mark.parametrize("family", HYBRIDS)
def test_a_state_at_the_end_of_a_block_is_found(family, models, engine_of, tmp_path):
    """By a later text, from memory and from disk, and it goes on as if nothing had been kept."""
    path, start, how = save(family, models), prompt(9, seed=6), {"block_size": 4, "prefix_dir": str(tmp_path)}
    ours = engine_for(path, **UNCOMPILED, **how)
    begun, cached = said(ours, start, 12)
    assert cached == 0
    wanted = said(engine_of(path, **EAGER, dtype="float32", max_length=96), [*start, *begun], 3)[0]
    assert said(ours, [*start, *begun], 3) == (wanted, 20)
    assert said(engine_for(path, **UNCOMPILED, **how), [*start, *begun], 3) == (wanted, 20)


@pytest.mark.parametrize("family", LAYERS)
def test_sessions_fork_and_go_on(family, models, tmp_path):
    path = save(family, models)
    ours, theirs = (engine_for(path, **how) for how in (UNCOMPILED, EAGER))
    assert told_in_sessions(ours, tmp_path / "ours") == told_in_sessions(theirs, tmp_path / "theirs")


class Several:
    """A capture without a GPU, which computes a step several times, as CUDA graphs ask, before it is repeated."""

    recorded = 0

    def __call__(self, run):
        for _ in range(2):
            logits = run()
        self.recorded += 1
        return lambda: logits.copy_(run()), logits


@pytest.mark.slow
@pytest.mark.parametrize("family", LAYERS)
def test_traced_without_a_graph_break(family, models):
    """A chunk, drafts and a token of each of two texts. A span leaves as many states as it has drafts, which compiles
    nothing anew, and a step that is recorded changes no state.
    """
    path, how = save(family, models), {"max_sequences": 2, "speculate": "suffix"}
    counters.clear()
    engine = compiled(path, compile="fullgraph", compile_backend="eager", **how)
    engine.core.loaded.program.capture = capture = Several()
    assert texts(engine, REPEATED, max_new_tokens=12) == texts(engine_for(path, **EAGER), REPEATED, max_new_tokens=12)
    calls = engine.core.loaded.program.calls
    assert None not in calls.values() and {8, 32} <= {shape.num_tokens for shape in calls}
    assert counters["stats"]["unique_graphs"] == len(calls) and not counters["graph_break"]
    assert capture.recorded == len(calls) if family == "deepseek_v2" else 0 < capture.recorded < len(calls)


@pytest.mark.slow
@pytest.mark.parametrize("family", LAYERS)
def test_no_length_and_no_number_of_saves_is_traced_again(family, models):
    """The first draft has as many tokens as states that it leaves, which must not be taken for one size."""
    counters.clear()
    engine = compiled(save(family, models), compile_backend="eager", speculate="suffix")
    wanted = engine_for(save(family, models), **EAGER)
    assert texts(engine, REPEATED, max_new_tokens=12) == texts(wanted, REPEATED, max_new_tokens=12)
    assert texts(engine, max_new_tokens=5) == texts(wanted, max_new_tokens=5)
    calls = engine.core.loaded.program.calls
    assert counters["stats"]["unique_graphs"] == len(calls) and not counters["recompiles"]
