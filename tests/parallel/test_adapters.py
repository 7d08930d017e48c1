"""Adapters (LoRA) of a model that is divided among ranks: the bits of one process, for every kind of change."""

import gc
import os
import select
import threading
from contextlib import closing
from functools import cache

import pytest
import torch

from tests.engine.test_adapters import together
from tests.laws.test_law_01_adapters import KINDS as CHANGES
from tests.marks import needs_native
from tests.parallel.eager_in_threads import Threads
from tests.parallel.ranks_in_threads import RanksInThreads
from tests.peft_adapters import save_adapter
from tests.tiny_models import DIVISIBLE, HYBRIDS, KINDS, prompt, save
from tokenmill import CheckpointError, RankLost, SamplingParams, load
from tokenmill.hub.progress import Silent
from tokenmill.loader import ranks
from tokenmill.parallel import ranks as parallel_ranks
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.write.merge import merge

PROMPTS = [prompt(30, seed=1), prompt(11, seed=2), prompt(19, seed=3)]
NAMES = (None, "a", "b")
FAMILIES = [
    pytest.param(name, marks=() if name in ("llama", "mixtral", *HYBRIDS) else pytest.mark.slow)
    if name in (*KINDS, *HYBRIDS)
    else pytest.param(name, marks=pytest.mark.long)
    for name in DIVISIBLE
]
NORMS = {"target_modules": ["q_proj"], "modules_to_save": ["q_norm", "k_norm"]}
"""In a family of which each head has a norm of its own, so that each rank has a part of them."""
OF_DIVISIBLE = [kind for kind, (family, _) in CHANGES.items() if family in DIVISIBLE]


@pytest.fixture(scope="module")
def adapter_of(tmp_path_factory):
    """Gives the folder of an adapter of a family: of all its linears, or of one kind of change."""

    @cache
    def made(family, seed, kind=None):
        folder = tmp_path_factory.mktemp("adapter")
        save_adapter(family, folder, seed=seed, **({} if kind is None else CHANGES[kind][1]))
        return folder

    return made


def check_eager(path, folders, sizes, **settings):
    """Whether every rank has the logits of one process, for texts with several adapters in the same steps."""
    found = []
    for size in (1, *sizes):
        threads = Threads(path, size, max_sequences=3, **settings)
        for name, folder in zip(NAMES[1:], folders, strict=False):
            threads.load_adapter(name, folder)
        names = [*NAMES[: len(folders) + 1], "a"][:3]  # of the three texts
        found.append(threads.logits(*PROMPTS, adapters=names))
        found.append(threads.logits(*PROMPTS))
    (whole,), (plain,), *others = found
    assert not torch.equal(whole, plain), "an adapter changes the logits"
    for number, of_ranks in enumerate(others):
        for logits in of_ranks:
            assert torch.equal(logits, (whole, plain)[number % 2]), float((logits - whole).abs().max())


@pytest.mark.parametrize("family", FAMILIES)
def test_ranks_of_program_eager_have_the_bits_of_one_process(family, models, adapter_of):
    check_eager(save(family, models), [adapter_of(family, 0), adapter_of(family, 1)], sizes=(2,))


@pytest.mark.parametrize("settings", [{"dtype": "bfloat16"}, {"scheme": "dense"}, {"scheme": "q8"}], ids=str)
def test_storage_of_ranks_of_program_eager(settings, models, adapter_of):
    check_eager(save("llama", models), [adapter_of("llama", 0)], sizes=(2,), **settings)


@pytest.mark.parametrize("kind", OF_DIVISIBLE)
def test_every_kind_of_change_in_ranks_of_program_eager(kind, models, adapter_of):
    family, _ = CHANGES[kind]
    check_eager(save(family, models), [adapter_of(family, 0, kind)], sizes=(2,))


def test_norms_of_single_heads_in_ranks_of_program_eager(models, tmp_path):
    save_adapter("cohere-departures", tmp_path, **NORMS)
    check_eager(save("cohere-departures", models), [tmp_path], sizes=(2,))


def native(path, **settings):
    return load(path, program="native", **{"dtype": "float32", "threads": 1, "max_sequences": 4, **settings})


@pytest.fixture
def in_threads(monkeypatch):
    monkeypatch.setattr(ranks, "OtherRanks", RanksInThreads)


