"""Program compiled: the tokens of the plain modules, for every family, in few compilations that no length adds to."""

import logging
import os
import random
import threading

import pytest
import torch
from torch._dynamo import register_backend
from torch._dynamo.utils import counters
from torch._inductor import cpp_builder
from torch._inductor.utils import run_and_get_code

from tests.tiny_models import HYBRIDS, KINDS, RARE, TINY, build, prompt, save
from tokenmill.engine.load import load
from tokenmill.errors import ConfigError

pytestmark = pytest.mark.slow

PROMPTS = [prompt(20 + length, seed=length) for length in (0, 5, 1)]
SAMPLING = ({}, {"temperature": 0.8, "seed": 3})
BATCHES = int(os.environ.get("TOKENMILL_EXAMPLES", "40"))
ALIKE = ("mixtral", "gpt_neox", "gpt2", "olmo2", "granitemoeshared")
"""Families all of whose layers are alike, so that the second is traced as the first one is."""


def save_one_layer(name, models):
    """A tiny model of that name with one layer: each layer takes the compiler a second, or ten."""
    path = models / f"{name}-one-layer"
    if not path.exists():
        kind, numbers = TINY[name]
        build(kind, numbers | {"n_layer" if "n_layer" in numbers else "num_hidden_layers": 1}).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def llama(models):
    return save_one_layer("llama", models)


def engine_for(path, **how):
    settings = {"dtype": "float32", "max_length": 96, "block_size": 8, "max_sequences": 3, "threads": 1}
    return load(path, **{**settings, **how})


def compiled(path, **how):
    return engine_for(path, **{"program": "compiled", "compile": "dynamic", "compile_phases": "both", **how})


def together(engine, **sampling):
    return [done.tokens for done in engine.generate(PROMPTS, max_new_tokens=6, ignore_eos=True, **sampling)]


def texts(engine, **sampling):
    """One alone, then all together."""
    alone = engine.generate(PROMPTS[0], max_new_tokens=6, ignore_eos=True, **sampling)
    return [alone.tokens, *together(engine, **sampling)]


def same(engine, reference):
    for sampling in SAMPLING:
        assert texts(engine, **sampling) == texts(reference, **sampling)


@pytest.mark.parametrize("family", KINDS)
def test_every_family_without_a_graph_break(family, models):
    """Traced and not translated: what inductor makes of it is below, for some. A chunk and a token of each of three
    sequences are traced, and with llama one sequence alone and a short chunk, too.
    """
    path = save_one_layer(family, models) if family in ALIKE else save(family, models)
    counters.clear()
    engine, reference = compiled(path, compile="fullgraph", compile_backend="eager"), engine_for(path, program="eager")
    if family == "llama":
        same(engine, reference)
    else:
        assert together(engine) == together(reference)
    calls = engine.core.loaded.program.calls
    assert None not in calls.values() and {shape.num_tokens > 1 for shape in calls} == {False, True}
    assert counters["stats"]["unique_graphs"] == len(calls) and not counters["graph_break"]


