"""What program compiled asks torch for, and when, with a compiler that only takes notes."""

import logging
import threading
from contextlib import contextmanager

import pytest
import torch
from torch._inductor import cpp_builder

from tests.program.test_compiled import PROMPTS, engine_for
from tokenmill.errors import ConfigError
from tokenmill.program.compiled import program as module
from tokenmill.program.compiled.micro_batches import DynamicShapes, Inputs, StaticShapes, StepShape
from tokenmill.program.compiled.program import Captured, CudaGraphs, check_backend, compile_forward


@pytest.fixture
def backends(monkeypatch):
    monkeypatch.setattr(torch._dynamo, "list_backends", lambda exclude: ["inductor", "eager"])


@pytest.fixture
def no_compiler(monkeypatch):
    def missing():
        raise RuntimeError("none")

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", missing)


def test_backends_that_there_are(backends, no_compiler):
    check_backend("eager")
    with pytest.raises(
        ConfigError, match=r"compile_backend = 'gcc' is not allowed: torch.compile knows eager, inductor$"
    ):
        check_backend("gcc")
    with pytest.raises(ConfigError, match=r"it needs a C\+\+ compiler: install g\+\+, or set CXX$"):
        check_backend("inductor")


def test_inductor_with_a_compiler(backends, monkeypatch):
    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", lambda: "g++")
    check_backend("inductor")


@pytest.fixture
def compilations(monkeypatch):
    """What is compiled: the inputs and whether the sizes are dynamic. The plain modules are what comes of it."""
    found = []

    def noted(forward, inputs, cache, backend, dynamic):
        found.append((tuple(inputs.token_ids_BC.shape), len(inputs.offsets_L), backend, dynamic))
        return forward

    monkeypatch.setattr(module, "compile_forward", noted)
    return found


def compiled(path, **how):
    return engine_for(path, program="compiled", compile_backend="eager", **how)


def test_a_processor_compiles_for_any_size(llama, compilations):
    """Sequences of one token and chunks once each, and never again."""
    engine = compiled(llama, compile_phases="both")
    program = engine.core.loaded.program
    assert isinstance(program.shapes, DynamicShapes) and program.capture is None
    for tokens in (PROMPTS[0], PROMPTS[1], PROMPTS[0]):
        engine.generate(tokens, max_new_tokens=3, ignore_eos=True)
    assert compilations == [((1, len(PROMPTS[0])), 96, "eager", True), ((1, 1), 96, "eager", True)]
    assert list(program.calls) == [StepShape(1, 2, 0), StepShape(1, 1, 0)]


def test_declared_sizes_where_they_are_asked_for(llama, compilations):
    engine = compiled(llama, compile="static", compile_phases="both")
    program = engine.core.loaded.program
    assert isinstance(program.shapes, StaticShapes) and program.capture is None
    assert program.shapes.sequences == [1, 2, 3] and program.shapes.keys == [96]
    engine.generate(PROMPTS[0], max_new_tokens=3, ignore_eos=True)
    assert compilations == [((1, 32), 96, "eager", False), ((1, 1), 96, "eager", False)]


@pytest.mark.parametrize(("phases", "shapes"), [("decode", [(1, 1)]), ("prefill", [(1, len(PROMPTS[0]))])])
def test_only_what_is_asked_for_is_compiled(phases, shapes, llama, compilations):
    compiled(llama, compile_phases=phases).generate(PROMPTS[0], max_new_tokens=3, ignore_eos=True)
    assert [shape for shape, *_ in compilations] == shapes


def test_nothing_is_compiled_or_checked_where_it_says_no(llama, compilations):
    engine = engine_for(llama, program="compiled", compile="no", compile_backend="outductor")
    assert isinstance(engine.core.loaded.program.shapes, StaticShapes)
    engine.generate(PROMPTS[0], max_new_tokens=3, ignore_eos=True)
    assert compilations == []
    with pytest.raises(ConfigError, match="compile_backend = 'outductor'"):
        engine_for(llama, program="compiled", compile_backend="outductor")


def test_the_seconds_of_the_compiler_are_counted(llama, compilations, monkeypatch, caplog):
    engine = compiled(llama, compile_phases="both")
    clock = iter([10.0, 12.5, 100.0, 101.0])
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(clock, 0.0))
    step = engine.core.loaded.program
    forward_inputs = []
    monkeypatch.setattr(module, "compile_forward", lambda *given: forward_inputs.append(given) or given[0])
    with caplog.at_level(logging.INFO, "tokenmill.program.compiled.program"):
        for _ in range(2):
            step._compile(one_token(), step.cache)
    assert step.compile_s == 3.5
    assert [record.getMessage() for record in caplog.records] == [
        "compiling a step of 1 x 1 tokens, 4 positions", "compiled in 2.5 s",
        "compiling a step of 1 x 1 tokens, 4 positions", "compiled in 1.0 s",
    ]  # fmt: skip


