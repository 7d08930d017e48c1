"""Program graphs: texts of the modules, the same bits in any batch and with any blocks, and what it refuses.

Without a GPU its kernels are interpreted: the numbers are tried, and nothing of their speed.
"""

from importlib.machinery import PathFinder

import gguf
import pytest
import torch

from tests import gguf_files
from tests.program.asked import told_in_sessions
from tests.tiny_models import prompt, save
from tests.weights.codes import test_mxfp4
from tokenmill import load
from tokenmill.errors import CapacityError, ConfigError
from tokenmill.loader.fit import fit_for_many
from tokenmill.loader.resolve import resolve
from tokenmill.measure.cost import cost_of
from tokenmill.model.families import read_config
from tokenmill.program.graphs import spec
from tokenmill.program.graphs.spec import GraphsSpec
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.weights.checkpoint import open_checkpoint

pytest.importorskip("triton", reason="there is no Triton for this system")
from tokenmill.program.compiled.program import Captured
from tokenmill.program.graphs import latent, program
from tokenmill.program.graphs.program import Graphs

pytestmark = pytest.mark.usefixtures("wide_tiles")
SETTINGS = {"program": "graphs", "dtype": "float32", "max_sequences": 3, "max_length": 64}
PROMPTS = [prompt(length, seed=6) for length in (1, 22)]

FAMILIES = (
    "llama",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3_text",
    "granite",
    "mixtral",
    "qwen2_moe",
    "gpt_oss",
    "gpt2",
    "gpt_neox",
    "phi",
    "starcoder2",
    "stablelm",
    "cohere",
    "olmo2",
    "olmoe",
    "stablelm-parallel",
    "phi-departures",
    "cohere-departures",
    "deepseek_v3",
    "glm4_moe_lite",
    "youtu-departures",
)


def texts(engine, prompts=PROMPTS, **how):
    done = engine.generate(prompts, **{"max_new_tokens": 3, "ignore_eos": True} | how)
    return [each.tokens for each in done]


@pytest.mark.parametrize("family", FAMILIES)
def test_it_says_what_the_modules_say(family, models, engine_of):
    path = save(family, models)
    ours = engine_of(path, **SETTINGS, block_size=8)
    assert ours.program_name == "graphs"
    assert texts(ours) == texts(load(path, **SETTINGS | {"program": "eager"}))


@pytest.mark.slow
def test_a_cache_of_8_bits(models, engine_of):
    """Prompts are written by the modules, and the rows of each step by the kernel, as the modules round them."""
    for family in ("llama", "gemma2", "deepseek_v3"):
        path = save(family, models)
        ours = engine_of(path, **SETTINGS, block_size=8, cache_format="int8")
        theirs = load(path, **SETTINGS | {"program": "eager"}, cache_format="int8")
        assert texts(ours, max_new_tokens=6) == texts(theirs, max_new_tokens=6)


def recorded_steps(monkeypatch):
    """The logits of each step of one token that is computed from now on, by the positions of their texts."""
    seen, run = [], Graphs._run

    def recorded(self, inputs, cache):
        logits = run(self, inputs, cache)
        rows = zip(inputs.positions_BC[:, 0].tolist(), logits, strict=True)
        seen.append({at: row for at, row in rows if at >= 0})
        return logits

    monkeypatch.setattr(Graphs, "_run", recorded)
    return seen


BITS = {
    "float32": ("llama", {"dtype": "float32"}),
    "bfloat16": ("llama", {"dtype": "bfloat16"}),
    "8 bits": ("llama", {"dtype": "float16", "scheme": "q8"}),
    "4 bits": ("llama", {"dtype": "bfloat16", "scheme": "q4"}),
    "cache of 8 bits": ("llama", {"dtype": "bfloat16", "cache_format": "int8"}),
    "LayerNorm, side by side": ("gpt_neox", {"dtype": "bfloat16"}),
    "norms over all heads, and behind": ("olmo2", {"dtype": "float32"}),
    "latent rows": ("youtu", {"dtype": "bfloat16"}),
    "latent rows of 8 bits, codes": ("youtu", {"dtype": "float16", "cache_format": "int8", "scheme": "q4"}),
}