def check_native(path, folders, sizes=(2, 4), **settings):
    """Whether ranks have the logits of one process, of each text alone and of all in the same steps."""
    names = [None, *map(str, folders)]
    texts = [(tokens, name) for tokens in PROMPTS for name in names]
    with closing(native(path, **settings)) as one:
        for folder in folders:
            one.load_adapter(str(folder), folder)
        alone = {(len(tokens), name): one.logits(tokens, adapter=name) for tokens, name in texts}
    assert not torch.equal(alone[30, names[-1]], alone[30, None]), "an adapter changes the logits"
    for size in sizes:
        with closing(native(path, tensor_parallel=size, max_step_tokens=70, prefix_cache=False, **settings)) as engine:
            for folder in folders:
                engine.load_adapter(str(folder), folder)
            for tokens, name in texts:
                assert torch.equal(engine.logits(tokens, adapter=name), alone[len(tokens), name]), size
            for key, logits in together(engine, texts).items():
                assert torch.equal(logits, alone[key]), size


@needs_native
@pytest.mark.parametrize("family", FAMILIES)
def test_ranks_of_program_native_have_the_bits_of_one_process(family, models, adapter_of, in_threads):
    check_native(save(family, models), [adapter_of(family, 0), adapter_of(family, 1)])


@needs_native
@pytest.mark.parametrize(
    "settings", [{"dtype": "bfloat16"}, {"scheme": "q8", "threads": 2}, {"scheme": "q4", "dtype": "bfloat16"}], ids=str
)
def test_storage_of_ranks_of_program_native(settings, models, adapter_of, in_threads):
    check_native(save("llama", models), [adapter_of("llama", 0)], **settings)


@needs_native
@pytest.mark.parametrize("kind", OF_DIVISIBLE)
def test_every_kind_of_change_in_ranks_of_program_native(kind, models, adapter_of, in_threads):
    family, _ = CHANGES[kind]
    check_native(save(family, models), [adapter_of(family, 0, kind)], sizes=(2,))


def engine_of(program, models, **settings):
    """An engine of two ranks: threads where a test has set that for program native, otherwise processes."""
    how = {"dtype": "float32", "program": program, "threads": 1, "block_size": 4, "max_sequences": 4, **settings}
    return load(save("llama", models), **{"tensor_parallel": 2, **how})


GREEDY = {"max_new_tokens": 9, "ignore_eos": True}
PROCESSES = [pytest.param("native", marks=needs_native), "eager"]


@pytest.mark.parametrize("program", PROCESSES)
def test_texts_of_processes_are_those_of_merged_models(program, models, adapter_of, tmp_path):
    """Several adapters in one batch; rows of a prefix are each adapter's own; texts that run keep an adapter."""
    folders = {name: adapter_of("llama", seed) for seed, name in enumerate("ab")}
    tokens, wanted, logits = PROMPTS[0], {}, {}
    for name in (None, *folders):
        path = save("llama", models)
        if name is not None:
            path = merge(open_checkpoint(path), folders[name], tmp_path / name, "float32", Silent())
        with closing(load(path, dtype="float32", program=program, scheme="dense")) as merged:
            wanted[name], logits[name] = merged.generate(tokens, **GREEDY).tokens, merged.logits(tokens)
    assert len(set(wanted.values())) == 3
    with closing(engine_of(program, models, scheme="dense", lora_modules=f"a={folders['a']}")) as engine:
        engine.load_adapter("b", folders["b"])
        for name in (None, "a", "b", "a", None):
            assert engine.generate(tokens, adapter=name, **GREEDY).tokens == wanted[name]
            bound = 2e-5 * float(logits[name].abs().max())
            torch.testing.assert_close(engine.logits(tokens, adapter=name), logits[name], rtol=0, atol=bound)
        params = SamplingParams(**GREEDY)
        requests = {name: engine.core.request(tokens, params, adapter=name) for name in wanted}
        for name, done in zip(requests, engine.core.finish(list(requests.values())), strict=True):
            assert done.tokens == wanted[name]
        stream = engine.stream(tokens, adapter="b", **GREEDY)
        seen = list(next(iter(stream)).tokens)
        engine.unload_adapter("b")
        engine.load_adapter("b", folders["a"])
        seen += [token for piece in stream for token in piece.tokens]
        assert tuple(seen) == wanted["b"]
        assert engine.generate(tokens, adapter="b", **GREEDY).tokens == wanted["a"]


@pytest.mark.slow
@pytest.mark.parametrize("program", PROCESSES)
def test_a_rank_that_is_lost_while_it_takes_an_adapter_ends_the_load(program, models, adapter_of, monkeypatch):
    monkeypatch.setenv("TOKENMILL_TEST_RANK", "dies of an adapter")
    monkeypatch.setattr(ranks, "MODULE", "tests.parallel.other_rank")
    monkeypatch.setattr(parallel_ranks, "MODULE", "tests.parallel.other_native_rank")
    with closing(engine_of(program, models)) as engine:
        with pytest.raises(RankLost, match="ended with exit code 3"):
            engine.load_adapter("a", adapter_of("llama", 0))
        assert not engine.adapters


