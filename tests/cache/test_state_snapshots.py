"""Snapshots of states, on the tiny model: a text is that of an engine without a cache wherever it goes on."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import cache
from random import Random

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.cache.test_prefix_store import blocks
from tests.cache.test_state_layers import said, summing
from tests.empty import check_empty
from tests.integrity import check_scheduler
from tests.random_conversations import conversations, hold
from tests.state_model import save_with_states
from tests.tiny_models import VOCABULARY, prompt, save
from tokenmill.cache.header import shared_fields
from tokenmill.cache.pool import STATES
from tokenmill.errors import RequestError, SnapshotError
from tokenmill.loader import fit, resolve
from tokenmill.model.families import read_config
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.weights.checkpoint import read_config_json

NUM_CONVERSATIONS = int(os.environ.get("TOKENMILL_CONVERSATIONS", "8"))
GREEDY = {"max_new_tokens": 6, "ignore_eos": True}
START = prompt(45, seed=4)


@pytest.fixture
def path(tmp_path, monkeypatch):
    return save_with_states(tmp_path / "summing", monkeypatch)


@pytest.fixture(scope="module")
def text_of(tmp_path_factory):
    """What an engine without a cache says; the conversations of some tests are the same."""
    with pytest.MonkeyPatch.context() as patch:
        engine = summing(save_with_states(tmp_path_factory.mktemp("quiet") / "summing", patch), prefix_cache=False)

    @cache
    def text(tokens, *sampling):
        return engine.generate(list(tokens), **dict(sampling)).tokens

    return lambda tokens, sampling: list(text(tuple(tokens), *sorted(sampling.items())))


def states_of(engine):
    return engine.core.scheduler.memory.kinds[STATES].allocator


def turns(seed, number):
    """Conversations of at most 60 tokens, with forks, edits and cuts anywhere."""
    return conversations(Random(seed), number, (5, 25), (1, 9), (1, 12), VOCABULARY, num_open=4, max_length=62)


@pytest.mark.parametrize(
    ("how", "few"),
    [
        ({"block_size": 4}, False),
        ({"block_size": 4}, True),
        ({"block_size": 1}, True),
        ({"block_size": 8, "speculate": "suffix"}, False),
    ],
    ids=str,
)
def test_random_conversations_say_what_an_engine_without_a_cache_says(how, few, path, tmp_path, text_of, monkeypatch):
    """With sessions that are forked, rewound, saved and opened, and restarts on one directory."""
    if few:
        monkeypatch.setattr(resolve, "MAX_SNAPSHOTS", 3)
    start = lambda: summing(path, max_sequences=2, prefix_dir=str(tmp_path / "blocks"), **how)  # noqa: E731
    engine, random, found = start(), Random(7), 0

    def answer(turn):
        nonlocal engine, found
        if turn is None:
            engine.close()
            engine = start()
            return None
        tokens, count = turn
        sampling = {"max_new_tokens": count, "ignore_eos": True, "temperature": random.choice([0.0, 0.9]), "seed": 5}
        wanted = text_of(tokens, sampling)
        if random.random() < 0.8:
            got, cached = said(engine, tokens, sampling)
            found += cached
        else:
            got = in_a_session(engine, tokens, sampling, random, tmp_path / "x.kv")
        assert list(got) == wanted
        check_scheduler(engine.core.scheduler)
        return wanted

    hold(turns(3, NUM_CONVERSATIONS), answer)
    assert found
    check_empty(engine.core)


def in_a_session(engine, tokens, sampling, random, file):
    """What a session says that went elsewhere first, was forked, rewound, and perhaps saved and opened."""
    place = random.randrange(1, len(tokens))
    with engine.session([*tokens[:place], 1, 2]) as other:
        other.generate(**GREEDY | {"max_new_tokens": 2})
        with other.fork() as session:
            session.edit(place, tokens[place:])
            if random.random() < 0.5:
                session.prefill()
                session.save(file)
                with engine.open_session(file) as opened:
                    return opened.generate(**sampling).tokens
            return session.generate(**sampling).tokens


def test_where_no_layer_keeps_rows_a_restart_finds_the_states(tmp_path):
    """The blocks of rows have no bytes then, and their names tell where a text can go on."""
    path = save("mamba2", tmp_path)
    start = lambda: summing(path, block_size=4, prefix_dir=str(tmp_path / "blocks"))  # noqa: E731
    wanted = summing(path, prefix_cache=False).generate(START, **GREEDY).tokens
    for cached in (0, 36):  # the last end of a block before the 8 tokens that may open an answer
        engine = start()
        assert said(engine, START, GREEDY) == (wanted, cached)
        engine.close()


@pytest.mark.parametrize("num_sequences", [1, 8])
def test_where_no_layer_keeps_rows_each_text_has_two_snapshots(num_sequences, tmp_path):
    """As many as there are blocks would take 90 GB for Mamba 2 2.7B and eight sequences of 2,048 tokens."""
    spec = summing(save("mamba2", tmp_path), block_size=4, max_sequences=num_sequences).core.loaded.pool.spec
    # in 2 layers, 3 inputs of 128 convolved channels, and 8 heads of 12 x 16
    assert spec.bytes_per_token == 0 and spec.bytes_per_state == 2 * 4 * (128 * 3 + 8 * 12 * 16)
    assert spec.num_states == 4 * num_sequences + 7  # and the slots of drafts


def test_tokens_that_are_computed_again_are_counted(path):
    engine = summing(path, block_size=4, max_step_tokens=12)
    for tail, recomputed in (([], 0), ([1] * 9, 40 - 32), ([2] * 9, 40 - 32)):
        tokens, _ = said(engine, [*START[:41], *tail], GREEDY)
        assert engine.core.scheduler.num_recomputed == recomputed, tail
        assert tokens == summing(path, prefix_cache=False).generate([*START[:41], *tail], **GREEDY).tokens


def test_a_cache_that_fits_counts_its_states(path, monkeypatch):
    model = read_config(read_config_json(path))
    config = EngineConfig(str(path), program="eager", scheme="dense", device="cpu", max_length=64, block_size=4)
    weights = resolve.resolve(config, model).weight_bytes
    monkeypatch.setattr(fit, "free_bytes", lambda _: weights + 40_000)
    found = fit.fit_for_many(config, model, 2)

    def needed(cache_tokens):
        return resolve.resolve(replace(found, cache_tokens=cache_tokens), model).cache.num_bytes

    assert found.cache_tokens < 128 and needed(found.cache_tokens) <= fit.SHARE * 40_000 < needed(
        found.cache_tokens + 4
    )


def poison_states(engine):
    """Let every state that a later text can find be infinite."""
    pool = engine.core.loaded.pool
    for layer in pool.layers[::2]:
        layer.tensors[0].fill_(torch.inf)  # the sums; the other counts the tokens


def test_a_state_that_is_not_finite_fails_its_text_and_no_other(path):
    engine = summing(path, block_size=4, max_sequences=2)
    wanted = summing(path, prefix_cache=False)
    said(engine, START, GREEDY)
    poison_states(engine)
    bad, good = (
        engine.core.request(tokens, engine.core.inputs.params(GREEDY)) for tokens in (START, prompt(20, seed=9))
    )
    for request in (bad, good):
        engine.core.submit(request)
    with pytest.raises(RequestError, match="logits are not finite at position 45"):
        engine.core.finish([bad, good])
    for tokens in (prompt(20, seed=9), START):  # nothing of the bad text is found again
        assert said(engine, tokens, GREEDY)[0] == wanted.generate(tokens, **GREEDY).tokens


def test_a_session_with_a_state_that_is_not_finite_computes_it_again(path):
    engine = summing(path, block_size=4)
    with engine.session(START) as session:
        session.prefill()
        poison_states(engine)
        with pytest.raises(RequestError, match="logits are not finite"):
            session.generate(**GREEDY)
        wanted = summing(path, prefix_cache=False).generate(START, **GREEDY).tokens
        assert session.generate(**GREEDY).tokens == wanted


def test_a_state_that_is_not_finite_is_not_written(path, tmp_path):
    weights = load_file(path / "model.safetensors")
    weights["model.layers.0.sum.inner.weight"].fill_(3e38)
    save_file(weights, path / "model.safetensors")
    engine = summing(path, block_size=4, prefix_dir=str(tmp_path / "blocks"))
    with pytest.raises(RequestError, match="logits are not finite"):
        engine.generate(START, **GREEDY)
    num_rows = 36 // 4  # up to the end of a block near the prompt's end
    assert len(blocks(tmp_path / "blocks")) == num_rows


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda header, tensors: tensors.update({"0.state0": tensors["0.state0"][:, :3].contiguous()}), "0.state0 is"),
        (lambda header, tensors: tensors.pop("2.state1"), "missing or unknown: .*2.state1"),
        (lambda header, tensors: header["shape"].update(states=[]), "shape"),
    ],
    ids=["shape", "missing", "header"],
)
def test_a_state_of_another_shape_is_refused_by_name(change, named, path, tmp_path):
    from tokenmill.cache.snapshot import read_snapshot, write_snapshot

    engine, file = summing(path, block_size=4), tmp_path / "x.kv"
    with engine.session(START) as session:
        session.prefill()
        session.save(file)
    header, tensors = read_snapshot(file)
    header, tensors = dict(header), {name: tensor.clone() for name, tensor in tensors.items()}
    change(header, tensors)
    write_snapshot(file, header, tensors)
    with pytest.raises(SnapshotError, match=named):
        engine.open_session(file)


def test_blocks_of_another_shape_of_states_lie_in_another_folder(path):
    found = shared_fields(summing(path, block_size=4).core.loaded.compatibility)
    assert "states" in found["shape"]


PROCESSES = """
import os, sys, traceback
import pytest, torch
from tests import state_model
from tests.cache.test_state_layers import summing
from tests.cache.test_state_snapshots import turns
from tests.random_conversations import hold
from tokenmill.memory import atomic_file
torch.set_num_threads(1)  # no thread is there yet that a fork would lack
state_model.register(pytest.MonkeyPatch())
path, folder, replace = *sys.argv[1:], atomic_file.Path.replace