@pytest.mark.parametrize("case", BITS)
def test_the_same_bits_alone_in_a_batch_and_with_other_blocks(case, models, monkeypatch):
    """Logits of steps of one token: of two texts together, and of each alone in blocks of another size. The second step
    of the first text reads the row that its first one wrote.
    """
    family, given = BITS[case]
    seen = recorded_steps(monkeypatch)
    prompts = [prompt(length, seed=6) for length in (1, 20)]
    path, how = save(family, models), SETTINGS | given
    together = texts(load(path, **how, block_size=8), prompts, max_new_tokens=2)
    steps, seen[:] = [*seen], []
    alone = load(path, **how, block_size=5)
    assert [texts(alone, [each], max_new_tokens=2)[0] for each in prompts] == together
    by_position = {at: row for step in steps for at, row in step.items()}
    assert len(seen) == 3 and all(torch.equal(row, by_position[at]) for step in seen for at, row in step.items())


@pytest.mark.slow
@pytest.mark.parametrize("how", [{}, {"cache_format": "int8"}, {"scheme": "q4"}], ids=str)
def test_splits_of_latent_rows_are_merged(how, models, monkeypatch):
    """Logits of the modules, of texts of one split, of whole splits and beyond; and a text's own bits alone."""
    for module in (program, spec, latent):
        monkeypatch.setattr(module, "SPLIT", 16)
    seen = recorded_steps(monkeypatch)
    prompts = [prompt(length, seed=6) for length in (3, 15, 37)]
    path = save("youtu", models)
    together = texts(load(path, **SETTINGS, **how, block_size=8), prompts)
    steps, seen[:] = [*seen], []
    by_position = {at: row for step in steps for at, row in step.items()}
    for given, tokens in zip(prompts, together, strict=True):
        theirs = load(path, **SETTINGS | {"program": "eager", "block_size": 8}, **how).logits([*given, *tokens])
        for at in (len(given), len(given) + 1):
            bound = 2e-5 * float(theirs[at].abs().max())
            torch.testing.assert_close(by_position[at], theirs[at], rtol=0, atol=bound)
    alone = load(path, **SETTINGS, **how, block_size=5)
    assert [texts(alone, [each])[0] for each in prompts] == together
    assert len(seen) == 6 and all(torch.equal(row, by_position[at]) for step in seen for at, row in step.items())


@pytest.mark.parametrize("family", ["llama", "mixtral"])
@pytest.mark.parametrize("scheme", ["dense", "q8", "q4"])
def test_the_bytes_of_weights_are_foreseen(scheme, family, models, engine_of):
    engine = engine_of(save(family, models), **SETTINGS, scheme=scheme, block_size=8)
    assert cost_of(engine.core.loaded.resolved).weights_bytes == engine.memory["weights_bytes"]
    assert "scratch_bytes" not in engine.memory, "texts of one split keep nothing"


def test_all_graphs_share_one_scratch_which_is_foreseen(models, engine_of):
    """Of 3 texts of 2 splits each: of each head a maximum, a sum and a row of values of float32. `plan` counts it."""
    path = save("mistral-long", models)
    short, long = (engine_of(path, **SETTINGS | {"max_length": length}, block_size=8) for length in (256, 500))
    of_plan = [cost_of(each.core.loaded.resolved).workspace_bytes for each in (short, long)]
    plain = [cost_of(load(path, **SETTINGS | {"program": "eager", "max_length": length}).core.loaded.resolved)
             for length in (256, 500)]  # fmt: skip
    model = long.model_config
    scratch = 3 * 2 * model.num_heads * (model.head_dim + 2) * 4
    assert long.memory["scratch_bytes"] == long.core.loaded.program._scratch.nbytes == scratch
    assert [ours - each.workspace_bytes for ours, each in zip(of_plan, plain, strict=True)] == [0, scratch]
    texts(long)
    assert len(long.core.loaded.program.calls) > 1