@pytest.mark.parametrize("program", PROCESSES)
def test_a_rank_that_cannot_take_an_adapter_leaves_all_as_before(program, models, adapter_of, monkeypatch):
    """Its reason is the error of the load. A is taken, b is refused, and a and c are computed after it."""
    monkeypatch.setenv("TOKENMILL_TEST_RANK", "has no memory for b")
    monkeypatch.setattr(ranks, "MODULE", "tests.parallel.other_rank")
    monkeypatch.setattr(parallel_ranks, "MODULE", "tests.parallel.other_native_rank")
    folders = {name: adapter_of("llama", seed) for seed, name in enumerate("abc")}
    with closing(engine_of(program, models, tensor_parallel=1)) as one:
        for name in "ac":
            one.load_adapter(name, folders[name])
        texts = {name: one.generate(PROMPTS[0], adapter=name, **GREEDY).tokens for name in (None, "a", "c")}
    with closing(engine_of(program, models)) as engine:
        engine.load_adapter("a", folders["a"])
        with pytest.raises(CheckpointError, match=r"adapter b .*rank 1 cannot take it: no memory is left; every rank"):
            engine.load_adapter("b", folders["b"])
        assert [*engine.adapters] == ["a"]
        engine.load_adapter("c", folders["c"])
        assert {name: engine.generate(PROMPTS[0], adapter=name, **GREEDY).tokens for name in (None, "a", "c")} == texts


@pytest.mark.parametrize("program", PROCESSES)
def test_texts_run_while_a_rank_takes_an_adapter(program, models, adapter_of, tmp_path, monkeypatch):
    """Through all of its load, without a wait for it, and with the same bits."""
    pipes = {}
    for name in ("begun", "goes on"):
        os.mkfifo(tmp_path / name)
        pipes[name] = os.open(tmp_path / name, os.O_RDWR)
    monkeypatch.setenv("TOKENMILL_TEST_RANK", f"waits in {tmp_path}")
    monkeypatch.setattr(ranks, "MODULE", "tests.parallel.other_rank")
    monkeypatch.setattr(parallel_ranks, "MODULE", "tests.parallel.other_native_rank")
    folders = {name: adapter_of("llama", seed) for seed, name in enumerate("ab")}
    said, greedy = [], {"max_new_tokens": 24, "ignore_eos": True, "logprobs": 3}
    with closing(engine_of(program, models, lora_modules=f"a={folders['a']}", prefix_cache=False)) as engine:
        wanted = {name: engine.generate(PROMPTS[0], adapter=name, **greedy) for name in (None, "a")}
        across = engine.stream(PROMPTS[1], adapter="a", **greedy)
        pieces, loading = [next(iter(across))], threading.Thread(target=engine.load_adapter, args=("b", folders["b"]))
        loading.start()

        def run():
            pieces.extend(across)  # alone: in program eager the bits of a text depend on the others in its steps
            said.extend(engine.generate(PROMPTS[0], adapter=name, **greedy) for name in wanted)

        try:
            assert select.select([pipes["begun"]], [], [], 120)[0]
            ask = threading.Thread(target=run)
            ask.start()
            ask.join(120)
            assert not ask.is_alive(), "the steps wait for the adapter"
            assert loading.is_alive()
        finally:
            os.write(pipes["goes on"], b".")
            loading.join(120)
        for done, alone in zip(said, wanted.values(), strict=True):
            assert (done.tokens, done.logprobs) == (alone.tokens, alone.logprobs)
        alone = engine.generate(PROMPTS[1], adapter="a", **greedy)
        assert tuple(token for piece in pieces for token in piece.tokens) == alone.tokens
        assert tuple(each for piece in pieces for each in piece.logprobs) == alone.logprobs
        assert engine.generate(PROMPTS[1], adapter="b", **greedy).tokens != alone.tokens
    for pipe in pipes.values():
        os.close(pipe)


@needs_native
def test_ranks_forget_an_adapter_with_the_last_text(models, adapter_of, in_threads):
    """Once nothing of rank 0 computes with it; at the next load or unload."""
    with closing(engine_of("native", models)) as engine:
        (taken,) = engine.core.loaded.program.ranks.taken
        held = taken.result()._by_number
        for name, seed in (("a", 0), ("b", 1)):
            engine.load_adapter(name, adapter_of("llama", seed))
        session = engine.session(PROMPTS[0], adapter="a")
        wanted = session.fork().generate(**GREEDY).tokens
        engine.unload_adapter("a")
        assert [each.name for each in held.values()] == ["a", "b"]
        assert session.generate(**GREEDY).tokens == wanted
        session.close()
        del session
        gc.collect()
        engine.unload_adapter("b")
        assert not held
