"""Program graphs: texts of the modules, the same bits in any batch and with any blocks, and what it refuses.

Without a GPU its kernels are interpreted: the numbers are tried, and nothing of their speed.
"""

import pytest
import torch

from tests.tiny_models import prompt, save
from tokenmill import load
from tokenmill.errors import ConfigError
from tokenmill.measure.cost import cost_of

pytest.importorskip("triton", reason="there is no Triton for this system")
from tokenmill.program.graphs.program import Graphs

SETTINGS = {"program": "graphs", "dtype": "float32", "max_sequences": 3, "max_length": 64}
PROMPTS = [prompt(length, seed=6) for length in (1, 22)]

FAMILIES = ("llama", "qwen2", "qwen3", "gemma2", "gemma3_text", "granite", "mixtral", "qwen2_moe", "gpt_oss")


def texts(engine, prompts=PROMPTS, **how):
    done = engine.generate(prompts, **{"max_new_tokens": 3, "ignore_eos": True} | how)
    return [each.tokens for each in done]


@pytest.mark.parametrize("family", FAMILIES)
def test_it_says_what_the_modules_say(family, models, engine_of):
    path = save(family, models)
    ours = engine_of(path, **SETTINGS, block_size=8)
    assert ours.program_name == "graphs"
    assert texts(ours) == texts(load(path, **SETTINGS | {"program": "eager"}))


@pytest.mark.parametrize(
    ("scheme", "dtype"), [("dense", "float32"), ("dense", "bfloat16"), ("q8", "float16"), ("q4", "bfloat16")]
)
def test_the_same_bits_alone_in_a_batch_and_with_other_blocks(scheme, dtype, llama, monkeypatch):
    """Logits of steps of one token: of three texts together, and of each alone in blocks of another size."""
    seen = []
    run = Graphs._run

    def recorded(self, inputs, cache):
        logits = run(self, inputs, cache)
        seen.append({int(at): row for at, row in zip(inputs.positions_BC[:, 0], logits, strict=True)})
        return logits

    monkeypatch.setattr(Graphs, "_run", recorded)
    prompts = [prompt(length, seed=6) for length in (3, 9, 20)]
    how = SETTINGS | {"dtype": dtype, "scheme": scheme}
    together = texts(load(llama, **how, block_size=8), prompts)
    steps, seen[:] = [*seen], []
    alone = load(llama, **how, block_size=5)
    assert [texts(alone, [each])[0] for each in prompts] == together
    by_position = {at: row for step in steps for at, row in step.items()}
    assert len(seen) == 6 and all(torch.equal(row, by_position[at]) for step in seen for at, row in step.items())


@pytest.mark.parametrize("family", ["llama", "mixtral"])
@pytest.mark.parametrize("scheme", ["dense", "q8", "q4"])
def test_the_bytes_of_weights_are_foreseen(scheme, family, models, engine_of):
    engine = engine_of(save(family, models), **SETTINGS, scheme=scheme, block_size=8)
    assert cost_of(engine.core.loaded.resolved).weights_bytes == engine.memory["weights_bytes"]


def test_experts_of_codes(models, engine_of):
    path = save("mixtral", models)
    ours = engine_of(path, **SETTINGS, scheme="q4", block_size=8)
    assert texts(ours) == texts(load(path, **SETTINGS | {"program": "eager"}, scheme="q4"))


def test_codes_of_4_bits_lie_two_in_a_byte(llama, engine_of):
    four, eight = (engine_of(llama, **SETTINGS, scheme=scheme, block_size=8) for scheme in ("q4", "q8"))
    eager = load(llama, **SETTINGS | {"program": "eager"}, scheme="q4")
    ours, theirs = (each.core.loaded.program.num_matrix_bytes for each in (four, eager))
    assert ours < 0.75 * theirs
    assert texts(four) == texts(eager) and eight.program_name == "graphs"


MEETS = {
    "preempted": {"cache_tokens": 40, "block_size": 4, "prefix_cache": False},
    "async": {"async_scheduling": "on", "block_size": 8},
    "drafts": {"speculate": "suffix", "block_size": 8},
    "chunks of 5": {"max_step_tokens": 5, "block_size": 8},
}


@pytest.mark.parametrize("how", MEETS)
def test_it_meets_other_features(how, llama):
    """The texts of the modules, which are computed without any of them."""
    prompts = [prompt(length, seed=6) for length in (3, 9, 20)]
    sampling = {"temperature": 0.8, "seed": 3} if how in ("async", "chunks of 5") else {}
    ours, theirs = load(llama, **SETTINGS, **MEETS[how]), load(llama, **SETTINGS | {"program": "eager"})
    wanted = texts(theirs, prompts, max_new_tokens=6, **sampling)
    assert texts(ours, prompts, max_new_tokens=6, **sampling) == wanted
    assert how != "preempted" or ours.core.scheduler.num_preemptions > 0


def test_sessions_fork_and_go_on(llama, engine_of, tmp_path):
    ours, theirs = engine_of(llama, **SETTINGS, block_size=8), load(llama, **SETTINGS | {"program": "eager"})

    def told(engine, path):
        session = engine.session(prompt(9, seed=6))
        first = session.generate(max_new_tokens=3, ignore_eos=True).tokens
        fork = session.fork()
        session.rewind(len(session.tokens) - 2)
        both = [each.generate(max_new_tokens=2, ignore_eos=True).tokens for each in (session, fork)]
        session.save(path)
        return [first, *both, engine.open_session(path).generate(max_new_tokens=2, ignore_eos=True).tokens]

    assert told(ours, tmp_path / "ours") == told(theirs, tmp_path / "theirs")


REFUSED = {
    "gpt2": "learned positions",
    "falcon_h1": "does not compute several mixers",
    "kimi_linear": "does not compute kda",
    "nemotron_h-departures": "experts between two matrices",
    "olmo2": "norm over all heads of q and k",
    "deepseek_v3": "does not compute latent",
    "llama4_text": "attention temperature by position",
}


@pytest.mark.parametrize("family", REFUSED)
def test_a_model_that_needs_another_kernel(family, models):
    with pytest.raises(ConfigError, match=REFUSED[family]):
        load(save(family, models), **SETTINGS)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"cache_format": "int8"}, "cannot read cache format int8"),
        ({"tensor_parallel": 2}, "in one process"),
        ({"kernel": "gather"}, "attends by itself"),
        ({"fuse": "none"}, "fuses by itself"),
        ({"scheme": "packed"}, "does not run scheme packed"),
    ],
)
def test_settings_that_it_does_not_serve(how, why, llama):
    with pytest.raises(ConfigError, match=why):
        load(llama, **SETTINGS | how)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_is_refused_unless_it_is_interpreted(llama, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(ConfigError, match="runs on a GPU, and the device is cpu"):
        load(llama, **SETTINGS)
    assert load(llama, max_length=64).program_name != "graphs", "auto leaves it out"


def test_no_memory_to_record_a_step(llama, monkeypatch, caplog):
    """The modules compute that step; the others are recorded."""
    engine = load(llama, **SETTINGS, block_size=8)
    program = engine.core.loaded.program
    asked = []

    def capture(run):
        logits = run()
        asked.append(len(logits))
        if len(logits) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return lambda: logits.copy_(run()), logits

    program.capture = capture
    assert texts(engine) == texts(load(llama, **SETTINGS | {"program": "eager"}))
    assert asked == [1, 2]
    assert "no memory to record steps of 2 sequences with up to 64 positions" in caplog.text
