"""Program graphs with `exact`: prompts and drafts by the kernels of its steps, so that no bit depends on the way.

Without a GPU its kernels are interpreted: the numbers are tried, and nothing of their speed.
"""

import pytest
import torch

from tests.tiny_models import prompt, save
from tokenmill import load
from tokenmill.errors import ConfigError

pytest.importorskip("triton", reason="there is no Triton for this system")
from triton.runtime.errors import OutOfResources

from tests.program.test_graphs_states import said, texts, tried
from tokenmill.program.graphs import program
from tokenmill.program.graphs.layers import GraphDecoder

pytestmark = pytest.mark.usefixtures("wide_tiles")
SETTINGS = {"program": "graphs", "exact": True, "max_sequences": 3, "max_length": 64}
EAGER = SETTINGS | {"program": "eager", "exact": False}
PROMPTS = [prompt(length, seed=6) for length in (3, 8, 13)]
"""Of which no two have a logit at the same position within three tokens."""
COUNT = 3

WAYS = {
    "chunks of 5 in other blocks": {"max_step_tokens": 5, "block_size": 5},
    "preempted": {"cache_tokens": 28, "block_size": 4, "prefix_cache": False},
}


class Recorded:
    """The logits that are computed from now on, by the position and the token that is fed; other bits are told."""

    def __init__(self, monkeypatch):
        self.rows, self.differ, self.drafts, run = {}, [], 0, GraphDecoder.__call__

        def recorded(decoder, token_ids_B, cache, rows, num_logits=None):
            logits = run(decoder, token_ids_B, cache, rows, num_logits)
            self.drafts += rows.in_turn and num_logits is None
            fed = [*zip(rows.positions_B.tolist(), token_ids_B.tolist(), strict=True)][len(token_ids_B) - len(logits) :]
            for at, row in zip(fed, logits, strict=True):
                if at[0] >= 0 and not torch.equal(self.rows.setdefault(at, row), row):
                    self.differ.append(at)
            return logits

        monkeypatch.setattr(GraphDecoder, "__call__", recorded)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        ("llama", "bfloat16"),
        ("lfm2", "float16"),
        *(
            pytest.param(family, dtype, marks=pytest.mark.long)
            for family, dtype in (("gpt_oss", "bfloat16"), ("youtu", "float16"), ("qwen3_5_text", "float32"))
        ),
    ],
)
def test_no_way_changes_a_bit(family, dtype, models, monkeypatch, tmp_path):
    """Logits of a text alone, beside others, in chunks, computed again, as drafts, and behind a hit in the cache."""
    seen, path, how = Recorded(monkeypatch), save(family, models), SETTINGS | {"dtype": dtype}
    monkeypatch.setattr(program, "MOST_ROWS", 6)
    whole = load(path, **how, block_size=8)
    wanted = texts(whole, PROMPTS, max_new_tokens=COUNT)
    assert sorted(at for at, _ in seen.rows) == [len(each) - 1 + at for each in PROMPTS for at in range(COUNT)]
    for name, given in WAYS.items():
        engine = load(path, **how | given)
        assert texts(engine, PROMPTS, max_new_tokens=COUNT) == wanted and seen.differ == [], name
        assert name != "preempted" or engine.core.scheduler.num_preemptions > 0
    assert texts(whole, PROMPTS[2:], max_new_tokens=COUNT) == wanted[2:], "most of it is found"
    drafts = load(path, **how, speculate="suffix", suffix_dir=str(tmp_path))  # of what it has said before
    assert [texts(drafts, PROMPTS[2:], max_new_tokens=COUNT) for _ in range(2)] == [wanted[2:]] * 2
    assert seen.drafts > 0 and seen.differ == []
    longer = [[*PROMPTS[2], *wanted[2], *prompt(4, seed=9)]]
    hit = texts(whole, longer, max_new_tokens=2)
    assert texts(load(path, **how, prefix_cache=False), longer, max_new_tokens=2) == hit and seen.differ == []


@pytest.mark.parametrize("family", tried("qwen3_5_text", "llama", "gpt_oss", "youtu", "nemotron_h-dense", "gpt2"))
def test_prompts_have_the_logits_of_the_modules(family, models, engine_of):
    path, tokens = save(family, models), prompt(11, seed=6)
    found = load(path, **SETTINGS, dtype="float32", block_size=8).logits(tokens)
    wanted = engine_of(path, **EAGER, dtype="float32").logits(tokens)
    torch.testing.assert_close(found, wanted, rtol=0, atol=2e-5 * float(wanted.abs().max()))


def test_rows_of_prompts_are_not_shared_with_an_engine_that_computes_them_otherwise(models, tmp_path):
    """They have other bits; see the build."""
    path, how = save("llama", models), SETTINGS | {"dtype": "bfloat16", "block_size": 4, "prefix_dir": str(tmp_path)}
    texts(load(path, **how), PROMPTS[2:], max_new_tokens=1)
    for exact, cached in ((False, 0), (True, 12)):
        engine = load(path, **how | {"exact": exact})
        assert said(engine, PROMPTS[2], 1)[1] == cached


def test_it_is_a_setting_of_program_graphs_alone(models):
    with pytest.raises(ConfigError, match="exact = True is not allowed: off, because program is 'eager'"):
        load(save("llama", models), **SETTINGS | {"program": "eager"})


def test_no_room_for_a_kernel_is_an_error(models, monkeypatch):
    """And not left to the modules, which would compute other bits."""
    engine = load(save("llama", models), **SETTINGS, dtype="float32", block_size=8)

    def capture(run):
        raise OutOfResources(200_000, 100_000, "shared memory")

    engine.core.loaded.program.capture = capture
    with pytest.raises(ConfigError, match="exact = True is not allowed: off: this GPU has no room for the kernels"):
        texts(engine, PROMPTS[:1])