def test_experts_of_codes(models, engine_of):
    path = save("mixtral", models)
    ours = engine_of(path, **SETTINGS, scheme="q4", block_size=8)
    assert texts(ours) == texts(load(path, **SETTINGS | {"program": "eager"}, scheme="q4"))


@pytest.mark.slow
@pytest.mark.parametrize("stored", ["directory", "GGUF"])
def test_mxfp4_takes_4_bits_a_number_and_8_for_32_of_them(stored, tmp_path):
    """Of gpt-oss as it is published, and of a GGUF file. Prompts read the same codes; `plan` foresees them."""
    how = SETTINGS | {"dtype": "bfloat16", "scheme": "file"}
    if stored == "directory":
        path = test_mxfp4.written(tmp_path / "model", test_mxfp4.tiny().bfloat16())
    else:
        path = gguf_files.write_codes(tmp_path / "model.gguf", "mixtral-wide", [gguf.GGMLQuantizationType.MXFP4])
    ours, theirs = load(path, **how, block_size=8), load(path, **how | {"program": "eager"})
    assert texts(ours) == texts(theirs)
    decoders = [engine.core.loaded.program.decoder for engine in (ours, theirs)]
    experts = [[matrix for layer in each.layers for expert in layer.mlp.experts for matrix in (expert.up, expert.down)]
               for each in decoders]  # fmt: skip
    for found, plain in zip(*experts, strict=True):
        values, whole = (torch.cat([part.values() for part in each.parts()]) for each in (found, plain))
        (part,) = found.as_they_lie()
        assert torch.equal(values, whole)
        assert 8 * (part.halves.nbytes + part.scales.nbytes) == 4.25 * whole.numel()
    foreseen = cost_of(ours.core.loaded.resolved).weights_bytes
    assert foreseen == pytest.approx(ours.memory["weights_bytes"], rel=0.02)  # the mean counts routers, too


def test_codes_of_4_bits_lie_two_in_a_byte(llama, engine_of):
    four, eight = (engine_of(llama, **SETTINGS, scheme=scheme, block_size=8) for scheme in ("q4", "q8"))
    eager = load(llama, **SETTINGS | {"program": "eager"}, scheme="q4")
    ours, theirs = (each.core.loaded.program.num_matrix_bytes for each in (four, eager))
    assert ours < 0.75 * theirs
    assert texts(four) == texts(eager) and eight.program_name == "graphs"


MEETS = {
    "preempted, drafts": {"cache_tokens": 40, "block_size": 4, "prefix_cache": False, "speculate": "suffix"},
    "async, chunks of 5": {"async_scheduling": "on", "max_step_tokens": 5, "block_size": 8},
}


@pytest.mark.parametrize("how", MEETS)
def test_it_meets_other_features(how, llama):
    """The texts of the modules, which are computed without any of them."""
    prompts = [prompt(length, seed=6) for length in (3, 9, 20)]
    sampling = {"temperature": 0.8, "seed": 3} if how.startswith("async") else {}
    ours, theirs = load(llama, **SETTINGS, **MEETS[how]), load(llama, **SETTINGS | {"program": "eager"})
    wanted = texts(theirs, prompts, max_new_tokens=6, **sampling)
    assert texts(ours, prompts, max_new_tokens=6, **sampling) == wanted
    assert not how.startswith("preempted") or ours.core.scheduler.num_preemptions > 0


def test_sessions_fork_and_go_on(llama, engine_of, tmp_path):
    ours, theirs = engine_of(llama, **SETTINGS, block_size=8), load(llama, **SETTINGS | {"program": "eager"})
    assert told_in_sessions(ours, tmp_path / "ours") == told_in_sessions(theirs, tmp_path / "theirs")


REFUSED = {
    "falcon_h1": "does not compute several mixers",
    "nemotron_h-departures": "experts between two matrices",
    "olmo": "norm without a weight",
    "mistral4": "attention temperature by position",
    "llama4_text": "attention temperature by position",
    "laguna": "does not compute gated_attention",
    "mimo_v2_flash": "does not compute values of another width than keys",
}


