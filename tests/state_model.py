"""A tiny family in which every other layer keeps a state, a decaying sum over the tokens; written out here."""

import json
from dataclasses import dataclass, replace
from functools import cache

import torch
from safetensors.torch import save_file
from torch import nn

from tests.tiny_models import VOCABULARY
from tokenmill.cache.spec import StateSpec
from tokenmill.model.blocks import Projection
from tokenmill.model.families.llama import LLAMA
from tokenmill.model.layers import make_linear
from tokenmill.registry import FAMILIES, MIXERS, Entry

HIDDEN, HEADS, KV_HEADS, WIDTH, WIDE, SUMS, LAYERS = 24, 4, 2, 8, 40, 12, 4
DECAY = 0.875


@dataclass(frozen=True)
class SumBlock:
    """The facts of the mixer: out(sum), where each token decays the sum and adds inner(x) to it."""

    inner: Projection
    outer: Projection
    name = "running_sum"
    rope = None
    keeps = StateSpec(((SUMS,), ()), ("float32", "float32"))  # the sum, and how many tokens it is of

    @property
    def matrices(self):
        return {"inner": self.inner, "outer": self.outer}

    @property
    def norms(self):
        return {}

    @property
    def vectors(self):
        return {}


class RunningSum(nn.Module):
    def __init__(self, block, scheme, fused):
        super().__init__()
        self.inner, self.outer = make_linear(block.inner, scheme, fused), make_linear(block.outer, scheme, fused)

    def forward(self, x_TD, angles, kept, step, attend):
        added = self.inner(x_TD).float()
        sums = torch.empty_like(added)
        for span in step.spans:
            total, count = (kept.read([span.state], number)[0] for number in (0, 1))
            assert count == span.start, "the state is not that of the tokens before the span"
            saves = dict(span.saves)
            for done, row in enumerate(range(span.first, span.first + span.count), 1):
                total = sums[row] = total * DECAY + added[row]
                if done in saves:
                    kept.write(0, [saves[done]], total)
                    kept.write(1, [saves[done]], count + done)
        return self.outer(sums.to(x_TD.dtype))


def read(reader):
    """Llama's, with a mixer of its own in every other layer."""
    block = SumBlock(Projection("in", HIDDEN, (SUMS,)), Projection("out", SUMS, (HIDDEN,)))
    return {**LLAMA.read(reader), "mixers": (block, None) * (LAYERS // 2)}


NAMES = {f"layers.{{i}}.sum.{name}.weight": f"layers.{{i}}.running_sum.{name}.weight" for name in ("inner", "outer")}
FAMILY = replace(LLAMA, read=read, gguf=None, names={**LLAMA.names, **NAMES})


@cache
def weights():
    torch.manual_seed(0)
    found = {
        "model.embed_tokens.weight": torch.randn(VOCABULARY, HIDDEN),
        "model.norm.weight": torch.rand(HIDDEN) + 0.5,
        "lm_head.weight": torch.randn(VOCABULARY, HIDDEN) / 5,
    }
    attention = {
        "self_attn.q_proj": (HEADS * WIDTH, HIDDEN),
        "self_attn.k_proj": (KV_HEADS * WIDTH, HIDDEN),
        "self_attn.v_proj": (KV_HEADS * WIDTH, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HEADS * WIDTH),
    }
    sums = {"sum.inner": (SUMS, HIDDEN), "sum.outer": (HIDDEN, SUMS)}
    mlp = {"mlp.gate_proj": (WIDE, HIDDEN), "mlp.up_proj": (WIDE, HIDDEN), "mlp.down_proj": (HIDDEN, WIDE)}
    for number in range(LAYERS):
        shapes = {**((sums, attention)[number % 2]), **mlp}
        found |= {f"model.layers.{number}.{name}.weight": torch.randn(shape) / 5 for name, shape in shapes.items()}
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"model.layers.{number}.{name}.weight"] = torch.rand(HIDDEN) + 0.5
    return found


def register(monkeypatch):
    """Register the family and the mixer for as long as the patch lasts."""
    monkeypatch.setitem(FAMILIES, "summing", Entry("of this test", f"{__name__}:FAMILY"))
    monkeypatch.setitem(MIXERS, "running_sum", Entry("of this test", f"{__name__}:SumBlock", f"{__name__}:RunningSum"))


def save_with_states(folder, monkeypatch):
    """The path of the model, which is registered for as long as the patch lasts."""
    register(monkeypatch)
    config = {
        "model_type": "summing", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": WIDTH, "intermediate_size": WIDE, "vocab_size": VOCABULARY,
        "max_position_embeddings": 128, "torch_dtype": "float32",
    }  # fmt: skip
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights(), folder / "model.safetensors")
    return folder


def _norm(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def _turned(x, angles):
    first, second = x.chunk(2, dim=-1)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def _attended(h, own):
    length = len(h)
    angles = torch.arange(length)[:, None] / 10000.0 ** (torch.arange(0, WIDTH, 2) / WIDTH)
    q = _turned((h @ own["self_attn.q_proj"].T).view(length, HEADS, WIDTH), angles)
    k = _turned((h @ own["self_attn.k_proj"].T).view(length, KV_HEADS, WIDTH), angles)
    v = (h @ own["self_attn.v_proj"].T).view(length, KV_HEADS, WIDTH)
    k, v = (each.repeat_interleave(HEADS // KV_HEADS, dim=1) for each in (k, v))
    ahead = torch.ones(length, length, dtype=torch.bool).triu(1)
    scores = torch.einsum("thd,shd->hts", q, k) / WIDTH**0.5
    mixed = torch.einsum("hts,shd->thd", scores.masked_fill(ahead, -torch.inf).softmax(-1), v)
    return mixed.reshape(length, -1) @ own["self_attn.o_proj"].T


def _summed(h, own):
    added, total, sums = h @ own["sum.inner"].T, torch.zeros(SUMS), []
    for row in added:
        total = total * DECAY + row
        sums.append(total)
    return torch.stack(sums) @ own["sum.outer"].T


def written_out(tokens):
    """Logits of every position, all at once, without a cache."""
    named = weights()
    x = named["model.embed_tokens.weight"][tokens]
    for number in range(LAYERS):
        begin = f"model.layers.{number}."
        own = {name[len(begin) : -len(".weight")]: each for name, each in named.items() if name.startswith(begin)}
        x = x + (_summed, _attended)[number % 2](_norm(x, own["input_layernorm"]), own)
        h = _norm(x, own["post_attention_layernorm"])
        gated = torch.nn.functional.silu(h @ own["mlp.gate_proj"].T) * (h @ own["mlp.up_proj"].T)
        x = x + gated @ own["mlp.down_proj"].T
    return _norm(x, named["model.norm.weight"]) @ named["lm_head.weight"].T
