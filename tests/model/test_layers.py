"""Each module of a layer against torch or transformers' own module, on small random numbers."""

from functools import partial

import pytest
import torch
from torch.nn import functional as F
from transformers.activations import ACT2FN
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from tokenmill.kernels.attend import AttentionShape
from tokenmill.model import experts as experts_module
from tokenmill.model import families
from tokenmill.model.blocks import Norm, Projection
from tokenmill.model.description import MlpBlock
from tokenmill.model.experts import MoE
from tokenmill.model.layers import ACTIVATIONS, MLP, Embedding, make_linear, make_norm
from tokenmill.model.mixers import attention_module
from tokenmill.model.mixers.attention import AttentionBlock
from tokenmill.model.mixers.attention_module import Attention
from tokenmill.model.mixture import ExpertsBlock
from tokenmill.quant.matrix import Matrix
from tokenmill.quant.schemes import Scheme

ALL = ("qkv", "gate_up", "norm", "rotary")
close = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-6)


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        yield


def filled(module):
    """The module with random numbers in all of its parameters."""
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    return module.requires_grad_(False)


# ---- norms


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("unit_offset", "peer"), [(False, LlamaRMSNorm), (True, GemmaRMSNorm)])
@pytest.mark.parametrize("fused", [(), ALL])
def test_rms_norms_are_those_of_transformers(dtype, unit_offset, peer, fused):
    ours, theirs = make_norm(Norm(24, "rms", 1e-2, unit_offset=unit_offset), fused), peer(24, eps=1e-2)
    weight = torch.randn(24)
    for norm in (ours, theirs):
        norm.weight.data = weight.to(dtype)
    x = torch.randn(5, 24).to(dtype)
    if fused and not unit_offset:
        assert torch.equal(ours(x), F.rms_norm(x, (24,), ours.weight, 1e-2))  # which rounds once
    else:
        assert torch.equal(ours(x), theirs(x))


def test_layer_norms_are_torchs():
    plain, biased = (filled(make_norm(Norm(8, "layer", 1e-3, bias), ALL)) for bias in (False, True))
    x = torch.randn(3, 8)
    assert plain.bias is None
    assert torch.equal(plain(x), F.layer_norm(x, (8,), plain.weight, None, 1e-3))
    assert torch.equal(biased(x), F.layer_norm(x, (8,), biased.weight, biased.bias, 1e-3))
    assert make_norm(None, ALL) is None


# ---- embeddings and matrices


def test_an_embedding_draws_no_numbers_of_its_own():
    table = Embedding(3, 2)
    before = table.weight.detach().clone()
    table.reset_parameters()
    assert torch.equal(table.weight.detach().view(torch.int32), before.view(torch.int32))


@pytest.mark.parametrize("bias", [False, True])
def test_a_matrix_in_parts_is_the_same_matrix(bias):
    projection = Projection("qkv", 6, (4, 2, 3), bias)
    apart, together = filled(make_linear(projection, Scheme(), ())), make_linear(projection, Scheme(), ("qkv",))
    together.load_state_dict(apart.state_dict())
    x = torch.randn(5, 6)
    assert type(together) is Matrix and type(apart) is not Matrix
    close(apart(x), together(x))
    assert set(apart.state_dict()) == ({"weight", "bias"} if bias else {"weight"})


def test_a_matrix_without_parts_is_one_product():
    assert type(make_linear(Projection("out", 6, (4,)), Scheme(), ())) is Matrix


# ---- MLP


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_those_of_transformers(name):
    x = torch.linspace(-4, 4, 101)
    torch.testing.assert_close(ACTIVATIONS[name](x), ACT2FN[name](x), rtol=1e-5, atol=1e-6)


def mlp(gated, activation="silu", bias=True, width=7):
    up = Projection("gate_up" if gated else "up", 5, (width, width) if gated else (width,), bias)
    return MlpBlock(up, Projection("down", width, (5,), bias), activation, gated)


@pytest.mark.parametrize("fused", [(), ALL])
def test_an_mlp_with_a_gate(fused):
    module, x = filled(MLP(mlp(True), Scheme(), fused)), torch.randn(4, 5)
    gate = F.silu(x @ module.up.weight[:7].T + module.up.bias[:7])
    up = x @ module.up.weight[7:].T + module.up.bias[7:]
    close(module(x), (gate * up) @ module.down.weight.T + module.down.bias)


def test_an_mlp_without_a_gate():
    module, x = filled(MLP(mlp(False, "relu"), Scheme(), ALL)), torch.randn(4, 5)
    up = F.relu(x @ module.up.weight.T + module.up.bias)
    close(module(x), up @ module.down.weight.T + module.down.bias)


def test_the_activations_that_a_config_may_name_are_computed():
    assert {*families.ACTIVATIONS} == {*ACTIVATIONS, "xielu"}


# ---- experts