@pytest.mark.parametrize("family", REFUSED)
def test_a_model_that_needs_another_kernel(family, models):
    with pytest.raises(ConfigError, match=REFUSED[family]):
        load(save(family, models), **SETTINGS)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"tensor_parallel": 2}, "in one process"),
        ({"kernel": "gather"}, "attends by itself"),
        ({"fuse": "none"}, "fuses by itself"),
        ({"scheme": "packed"}, "does not run scheme packed"),
        ({"adapter": "somewhere"}, "computes no adapters; merge one into the model"),
        ({"lora_modules": "a=somewhere"}, "computes no adapters"),
    ],
)
def test_settings_that_it_does_not_serve(how, why, llama):
    """Before a weight is read, and before an adapter is looked for."""
    with pytest.raises(ConfigError, match=why):
        load(llama, **SETTINGS | how)


def test_an_adapter_that_is_loaded_later_is_refused_by_name(llama, engine_of, tmp_path):
    engine = engine_of(llama, **SETTINGS, block_size=8)
    with pytest.raises(ConfigError, match="adapter = 'mine' is not allowed: none: program graphs computes no adapters"):
        engine.load_adapter("mine", tmp_path)


def refusal(model, device="cuda"):
    resolved = resolve(EngineConfig(**SETTINGS | {"program": "eager", "device": "cpu"}), model)
    return GraphsSpec.refuse(resolved.config, model, resolved.cache, device)


def test_a_gpu_of_an_earlier_generation_is_refused(llama, monkeypatch):
    """Before a weight is read. A V100 has 7.0, an A100 8.0; AMD's GPUs have other numbers."""
    model = read_config(open_checkpoint(llama).config)
    assert refusal(model) is None, "it is interpreted, whatever the GPU"
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    for found, why in (((7, 0), "needs compute capability 8.0 (A100) or later, and this GPU has 7.0"), ((8, 0), None)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=found: found)
        assert refusal(model) in (None, why) and (refusal(model) is None) == (why is None)
    monkeypatch.setattr(torch.version, "hip", "7.1")
    assert refusal(model) is None


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("__version__ = '3.4.0'", "needs Triton 3.5 or later, and this is 3.4.0"),
        ("__version__ = '2.9'", "this is 2.9"),
        ("", "this is one without a number"),
        ("__version__ = '3.5.0'", None),
        ('__version__ = "3.10.1+git1"', None),
        ("__version__ = '4.0'", None),
    ],
)
def test_an_older_triton_is_refused_without_importing_it(line, why, llama, monkeypatch, tmp_path):
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text(f'"""isort"""\n{line}\nraise ImportError\n')
    monkeypatch.setattr(spec, "find_spec", lambda name: PathFinder.find_spec(name, [str(tmp_path)]))
    found = refusal(read_config(open_checkpoint(llama).config))
    assert found is None if why is None else why in found


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_is_refused_unless_it_is_interpreted(llama, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(ConfigError, match="runs on a GPU, and the device is cpu"):
        load(llama, **SETTINGS)
    assert load(llama, max_length=64).program_name != "graphs", "auto leaves it out"


def test_no_memory_to_record_a_step(llama, caplog):
    """Its kernels are launched one by one, with the same bits; smaller steps are recorded."""
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
    assert "no memory to record a step of 2 x 1 tokens, 64 positions" in caplog.text
    assert all(isinstance(call, Captured) for call in program.calls.values()), "and not left to the modules"


def test_a_second_engine_on_a_card_leaves_the_scratch_room(models):
    """What the first has taken the driver does not count as free, whichever process it is in; see free_bytes."""
    model = read_config(open_checkpoint(save("mistral-long", models)).config)
    given = EngineConfig(**SETTINGS | {"max_length": 500, "device": "cpu"})
    whole = resolve(given, model)
    own = whole.weight_bytes + whole.scratch_bytes
    free = 2 * whole.cache.num_bytes
    fitted = resolve(fit_for_many(given, model, 3, lambda device: own + free), model)
    assert 0 < fitted.cache.num_bytes <= 0.8 * free
    with pytest.raises(CapacityError, match=r"memory for the weights: .* needed, .* available"):
        fit_for_many(given, model, 3, lambda device: own)