def tell(seed, last):
    written = []
    def killing(self, target):
        written.append(target)
        if len(written) == last:
            os._exit(9)  # before the name is there
        replace(self, target)
        if len(written) == last - 1 and seed % 2:
            os._exit(9)  # behind it
    atomic_file.Path.replace = killing
    engine = summing(path, block_size=4, prefix_dir=folder)
    def answer(turn):
        if turn is None:
            return None
        said = list(engine.generate(turn[0], max_new_tokens=turn[1], ignore_eos=True).tokens)
        os.write(1, f"{turn[0]} {said}\\n".encode())  # a line of one process at a time
        return said
    hold(turns(seed, 5), answer)

def begin(seed, last):
    child = os.fork()
    if not child:
        try:
            tell(seed, last)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return child

for last in (9, 10**9):
    children = [begin(seed, last) for seed in (5, 6, 5)]  # two have the same conversations
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    os.write(1, f"ended {codes}\\n".encode())
"""


@pytest.mark.slow
def test_three_processes_on_one_directory_with_kills(path, tmp_path, text_of):
    """Each is killed at a certain write and started again; all texts are equal to those without a cache."""
    command, seen, codes = [sys.executable, "-c", PROCESSES, str(path), str(tmp_path / "blocks")], set(), []
    for line in subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=600).stdout.splitlines():
        if line.startswith("ended "):
            codes.append(set(json.loads(line.removeprefix("ended "))))
            continue
        tokens, answer = (json.loads(part + "]") for part in line.rstrip("]").split("] "))
        seen.add((tuple(tokens), len(answer)))
        assert text_of(tokens, {"max_new_tokens": len(answer), "ignore_eos": True}) == answer
    assert codes == [{9}, {0}] and len(seen) > 5