def one_token(num_tokens=1):
    ids = torch.zeros(1, num_tokens, dtype=torch.long)
    return Inputs(ids, ids, torch.zeros(1, 1, dtype=torch.long), torch.arange(4), None)


def compiling_threads():
    return [thread for thread in threading.enumerate() if thread.name == "compile"]


def test_the_plain_modules_serve_while_a_thread_compiles(llama, monkeypatch):
    go_on, caches = threading.Event(), []

    def patient(forward, inputs, cache, backend, dynamic):
        go_on.wait()
        caches.append(cache)
        return forward

    monkeypatch.setattr(module, "compile_forward", patient)
    engine = compiled(llama, compile_phases="decode", compile_in_background=True)
    wanted = engine_for(llama, program="eager").generate(PROMPTS[0], max_new_tokens=4, ignore_eos=True).tokens
    program = engine.core.loaded.program
    try:
        assert engine.generate(PROMPTS[0], max_new_tokens=4, ignore_eos=True).tokens == wanted
        assert list(program.calls.values()) == [None]
        (thread,) = compiling_threads()
        assert not thread.daemon  # a process that ends while it compiles would crash
    finally:
        go_on.set()
    thread.join()
    assert list(program.calls.values()) == [program._forward]
    (cache,) = caches  # of its own: the real one is written to meanwhile
    pairs = [
        (mine, real)
        for mines, reals in zip(cache, program.cache, strict=True)
        for mine, real in zip(mines, reals, strict=True)
    ]
    assert all(mine.shape == real.shape and mine.data_ptr() != real.data_ptr() for mine, real in pairs)
    assert not any(mine.is_inference() for mine, _ in pairs)
    assert engine.generate(PROMPTS[0], max_new_tokens=4, ignore_eos=True).tokens == wanted


def test_a_thread_that_fails_is_said(llama, monkeypatch, caplog):
    def failing(*_):
        raise RuntimeError("no such luck")

    monkeypatch.setattr(module, "compile_forward", failing)
    engine = compiled(llama, compile_phases="decode", compile_in_background=True)
    with caplog.at_level(logging.WARNING):
        engine.generate(PROMPTS[0], max_new_tokens=2, ignore_eos=True)
        for thread in compiling_threads():
            thread.join()
    assert "no such luck; the plain modules go on serving" in caplog.text


@pytest.fixture
def asked(monkeypatch):
    """What torch.compile is asked for; the function itself is what comes of it."""
    found = []
    monkeypatch.setattr(torch, "compile", lambda run, **how: found.append((run, how)) or run)
    return found


def test_what_torch_is_asked_for(asked, monkeypatch):
    marked, ran = [], []
    monkeypatch.setattr(torch._dynamo, "mark_dynamic", lambda tensor, dimension: marked.append((tensor, dimension)))

    def forward(inputs, cache):
        ran.append((inputs, cache))
        return "logits"

    inputs = one_token()
    calls = [compile_forward(forward, inputs, [], "eager", dynamic) for dynamic in (False, True)]
    assert [call(inputs, []) for call in calls] == ["logits", "logits"]
    assert len(ran) == 4  # once while it is compiled
    (run, how), (other, _) = asked
    assert (how["backend"], how["fullgraph"], how["dynamic"]) == ("eager", True, False)
    assert how["options"] == {"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
    assert run.__code__ is not other.__code__ is not module._run.__code__  # torch keeps what it compiled by this
    assert [(tuple(tensor.shape), dimension) for tensor, dimension in marked] == [((4,), 0)]


def test_sizes_above_one_are_marked_as_dynamic(monkeypatch):
    marked = []
    monkeypatch.setattr(torch._dynamo, "mark_dynamic", lambda tensor, dimension: marked.append((id(tensor), dimension)))
    tensors = [torch.zeros(3, 2), torch.zeros(3, 1), torch.zeros(3, 7), torch.zeros(5), torch.zeros(2)]
    tensors += [torch.zeros(3), torch.zeros(4, 2)]
    module._mark_dynamic(Inputs(*tensors), all_sizes=True)
    names = {id(tensor): name for name, tensor in zip(Inputs._fields, tensors, strict=True)}
    assert [(names[tensor], dimension) for tensor, dimension in marked] == [
        ("token_ids_BC", 0), ("token_ids_BC", 1), ("positions_BC", 0),
        ("tables_BM", 0), ("offsets_L", 0), ("rows_B", 0), ("states_B", 0), ("saves_S2", 0),
    ]  # fmt: skip
    marked.clear()
    module._mark_dynamic(Inputs(*tensors), all_sizes=False)  # of declared shapes
    assert [(names[tensor], dimension) for tensor, dimension in marked] == [("saves_S2", 0)]


class InnerError(Exception):
    inner_exception = ValueError("of the backend\nin many lines")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("no such luck\nat all"), "no such luck"),
        (InnerError(), "of the backend"),
        (KeyError(), "KeyError"),
    ],
)
def test_a_backend_that_fails_is_named(error, reason, asked):
    def forward(*_):
        raise error

    with pytest.raises(ConfigError) as refused:
        compile_forward(forward, one_token(3), [], "eager", False)
    assert str(refused.value) == (
        "compile_backend = 'eager' is not allowed: it failed for a step of 1 x 3 tokens, 4 positions, all logits: "
        f"{reason}; use another, or compile='no'"
    )


