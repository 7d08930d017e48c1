"""Kernels of layers that keep a state: what the modules compute, the slots they read and write, a row's own bits."""

from dataclasses import replace
from math import inf

import pytest
import torch

from tokenmill.cache.pool import LayerStates
from tokenmill.cache.step import Span, Step
from tokenmill.model.mixers.delta_net import delta_net
from tokenmill.model.mixers.kda import kimi_delta
from tokenmill.model.mixers.mamba2 import mamba2
from tokenmill.model.mixers.short_conv import short_conv
from tokenmill.quant.schemes import find_scheme
from tokenmill.registry import MIXERS, lookup

pytest.importorskip("triton", reason="there is no Triton for this system")
from tokenmill.program.graphs.rows import StepRows
from tokenmill.program.graphs.states import MIX, GraphState

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Of the largest number. The modules round products to the model's dtype, and the kernels do not."""
HIDDEN = 48

NARROW = {"num_k_heads": 1, "num_v_heads": 2, "key_dim": 8, "value_dim": 12, "num_taps": 3, "eps": 1e-6}
MAMBA = {"num_heads": 2, "head_dim": 64, "num_groups": 1, "state_dim": 128, "num_taps": 4, "eps": 1e-5}
MAMBA |= {"bias": False, "conv_bias": True}
SMALL_MAMBA = MAMBA | {"head_dim": 12, "state_dim": 20}
BLOCKS = {
    "LFM2": short_conv(HIDDEN, 3, False),
    "LFM2 with biases": short_conv(136, 7, True),
    "Qwen 3.5": delta_net(HIDDEN, **NARROW | {"key_dim": 128, "value_dim": 128, "num_taps": 4}),
    "OLMo Hybrid": delta_net(HIDDEN, **NARROW | {"key_dim": 96, "value_dim": 192, "max_beta": 2.0}),
    "values of 12": delta_net(HIDDEN, **NARROW),
    "Kimi Linear": kimi_delta(HIDDEN, num_heads=2, head_dim=128, num_taps=4, eps=1e-5),
    "Kimi Linear, heads of 12": kimi_delta(HIDDEN, num_heads=3, head_dim=12, num_taps=3, eps=1e-5),
    "Granite 4": mamba2(HIDDEN, **MAMBA),
    "Nemotron-H": mamba2(HIDDEN, **MAMBA | {"head_dim": 80, "num_groups": 2, "dt_limits": (0.001, inf)}),
    "biases, limits": mamba2(HIDDEN, **SMALL_MAMBA | {"bias": True, "conv_bias": False, "dt_limits": (0.5, 0.9)}),
    "norm before the gate": replace(mamba2(HIDDEN, **MAMBA | {"num_groups": 2}), norm_first=True),
    "no norm": replace(mamba2(HIDDEN, **SMALL_MAMBA), norm=None),
}  # fmt: skip


SMALL = ("LFM2", "values of 12", "Kimi Linear, heads of 12", "biases, limits")
EVERY = [*((case, torch.float32) for case in BLOCKS), *((case, dtype) for case in SMALL for dtype in [*TOLERANCE][1:])]


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def module_of(block, dtype):
    """A module with weights at which nothing vanishes, norms around 1."""
    made = lookup(MIXERS, block.name, "mixer", computes=True)(block, find_scheme("dense"), ()).to(DEVICE)
    for number, (name, each) in enumerate(made.named_parameters()):
        drawn = normal(*each.shape, seed=number)
        each.data = (1 + 0.2 * drawn if name.startswith("norm") else 0.4 * drawn).to(dtype)
        each.requires_grad_(False)
    return made


class Product:
    """Stands for the kernel of products, which is slow where it is interpreted."""

    def __init__(self, module):
        self.module, self.num_outputs = module, len(module.weight)

    def __call__(self, x, out, norm):
        module = self.module
        made = (x.float()[:, None] * module.weight.float()).sum(-1)  # row by row in one order
        out[:, : self.num_outputs] = made if module.bias is None else made + module.bias.float()
        return out


