"""Program graphs and layers that keep a state: texts of the modules, a row's own bits, and every way to a slot.

Without a GPU its kernels are interpreted: the numbers are tried, and nothing of their speed.
"""

import pytest
import torch

from tests.program.asked import PROMPTS, said, texts, told_in_sessions
from tests.tiny_models import prompt, save
from tokenmill import load
from tokenmill.measure.cost import cost_of

pytest.importorskip("triton", reason="there is no Triton for this system")
from tests.program.test_graphs import recorded_steps

pytestmark = pytest.mark.usefixtures("wide_tiles")
SETTINGS = {"program": "graphs", "dtype": "float32", "max_sequences": 4, "max_length": 64}
EAGER = SETTINGS | {"program": "eager"}

HYBRIDS = ("lfm2", "qwen3_5_text", "nemotron_h-dense", "kimi_linear")
"""One of each kind of layer that keeps a state, beside attention; the last one beside latent attention."""
LIKE_THEM = (
    *("lfm2_moe", "lfm2-departures", "qwen3_5_text-departures", "qwen3_next", "nemotron_h", "bamba"),
    *("granitemoehybrid-mamba", "granitemoehybrid-departures", "mamba2-departures"),
    "kimi_linear-departures",
)


def tried(first, *others, later=()):
    """Mark all cases but the first: an interpreted step takes a second. No later case notices a mutant of its own."""
    slow = [pytest.param(each, marks=pytest.mark.slow) for each in others]
    return [first, *slow, *(pytest.param(each, marks=pytest.mark.long) for each in later)]


@pytest.mark.parametrize("family", tried(*HYBRIDS, later=LIKE_THEM))
def test_it_says_what_the_modules_say(family, models, engine_of):
    """Of three texts in a graph of four rows; the first has no state before its first step."""
    path = save(family, models)
    ours = engine_of(path, **SETTINGS, block_size=8)
    assert ours.program_name == "graphs"
    assert texts(ours) == texts(load(path, **EAGER))


@pytest.mark.parametrize(
    ("family", "scheme", "dtype"),
    [
        ("lfm2", "dense", "float16"),
        pytest.param("qwen3_5_text", "q4", "bfloat16", marks=pytest.mark.long),
        pytest.param("nemotron_h-dense", "dense", "float32", marks=pytest.mark.long),
    ],
)
def test_the_same_bits_alone_in_a_batch_and_with_other_blocks(family, scheme, dtype, models, monkeypatch):
    """Logits of steps of one token: of three texts together, and of each alone in blocks of another size."""
    seen = recorded_steps(monkeypatch)
    path, how = save(family, models), SETTINGS | {"dtype": dtype, "scheme": scheme}
    together = texts(load(path, **how, block_size=8), max_new_tokens=2)
    by_position = {at: row for step in seen for at, row in step.items()}
    seen.clear()
    alone = load(path, **how, block_size=5)
    assert [texts(alone, [each], max_new_tokens=2)[0] for each in PROMPTS] == together
    assert len(seen) == 4 and all(torch.equal(row, by_position[at]) for step in seen for at, row in step.items())


MEETS = {
    "preempted, drafts": {"cache_tokens": 40, "block_size": 4, "prefix_cache": False, "speculate": "suffix"},
    "async, chunks of 5": {"async_scheduling": "on", "max_step_tokens": 5, "block_size": 8},
}


@pytest.mark.parametrize("how", MEETS)
@pytest.mark.parametrize("family", tried(HYBRIDS[0], later=HYBRIDS[1:]))
def test_it_meets_other_features(family, how, models, engine_of):
    """The texts of the modules, which are computed without any of them."""
    path = save(family, models)
    sampling = {"temperature": 0.8, "seed": 3} if how.startswith("async") else {}
    ours = load(path, **SETTINGS, **MEETS[how])
    wanted = texts(engine_of(path, **EAGER), max_new_tokens=6, **sampling)
    assert texts(ours, max_new_tokens=6, **sampling) == wanted
    assert not how.startswith("preempted") or ours.core.scheduler.num_preemptions > 0


@pytest.mark.parametrize("family", tried(HYBRIDS[0], later=HYBRIDS[1:]))
def test_a_state_that_a_step_of_one_token_left_at_the_end_of_a_block_is_found(family, models, engine_of, tmp_path):
    """By a later text, from memory and from disk, and it goes on as if nothing had been kept."""
    path, start = save(family, models), prompt(9, seed=6)
    ours = load(path, **SETTINGS, block_size=4, prefix_dir=str(tmp_path))
    begun, cached = said(ours, start, 4)
    assert cached == 0
    wanted = said(engine_of(path, **EAGER), [*start, *begun], 3)[0]
    assert said(ours, [*start, *begun], 3) == (wanted, 12)
    later = load(path, **SETTINGS, block_size=4, prefix_dir=str(tmp_path))
    assert said(later, [*start, *begun], 3) == (wanted, 12)


@pytest.mark.parametrize("family", tried(HYBRIDS[0], later=HYBRIDS[1:]))
def test_sessions_fork_and_go_on(family, models, engine_of, tmp_path):
    path = save(family, models)
    ours, theirs = engine_of(path, **SETTINGS, block_size=8), engine_of(path, **EAGER)
    assert told_in_sessions(ours, tmp_path / "ours") == told_in_sessions(theirs, tmp_path / "theirs")


@pytest.mark.parametrize("family", tried(HYBRIDS[0], later=HYBRIDS[1:]))
def test_a_step_is_recorded_without_a_change_of_any_state(family, models, engine_of):
    """Recording computes a step several times, as CUDA graphs ask, before it is first repeated."""
    path = save(family, models)
    engine = load(path, **SETTINGS, block_size=8)
    recorded = []

    def capture(run):
        for _ in range(2):
            logits = run()
        recorded.append(len(logits))
        return lambda: logits.copy_(run()), logits

    engine.core.loaded.program.capture = capture
    assert texts(engine) == texts(engine_of(path, **EAGER))
    assert recorded[-1] == 4, "three texts, and a row of none"


@pytest.mark.parametrize("family", HYBRIDS)
def test_the_bytes_of_weights_are_foreseen(family, models, engine_of):
    engine = engine_of(save(family, models), **SETTINGS, scheme="q4", block_size=8)
    assert cost_of(engine.core.loaded.resolved).weights_bytes == engine.memory["weights_bytes"]
