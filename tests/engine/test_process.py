"""The process is not ours: an engine leaves torch's threads as it found them, and goes on, or refuses, in a fork."""

import pytest
import torch

from tests.forked import in_fork
from tests.marks import needs_native
from tests.tiny_models import prompt
from tokenmill.engine.load import load
from tokenmill.settings.sampling_params import SamplingParams

START = prompt(30, seed=8)
PLAIN = SamplingParams(max_new_tokens=4, ignore_eos=True)


@pytest.fixture(autouse=True)
def own_threads():
    """As many as no engine here has."""
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(2)


@pytest.mark.parametrize("program", [pytest.param("native", marks=needs_native), "eager"])
@pytest.mark.parametrize("settings", [{}, {"draft_model": "q8"}, {"scheme": "q8"}], ids=str)
def test_torch_has_the_threads_that_it_had(program, settings, llama, tmp_path):
    engine = load(llama, program=program, dtype="float32", threads=1, max_length=64, **settings)
    assert torch.get_num_threads() == 3
    with engine.session(START) as session:
        session.generate(params=PLAIN)
        session.save(tmp_path / "x.kv")
    engine.open_session(tmp_path / "x.kv").close()
    engine.logits(START)
    engine.score(START, [[1, 2]])
    assert torch.get_num_threads() == 3
    engine.close()
    assert torch.get_num_threads() == 3
    with pytest.raises(Exception, match="max_length"):
        load(llama, threads=1, max_length=10_000)
    assert torch.get_num_threads() == 3


def test_an_earlier_load_sets_no_default(llama):
    wanted = load(llama, dtype="float32").config.threads
    load(llama, dtype="float32", threads=1)
    assert load(llama, dtype="float32").config.threads == wanted


def test_rows_are_labelled_with_the_threads_that_compute_them(llama, tmp_path):
    """And so no engine with other threads takes them from the directory, whatever the process computes in."""
    for threads in (2, 1):
        torch.set_num_threads(threads)
        made = [load(llama, program="eager", dtype="float32", threads=count, prefix_dir=tmp_path) for count in (1, 2)]
        builds = [engine.core.loaded.compatibility["build"] for engine in made]
        assert [build.split(" on ")[1] for build in builds] == ["1 threads", "2 threads"]
    made[1].generate(prompt(70, seed=9), PLAIN)
    folders = {path.parent for path in tmp_path.glob("*/*.kv")}
    made[0].generate(prompt(70, seed=9), PLAIN)
    assert len({path.parent for path in tmp_path.glob("*/*.kv")} - folders) == 1


def test_rows_are_labelled_with_the_instruction_sets_that_compute_them(llama, monkeypatch):
    """Another processor, or this one with fewer, may add in another order."""
    builds = []
    for allowed in ("", "AVX2"):
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", allowed)  # oneDNN itself has read it before
        builds.append(load(llama, program="eager", dtype="float32").core.loaded.compatibility["build"])
    assert torch.backends.cpu.get_cpu_capability() in builds[0] and builds[0] != builds[1]


@pytest.mark.parametrize(
    "how",
    [
        {"program": "eager", "threads": 1},
        {"program": "eager", "threads": 2},
        pytest.param({"threads": 2}, marks=needs_native),
    ],
    ids=str,
)
def test_an_engine_goes_on_in_a_fork(how, llama, tmp_path):
    engine = load(llama, dtype="float32", **how)
    wanted = engine.generate(START, PLAIN).tokens
    session, file = engine.session(START), tmp_path / "x.kv"

    def child():
        told = session.generate(params=PLAIN).tokens
        session.save(file)
        engine.open_session(file).close()
        engine.logits(START)
        return told

    assert in_fork(child) == repr(wanted)


@pytest.mark.parametrize("how", [{"program": "eager"}, {"program": "eager", "threads": 2}, {}], ids=str)
def test_an_engine_may_be_loaded_in_a_fork(how, llama):
    wanted = load(llama, dtype="float32").generate(START, PLAIN).tokens

    def child():
        engine = load(llama, dtype="float32", **how)
        return engine.generate(START, PLAIN).tokens, engine.config.threads if how else None

    assert in_fork(child) == repr((wanted, 1 if how else None))
