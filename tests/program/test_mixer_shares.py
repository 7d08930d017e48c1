"""The shares of a mixer: all ranks together have every head and channel, and each has what its heads need."""

import itertools

import pytest

from tests.state_model import SumBlock
from tests.tiny_models import HYBRIDS, TINY, config_of
from tokenmill.model.blocks import Projection
from tokenmill.model.description import describe
from tokenmill.model.families import read_config
from tokenmill.program.mixer_shares import refuse_division, share_of


def mixers(name):
    decoder = describe(read_config(config_of(*TINY[name]).to_dict()))
    return [mixer for layer in decoder.layers if layer.mixes for mixer in layer.mixers]


def covered(ranges, size):
    return set(itertools.chain.from_iterable(ranges)) == set(range(size))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("name", [*HYBRIDS, "llama", "gpt_oss", "bamba", "bamba-departures", "mamba2"])
def test_all_ranks_together_have_everything(name, ranks):
    for block in mixers(name):
        if refuse_division(block, ranks) is not None:
            continue
        shares = [share_of(block, rank, ranks) for rank in range(ranks)]
        whole = [block.matrices["out"].inputs] * (1 if shares[0].joined else ranks)
        assert sum(share.width for share in shares) == sum(whole)
        for role in shares[0].rows:
            assert covered(itertools.chain(*(share.rows[role] for share in shares)), block.matrices[role].outputs)
            for share in shares:
                assert sum(map(len, share.rows[role])) == share.block.matrices[role].outputs
        for name_, shape in block.vectors.items():
            assert covered(itertools.chain(*(share.vectors[name_] for share in shares)), shape[0])
            for share in shares:
                assert sum(map(len, share.vectors[name_])) == share.block.vectors[name_][0]


def test_what_is_not_divided_says_why():
    unknown = SumBlock(Projection("inner", 8, (8,)), Projection("outer", 8, (8,)))
    assert refuse_division(unknown, 2) == "does not divide running_sum among ranks"
    (block, *_), (attention,) = mixers("granitemoehybrid-mamba"), mixers("llama")[:1]
    assert refuse_division(block, 2) is None and refuse_division(block, 4) is None
    assert refuse_division(block, 3) == (
        "divides the 2 groups of Mamba 2 among 1 to 2 ranks or a multiple of 2, and tensor_parallel is 3"
    )
    assert refuse_division(attention, 3) == (
        "gives each rank a kv head, and this model has 2 kv heads for tensor_parallel = 3"
    )