def test_a_recorded_step_is_repeated_with_other_inputs():
    """The first call records; each later one copies its inputs to where the recording reads them."""
    recorded, seen = [], []

    def call(inputs, cache):
        return inputs.token_ids_BC + len(cache)

    def capture(run):
        recorded.append(run)
        logits = run()
        return lambda: logits.copy_(run()), logits

    captured = Captured(call, capture)
    first = one_token()
    for number in (5, 6):
        inputs = first._replace(token_ids_BC=torch.full((1, 1), number))
        seen.append(captured(inputs, [(), ()]))
    assert [each.tolist() for each in seen] == [[[7]], [[8]]] and len(recorded) == 1
    assert seen[0].data_ptr() != seen[1].data_ptr()


def test_a_recording_that_failed_is_made_again():
    tries = []

    def capture(run):
        tries.append(run)
        if len(tries) == 1:
            raise RuntimeError("out of memory")
        logits = run()
        return lambda: None, logits

    captured = Captured(lambda inputs, cache: inputs.token_ids_BC.clone(), capture)
    with pytest.raises(RuntimeError):
        captured(one_token(), [])
    assert captured(one_token(), []).tolist() == [[0]] and len(tries) == 2


@pytest.mark.parametrize("in_midst", [False, True])
def test_a_step_for_which_there_is_no_memory_is_computed_without_a_recording(in_midst, caplog):
    """Where memory ends in the midst of a recording, torch raises another error at its end."""
    tries = []

    def capture(run):
        tries.append(run)
        try:
            raise torch.OutOfMemoryError("CUDA out of memory")
        finally:
            if in_midst:
                raise RuntimeError("operation failed due to a previous error during capture")

    captured = Captured(lambda inputs, cache: inputs.token_ids_BC.clone(), capture)
    assert [captured(one_token(), []).tolist() for _ in range(2)] == [[[0]]] * 2 and len(tries) == 1
    assert "no memory to record a step of 1 x 1 tokens" in caplog.text


def test_a_graph_is_recorded_after_three_runs_aside(monkeypatch):
    """In the order that torch's documentation of CUDAGraph gives, on a torch.cuda that only takes notes."""
    notes = []

    class Stream:
        def __init__(self, name="aside"):
            self.name = name

        def wait_stream(self, other):
            notes.append(f"{self.name} waits for {other.name}")

    class Graph:
        def replay(self):
            notes.append("replay")

    @contextmanager
    def noted(name):
        notes.append(f"enter {name}")
        yield
        notes.append(f"leave {name}")

    current = Stream("current")
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: current)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: noted(stream.name))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    handles, pools = iter(("pool", "another")), []

    def graph(graph, pool, capture_error_mode):
        pools.append(pool)
        return noted(capture_error_mode)

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(handles))
    monkeypatch.setattr(torch.cuda, "graph", graph)
    record = CudaGraphs()
    again, logits = record(lambda: notes.append("run") or len(notes))
    again()
    assert notes == [
        "aside waits for current", "enter aside", "run", "run", "run", "leave aside", "current waits for aside",
        "enter thread_local", "run", "leave thread_local", "replay",
    ]  # fmt: skip
    assert logits == 9
    record(lambda: None)

    def breaks_off():
        if len(pools) == 3:
            raise torch.OutOfMemoryError

    with pytest.raises(torch.OutOfMemoryError):
        record(breaks_off)
    record(lambda: None)
    assert pools == ["pool", "pool", "pool", "another"], "all share one, but for what was broken off"
