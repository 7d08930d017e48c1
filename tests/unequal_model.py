"""A tiny family whose layers keep rows of other heads and widths; weights and arithmetic are written out here."""

import json
from dataclasses import replace
from functools import cache

import torch
from safetensors.torch import save_file

from tests.tiny_models import VOCABULARY
from tokenmill.model.families.llama import LLAMA
from tokenmill.registry import FAMILIES, Entry

HIDDEN, HEADS, WIDE = 24, 4, 40
KV_HEADS, WIDTHS, ROTARY = (2, 1, 4), (8, 12, 8), 8


def read(reader):
    """Llama's, with two keys of its own."""
    return {
        **LLAMA.read(reader),
        "layer_kv_heads": tuple(reader.entries("kv_heads", int)),
        "layer_head_dims": tuple(reader.entries("widths", int)),
    }


UNEQUAL = replace(LLAMA, read=read, gguf=None)


@cache
def weights():
    torch.manual_seed(0)
    found = {
        "model.embed_tokens.weight": torch.randn(VOCABULARY, HIDDEN),
        "model.norm.weight": torch.rand(HIDDEN) + 0.5,
    }
    found["lm_head.weight"] = torch.randn(VOCABULARY, HIDDEN) / 5
    for number, (kv_heads, width) in enumerate(zip(KV_HEADS, WIDTHS, strict=True)):
        shapes = {
            "self_attn.q_proj": (HEADS * width, HIDDEN),
            "self_attn.k_proj": (kv_heads * width, HIDDEN),
            "self_attn.v_proj": (kv_heads * width, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HEADS * width),
            "mlp.gate_proj": (WIDE, HIDDEN),
            "mlp.up_proj": (WIDE, HIDDEN),
            "mlp.down_proj": (HIDDEN, WIDE),
        }
        found |= {f"model.layers.{number}.{name}.weight": torch.randn(shape) / 5 for name, shape in shapes.items()}
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"model.layers.{number}.{name}.weight"] = torch.rand(HIDDEN) + 0.5
    return found


def save_unequal(folder, monkeypatch):
    """The path of the model, whose family is registered for as long as the patch lasts."""
    monkeypatch.setitem(FAMILIES, "unequal", Entry("of this test", f"{__name__}:UNEQUAL"))
    config = {
        "model_type": "unequal", "hidden_size": HIDDEN, "num_hidden_layers": len(WIDTHS), "num_attention_heads": HEADS,
        "num_key_value_heads": 2, "head_dim": ROTARY, "intermediate_size": WIDE, "vocab_size": VOCABULARY,
        "max_position_embeddings": 128, "torch_dtype": "float32", "kv_heads": KV_HEADS, "widths": WIDTHS,
    }  # fmt: skip
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights(), folder / "model.safetensors")
    return folder


def norm(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def turned(x, angles):
    """The first ROTARY entries of each head, as pairs half a rotation apart."""
    first, second, rest = x[..., : ROTARY // 2], x[..., ROTARY // 2 : ROTARY], x[..., ROTARY:]
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)


def written_out(tokens):
    """Logits of every position, all at once, without a cache."""
    named = weights()
    x = named["model.embed_tokens.weight"][tokens]
    length = len(tokens)
    angles = torch.arange(length)[:, None] / 10000.0 ** (torch.arange(0, ROTARY, 2) / ROTARY)
    ahead = torch.ones(length, length, dtype=torch.bool).triu(1)
    for number, (kv_heads, width) in enumerate(zip(KV_HEADS, WIDTHS, strict=True)):
        own = {name: named[f"model.layers.{number}.{name}.weight"] for name in (
            "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj",
            "mlp.up_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm",
        )}  # fmt: skip
        h = norm(x, own["input_layernorm"])
        q = turned((h @ own["self_attn.q_proj"].T).view(length, HEADS, width), angles)
        k = turned((h @ own["self_attn.k_proj"].T).view(length, kv_heads, width), angles)
        v = (h @ own["self_attn.v_proj"].T).view(length, kv_heads, width)
        k, v = (each.repeat_interleave(HEADS // kv_heads, dim=1) for each in (k, v))
        scores = torch.einsum("thd,shd->hts", q, k) / width**0.5
        mixed = torch.einsum("hts,shd->thd", scores.masked_fill(ahead, -torch.inf).softmax(-1), v)
        x = x + mixed.reshape(length, -1) @ own["self_attn.o_proj"].T
        h = norm(x, own["post_attention_layernorm"])
        gated = torch.nn.functional.silu(h @ own["mlp.gate_proj"].T) * (h @ own["mlp.up_proj"].T)
        x = x + gated @ own["mlp.down_proj"].T
    return norm(x, named["model.norm.weight"]) @ named["lm_head.weight"].T
