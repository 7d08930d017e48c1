"""Small steps of the native program, in which no thread waits after a gate: what follows it writes elsewhere."""

from itertools import pairwise

import pytest
import torch

from tests.marks import needs_native
from tests.tiny_models import TINY, prompt, save
from tokenmill import load
from tokenmill.program.native.op_list import ATTEND, GATE, LINEAR, STORE

pytestmark = needs_native


def columns_read(op, num_heads):
    """Find the stored columns that every thread reads for all rows: of a gate, or of the gates of attention."""
    if op.kind == GATE:
        firsts = [op.gate] if op.of_inputs else [op.gate, op.column]
        return {column for first in firsts for column in range(first, first + op.outputs)}
    return set(range(num_heads * op.head_dim)) if op.kind == ATTEND and op.gated else set()


@pytest.mark.parametrize("name", TINY)
def test_no_linear_stores_over_what_slower_threads_still_read(name, models):
    loaded = load(save(name, models), program="native").core.loaded
    ops = list(loaded.program.ops.array)
    for before, op in pairwise(ops):
        if op.kind == LINEAR and op.epilogue == STORE:
            written = set(range(op.column, op.column + op.outputs))
            assert not written & columns_read(before, loaded.model_config.num_heads)


@pytest.mark.parametrize("name", ["gemma4_text-small", "gemma3n_text"])
def test_inputs_of_layers_have_the_same_bits_in_any_number_of_threads(name, models):
    settings = {"dtype": "float32", "program": "native"}
    path = save(name, models)
    wanted = load(path, **settings, threads=1).logits(prompt(22))
    for _ in range(3):
        assert torch.equal(load(path, **settings, threads=3, max_step_tokens=1).logits(prompt(22)), wanted)
