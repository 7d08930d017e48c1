"""Adapters (LoRA) of a model that is divided among ranks: the bits of one process, for every kind of change."""

from contextlib import closing
from functools import cache

import pytest
import torch

from tests.laws.test_law_01_adapters import KINDS as CHANGES
from tests.marks import needs_native
from tests.parallel.eager_in_threads import Threads, save_with_three_kv_heads
from tests.parallel.ranks_in_threads import RanksInThreads
from tests.peft_adapters import save_adapter
from tests.tiny_models import DIVISIBLE, HYBRIDS, KINDS, prompt, save
from tokenmill import CheckpointError, ConfigError, load
from tokenmill.loader import ranks

PROMPTS = [prompt(30, seed=1), prompt(11, seed=2), prompt(19, seed=3)]
NAMES = (None, "a", "b")
FAMILIES = [
    pytest.param(name, marks=() if name in ("llama", "mixtral", *HYBRIDS) else pytest.mark.slow)
    if name in (*KINDS, *HYBRIDS)
    else pytest.param(name, marks=pytest.mark.long)
    for name in DIVISIBLE
]
DIVIDED = ["norms of bamba"]
"""Changes of a norm of which each rank of program eager has a part."""


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
        names = [*NAMES[: len(folders) + 1], "a"][:3]
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


@pytest.mark.parametrize("kind", CHANGES)
def test_every_kind_of_change_in_ranks_of_program_eager(kind, models, adapter_of):
    family, _ = CHANGES[kind]
    how = save(family, models), [adapter_of(family, 0, kind)]
    if kind not in DIVIDED:
        return check_eager(*how, sizes=(2,))
    with pytest.raises(ConfigError, match=r"adapter = 'a' .* mamba.norm, of which each rank has a part: merge it"):
        check_eager(*how, sizes=(2,))
    return None