def experts(**how):
    shared = mlp(True, width=3) if how.pop("shared", False) else None
    gate = Projection("shared_gate", 5, (1,)) if how.pop("gate", False) else None
    given = {"num": 4, "chosen": 2, "normalise": True} | how
    return ExpertsBlock(Projection("router", 5, (given["num"],)), mlp(True), shared=shared, shared_gate=gate, **given)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"normalise": False},
        {"scores": "sigmoid"},
        {"scores": "sigmoid", "normalise": False, "chosen": 1},
        {"shared": True},
        {"shared": True, "gate": True, "chosen": 3},
    ],
    ids=str,
)
def test_a_token_is_the_weighted_sum_of_its_experts(monkeypatch, how, traced):
    monkeypatch.setattr(experts_module, "is_traced", lambda: traced)
    block = experts(**how)
    module, x = filled(MoE(block, Scheme(), ALL)), torch.randn(6, 5)
    expected = []
    for row in x:
        logits = module.router.weight @ row
        scores = logits.sigmoid() if block.scores == "sigmoid" else logits.softmax(-1)
        chosen = sorted(range(block.num), key=lambda expert: -float(scores[expert]))[: block.chosen]
        total = sum(scores[expert] for expert in chosen) if block.normalise else 1.0
        out = sum(module.experts[expert](row[None])[0] * scores[expert] / total for expert in chosen)
        if block.shared is not None:
            part = module.shared(row[None])[0]
            out = out + (part * (module.shared_gate.weight @ row).sigmoid() if block.shared_gate else part)
        expected.append(out)
    torch.testing.assert_close(module(x), torch.stack(expected), rtol=1e-4, atol=1e-5)


def test_only_chosen_experts_are_run():
    module = filled(MoE(experts(chosen=1), Scheme(), ALL))
    run = []
    for number, expert in enumerate(module.experts):
        expert.register_forward_hook(lambda _, given, __, number=number: run.append((number, len(given[0]))))
    x = torch.randn(1, 5).repeat(3, 1)
    module(x)
    assert run == [(int((module.router.weight @ x[0]).argmax()), 3)]


# ---- attention

HEADS, KV_HEADS, WIDTH, HIDDEN = 4, 2, 6, 10


def attention(fused=ALL, norms=(), **shape):
    q, kv = HEADS * WIDTH, KV_HEADS * WIDTH
    return filled(
        Attention(
            AttentionBlock(
                HEADS,
                KV_HEADS,
                WIDTH,
                Projection("qkv", HIDDEN, (q, kv, kv), True),
                Projection("out", q, (HIDDEN,), True),
                norms,
                None,
                AttentionShape(0.5, **shape),
            ),
            Scheme(),
            fused,
        )
    )


def handed_over(module, x, angles):
    """What the kernel is called with, and what comes of it if it gives back the queries."""
    calls = []

    def attend(*given):
        calls.append(given)
        return given[0]

    out = module(x, angles, "rows", "step", attend)
    [(q, k, v, layer_kv, step, shape, sinks)] = calls
    assert (layer_kv, step, shape) == ("rows", "step", module.shape)
    expected = q.reshape(len(x), -1) @ module.out.weight.T + module.out.bias
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    return q, k, v, sinks


def projected(module, x):
    rows = (x @ module.qkv.weight.T + module.qkv.bias).view(len(x), HEADS + 2 * KV_HEADS, WIDTH)
    return rows.split([HEADS, KV_HEADS, KV_HEADS], dim=1)


NORM = Norm(WIDTH, "rms", 1e-5)
WIDE = (Norm(HEADS * WIDTH, "rms", 1e-5), Norm(KV_HEADS * WIDTH, "rms", 1e-5))
ROTATED = (torch.randn(3, 1, WIDTH), torch.randn(3, 1, WIDTH))


@pytest.mark.parametrize("fused", [(), ALL])
@pytest.mark.parametrize("angles", [None, ROTATED], ids=["no rope", "rope"])
@pytest.mark.parametrize("norms", [(), (NORM, NORM), WIDE], ids=["no norm", "each head", "all heads"])
def test_queries_and_keys_are_normed_then_rotated(norms, angles, fused):
    module, x = attention(fused, norms), torch.randn(3, HIDDEN)
    q, k, v = projected(module, x)
    if norms == (NORM, NORM):
        q, k = (F.rms_norm(y, (WIDTH,), norm.weight, 1e-5) for y, norm in ((q, module.q_norm), (k, module.k_norm)))
    elif norms:
        q, k = (
            F.rms_norm(y.flatten(1), norm.weight.shape, norm.weight, 1e-5).view(y.shape)
            for y, norm in ((q, module.q_norm), (k, module.k_norm))
        )
    if angles is not None:
        cos, sin = angles
        half = WIDTH // 2
        q, k = (y * cos + torch.cat((-y[..., half:], y[..., :half]), -1) * sin for y in (q, k))
    for found, expected in zip(handed_over(module, x, angles), (q, k, v)):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_sinks_are_handed_over_where_there_are_any():
    with_sinks, x = attention(sinks=True), torch.randn(3, HIDDEN)
    assert with_sinks.sinks.shape == (HEADS,)
    assert handed_over(with_sinks, x, None)[3] is with_sinks.sinks
    assert handed_over(attention(), x, None)[3] is None


@pytest.mark.parametrize(("fused", "name"), [((), "apply_rotary"), (("rotary",), "apply_rotary_in_halves")])
def test_how_it_rotates(fused, name):
    assert attention(fused).rotate is getattr(attention_module, name)