@pytest.mark.parametrize(
    ("family", "how"),
    [
        ("llama", {"compile_phases": "both", "cache_format": "int8"}),
        ("mixtral", {"scheme": "q4"}),
        ("qwen3_5_text", {}),
        ("gemma3n_text", {}),
        ("gemma4_text", {}),
    ],
)
@pytest.mark.compiler
def test_inductor_says_the_same(family, how, models):
    """One sequence alone: each further form is ten seconds of a compiler."""
    path = save(family, models) if family in (*HYBRIDS, *RARE) else save_one_layer(family, models)
    how = {"compile_phases": "decode", **how}
    plain = {name: value for name, value in how.items() if not name.startswith("compile")}
    texts = [
        engine.generate(PROMPTS[0], max_new_tokens=9, ignore_eos=True).tokens
        for engine in (compiled(path, **how), engine_for(path, program="eager", **plain))
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_no_length_and_no_batch_compiles_again(mode, llama):
    counters.clear()
    engine = compiled(llama, compile=mode, compile_backend="eager", max_sequences=8, max_step_tokens=64)
    reference = engine_for(llama, program="eager", max_sequences=8)
    generator = random.Random(5)
    for number in range(BATCHES):
        prompts = [prompt(generator.randint(1, 90), seed=number + i) for i in range(generator.randint(1, 8))]
        done = engine.generate(prompts, max_new_tokens=3, ignore_eos=True)
        if number % 10 == 0:
            wanted = reference.generate(prompts, max_new_tokens=3, ignore_eos=True)
            assert [each.tokens for each in done] == [each.tokens for each in wanted]
    calls = engine.core.loaded.program.calls
    assert counters["stats"]["unique_graphs"] == len(calls) <= 8
    assert not counters["graph_break"] and not counters["recompiles"]


def test_scores_and_drafts(llama):
    """Logits of many rows of one sequence, and steps of a few tokens."""
    engine, reference = compiled(llama, compile_backend="eager"), engine_for(llama, program="eager")
    torch.testing.assert_close(engine.logits(PROMPTS[1]), reference.logits(PROMPTS[1]))
    guessing = compiled(llama, compile_backend="eager", speculate="off", compile="static")
    torch.testing.assert_close(guessing.logits(PROMPTS[1]), reference.logits(PROMPTS[1]))


@pytest.mark.compiler
def test_the_cache_is_written_in_place(llama):
    """In the code that inductor writes nothing has the size of the cache."""
    engine = compiled(llama, compile_phases="decode")
    with torch._inductor.config.patch(fx_graph_cache=False):  # or the code is found, and not written
        _, codes = run_and_get_code(engine.generate, PROMPTS[0], max_new_tokens=3, ignore_eos=True)
    shape = tuple(engine.core.loaded.pool.layers[0].tensors[0].shape)
    code = "\n".join(codes)
    assert "assert_size_stride" in code and str(shape) in code
    assert f"empty_strided_cpu({shape}" not in code and "copy_(" not in code


def test_phases(llama):
    for phases, kinds in (("decode", {1}), ("prefill", {2})):
        engine = compiled(llama, compile_phases=phases, compile_backend="eager")
        texts(engine)
        assert {shape.num_tokens for shape in engine.core.loaded.program.calls} == kinds


def test_no_is_the_same_shapes_uncompiled(llama):
    counters.clear()
    same(compiled(llama, compile="no"), engine_for(llama, program="eager"))
    assert not counters["stats"]


def plain_calls(run):
    """A capture without a GPU: every replay is a call."""
    logits = run()
    return lambda: logits.copy_(run()), logits


def test_captured_steps_lie_at_fixed_addresses(llama):
    """What a GPU records, here as plain calls."""
    engine = compiled(llama, compile="static", compile_backend="eager")
    engine.core.loaded.program.capture = plain_calls
    same(engine, engine_for(llama, program="eager"))


def test_the_plain_modules_serve_until_it_is_ready(llama, caplog):
    begun, go_on = threading.Event(), threading.Event()

    @register_backend(name="patient")
    def patient(graph, _inputs):
        begun.set()
        go_on.wait()
        return graph.forward

    engine = compiled(llama, compile_backend="patient", compile_in_background=True, compile_phases="decode")
    reference = engine_for(llama, program="eager")
    try:
        same(engine, reference)
        begun.wait()
        assert list(engine.core.loaded.program.calls.values()) == [None, None]
    finally:
        go_on.set()
    for thread in threading.enumerate():
        if thread.name == "compile":
            thread.join()
    calls = engine.core.loaded.program.calls
    assert len(calls) == 2 and None not in calls.values()
    same(engine, reference)


def failing(graph, _inputs):
    raise RuntimeError("no such luck")


def test_a_backend_that_fails_is_named(llama, caplog):
    register_backend(failing, name="failing")
    with pytest.raises(
        ConfigError, match=r"compile_backend = 'failing'.*a step of 1 x 1 tokens.*no such luck.*compile"
    ):
        texts(compiled(llama, compile_backend="failing", compile_phases="decode"))
    engine = compiled(llama, compile_backend="failing", compile_phases="decode", compile_in_background=True)
    with caplog.at_level(logging.WARNING):
        texts(engine)
        for thread in threading.enumerate():
            if thread.name == "compile":
                thread.join(60)
    assert "no such luck" in caplog.text and "the plain modules go on serving" in caplog.text
    same(engine, engine_for(llama, program="eager"))


def test_what_is_refused(llama, monkeypatch):
    for how, message in (
        ({"compile_backend": "outductor"}, r"compile_backend = 'outductor'.*inductor"),
        ({"compile": "sometimes"}, r"compile = 'sometimes'.*no, static, dynamic, fullgraph"),
        ({"compile_phases": "all"}, r"compile_phases = 'all'.*decode, prefill, both"),
        ({"program": "native", "compile": "static"}, r"compile = 'static'.*program is 'native'"),
        ({"scheme": "packed"}, "does not run scheme packed"),
    ):
        with pytest.raises(ConfigError, match=message):
            compiled(llama, **how)

    def none():
        raise RuntimeError("no compiler")

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", none)
    with pytest.raises(ConfigError, match=r"needs a C\+\+ compiler: install g\+\+"):
        compiled(llama)
    compiled(llama, compile_backend="aot_eager")


def test_asking_for_a_mode_is_asking_for_the_program(llama):
    assert engine_for(llama, compile="static").program_name == "compiled"
    assert engine_for(llama).program_name != "compiled"
    assert engine_for(llama, compile="no").program_name != "compiled"
