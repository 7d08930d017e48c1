"""Program compiled with layers that keep a state, several mixers in a layer, latent rows, or unequal layers of Gemma
3n, Gemma 4 and MiMo: the texts, the logits and the states of the modules.

Most is tried with `compile="no"`: the same functions of the same declared shapes, which nothing compiles.
"""

import pytest
import torch
from torch._dynamo.utils import counters

from tests.program.asked import MEETS, Text, said, texts, told_in_sessions
from tests.program.test_compiled import engine_for
from tests.tiny_models import HYBRIDS, prompt, save
from tokenmill.program.compiled.micro_batches import DynamicShapes

LAYERS = (*HYBRIDS, "falcon_h1", "deepseek_v2", "gemma3n_text", "gemma4_text", "mimo_v2_flash")
"""Each kind of layer that keeps a state, beside attention or latent rows; two mixers in a layer; latent rows alone;
streams, inputs of layers, rows that layers share, experts beside an MLP, heads of two sizes; narrow values."""

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


STEPS = [
    (TOKENS[:11], 0, None, [(1, 3), (2, 1), (7, 4), (11, 2)]),
    (TOKENS[11:13], 11, 2, [(1, 7), (2, 0)]),  # as many saves as tokens: drafts are checked so
    (TOKENS[13:14], 13, 0, [(1, 0)]),
    (TOKENS[13:], 13, 0, [(4, 5), (10, 0)]),
    (TOKENS[7:9], 7, 4, [(1, 4), (2, 6)]),
]
"""Of one text: tokens, where they begin, the slot of its state there, and the saves."""


def close(ours, theirs):
    """Within 2e-5 of the largest number: a delta net multiplies what is rounded otherwise, and law 1 allows it 2e-4."""
    bound = 2e-5 * float(theirs.nan_to_num().abs().max())
    torch.testing.assert_close(ours, theirs, rtol=0, atol=bound, equal_nan=True)


def runs_as_the_modules_do(text, modules):
    for each in (text, modules):
        each.spoil()
    for step in STEPS:
        close(text.run(*step).logits_RV, modules.run(*step).logits_RV)
    for slot in range(8) if text.loaded.program.keeps_states else ():
        for ours, theirs in zip(text.states(slot), modules.states(slot), strict=True):
            close(ours, theirs)


@pytest.mark.parametrize("dynamic", [False, True], ids=["declared shapes", "any shapes"])
@pytest.mark.parametrize("family", [*HYBRIDS, "falcon_h1"])
def test_states_are_stored_after_any_number_of_tokens(family, dynamic, models):
    """Of padded spans and of such as are not; in a slot that no step fills, nothing changes."""
    text, modules = (Text(save(family, models), **how, scheme="dense") for how in (UNCOMPILED, EAGER))
    if dynamic:
        text.loaded.program.shapes = DynamicShapes(32)
    runs_as_the_modules_do(text, modules)


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


@pytest.mark.parametrize("family", ["gemma3n_text-departures", "gemma4_text-small", "gemma4_text-experts"])
def test_unequal_layers_in_codes_and_int8_rows(family, models):
    """Several texts at once, with those of which another has computed the begin."""
    how = {"scheme": "q8", "cache_format": "int8", "block_size": 4}
    ours, theirs = (engine_for(save(family, models), **each, **how) for each in (UNCOMPILED, EAGER))
    torch.testing.assert_close(ours.logits(TOKENS), theirs.logits(TOKENS))
    assert texts(ours, max_new_tokens=6) == texts(theirs, max_new_tokens=6)
    assert said(ours, TOKENS, 3) == said(theirs, TOKENS, 3)
    assert said(ours, [*TOKENS, 5], 3) == (said(theirs, [*TOKENS, 5], 3)[0], 20)


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
@pytest.mark.parametrize(("family", "mode"), [*zip(LAYERS, ["static", "dynamic", "dynamic"] * 3, strict=True)])
def test_traced_once_for_each_shape_without_a_graph_break(family, mode, models):
    """Spans that leave other numbers of states are no other shape. What is recorded, tokens of several texts among
    them, changes no state while it is recorded.
    """
    counters.clear()
    how = {"compile": mode, "compile_phases": "both", "compile_backend": "eager"}
    text = Text(save(family, models), program="compiled", **how, scheme="dense")
    modules = Text(save(family, models), **EAGER, scheme="dense")
    program, capture = text.loaded.program, Several()
    program.capture = capture if mode == "static" else None
    runs_as_the_modules_do(text, modules)
    prompts = [TOKENS[:9], TOKENS[3:12]]
    assert texts(text.engine, prompts) == texts(modules.engine, prompts)
    assert capture.recorded == {"dynamic": 0, "static": 2 if program.keeps_states else len(program.calls)}[mode]
    assert counters["stats"]["unique_graphs"] == len(program.calls)
    assert not counters["graph_break"] and not counters["recompiles"]