def both(block, dtype):
    """The mixer and the module, without their last matrix."""
    module = module_of(block, dtype)
    mixer = GraphState(block, module)
    mixer.chains = [[Product(getattr(module, role)) for role in chain] for chain in MIX[block.name][0]]
    module.out = torch.nn.Identity()
    return mixer, module


def states_of(block, seed=50):
    """Slots of states that are all different."""
    kept = LayerStates(8, block.keeps, lambda shape, dtype: torch.zeros(shape, dtype=dtype, device=DEVICE))
    for number, each in enumerate(kept.tensors):
        each.copy_(normal(*each.shape, seed=seed + number))
    return kept


def step_of(slots):
    """A step of one token for each pair of slots, the first of which is None where a text begins."""
    spans = [Span(row, 1, 5, 0, None, 1, state=first, saves=((1, filled),)) for row, (first, filled) in slots]
    count = len(spans)
    return Step([1] * count, [5] * count, [0] * count, spans, None, count, DEVICE)


SLOTS = list(enumerate([(None, 2), (5, 5), (6, 7)]))
"""A text begins, one goes on in its slot, and one leaves a state behind that later texts may find."""


def computed(mixer, x, kept, slots):
    """What the mixer computes of rows with these slots."""
    given = torch.tensor([[-1 if first is None else first, filled] for first, filled in slots], device=DEVICE)
    return mixer(x, None, kept.tensors, StepRows(given, given[:, 0], 1, scratch=given, slots_B2=given))


@pytest.mark.parametrize(("case", "dtype"), EVERY, ids=str)
@torch.inference_mode()
def test_a_token_of_each_text(case, dtype):
    """Two steps, with a row that fills up a graph: the modules' results and states, and no other slot is written."""
    block = BLOCKS[case]
    (mixer, module), ours, theirs = both(block, dtype), states_of(block), states_of(block)
    slots = [*(pair for _, pair in SLOTS), (-1, -1)]
    for number in range(2):
        x = normal(4, block.out.outputs, seed=90 + number).to(dtype)
        wanted = module(x[:3], None, theirs, step_of(SLOTS), None).float()
        found = computed(mixer, x, ours, slots)[:3].float()
        assert (found - wanted).abs().max() <= TOLERANCE[dtype] * wanted.abs().max()
    for found, wanted, untouched in zip(ours.tensors, theirs.tensors, states_of(block).tensors, strict=True):
        others = [0, 1, 3, 4, 6]
        assert torch.equal(found[others], untouched[others])
        assert (found - wanted).abs().max() <= TOLERANCE[dtype] * wanted.abs().max()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("case", SMALL)
@torch.inference_mode()
def test_a_row_alone_has_the_bits_that_it_has_among_others(case, dtype):
    block = BLOCKS[case]
    (mixer, _), together = both(block, dtype), states_of(block)
    x = normal(3, block.out.outputs, seed=90).to(dtype)
    whole = computed(mixer, x, together, [pair for _, pair in SLOTS])
    for row, (first, filled) in SLOTS:
        alone = states_of(block)
        assert torch.equal(computed(mixer, x[row : row + 1], alone, [(first, filled)])[0], whole[row])
        assert all(torch.equal(a[filled], b[filled]) for a, b in zip(alone.tensors, together.tensors, strict=True))


@torch.inference_mode()
def test_numbers_that_are_none_stay_none():
    """NaN in a state or an input must fail its text and no other."""
    for case in SMALL:
        block = BLOCKS[case]
        (mixer, _), kept = both(block, torch.float32), states_of(block)
        kept.tensors[-1][5] = torch.nan
        found = computed(mixer, normal(3, block.out.outputs, seed=90), kept, [pair for _, pair in SLOTS])
        assert found.isfinite().all(1).tolist() == [True, False, True]
