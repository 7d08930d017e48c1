"""Small steps of the native program, in which no thread waits after a gate: what follows it writes elsewhere."""

import ctypes
from itertools import pairwise

import pytest
import torch

from tests.marks import needs_native
from tests.tiny_models import TINY, config_of, prompt, save
from tokenmill import load
from tokenmill.cache.pool import Pool
from tokenmill.loader.resolve import resolve
from tokenmill.model.description import describe
from tokenmill.model.families import read_config
from tokenmill.program.native.op_list import ATTEND, GATE, LINEAR, STORE
from tokenmill.program.native.ops import Ops
from tokenmill.settings.engine_config import EngineConfig

pytestmark = needs_native


class NoWeights:
    """In the place of weights, of which columns are no part: small tensors are a 1 that nobody multiplies by."""

    one = ctypes.c_float(1)

    def keep(self, wanted):
        return ctypes.addressof(self.one)

    keep_table = keep

    def place(self, linears):
        return [{} for _ in linears]


def ops_of(resolved):
    """The operations of a model of which there is no more than its config."""
    pool, config = Pool(resolved.cache, torch.device("cpu")), resolved.config
    decoder = describe(resolved.model)
    return Ops(decoder, resolved.scheme, config.dtype, pool.layers, NoWeights(), config.max_length).array


def columns_read(op):
    """Find the stored columns that every thread reads for all rows: of a gate, or of the gates of attention."""
    if op.kind == GATE:
        firsts = [op.gate] if op.of_inputs else [op.gate, op.column]
        return {column for first in firsts for column in range(first, first + op.outputs)}
    return set(range(op.gate, op.gate + op.columns)) if op.kind == ATTEND and op.gated else set()


@pytest.mark.parametrize("name", TINY)
def test_no_linear_stores_over_what_slower_threads_still_read(name):
    resolved = resolve(EngineConfig(program="native"), read_config(config_of(*TINY[name]).to_dict()))
    for before, op in pairwise(ops_of(resolved)):
        if op.kind == LINEAR and op.epilogue == STORE:
            written = set(range(op.column, op.column + op.outputs))
            assert not written & columns_read(before)


@pytest.mark.parametrize("name", ["gemma4_text-small", "gemma3n_text"])
def test_inputs_of_layers_have_the_same_bits_in_any_number_of_threads(name, models):
    settings = {"dtype": "float32", "program": "native"}
    path = save(name, models)
    wanted = load(path, **settings, threads=1).logits(prompt(22))
    ours = load(path, **settings, threads=3, max_step_tokens=1)
    for _ in range(3):
        assert torch.equal(ours.logits(prompt(22)), wanted)
