"""Layers that keep rows of other heads and widths: a tiny family of this test, compared with arithmetic written out."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from tests.tiny_models import prompt
from tokenmill.engine.load import load
from tokenmill.errors import ConfigError
from tokenmill.kernels import native_library
from tokenmill.model.families.llama import LLAMA
from tokenmill.registry import FAMILIES, Entry

HIDDEN, HEADS, WIDE, VOCABULARY = 24, 4, 40, 101
KV_HEADS, WIDTHS, ROTARY = (2, 1, 4), (8, 12, 8), 8
START = [token % VOCABULARY for token in prompt(29, seed=4)]


def read(reader):
    """Llama's, with two keys of its own."""
    return {
        **LLAMA.read(reader),
        "layer_kv_heads": tuple(reader.entries("kv_heads", int)),
        "layer_head_dims": tuple(reader.entries("widths", int)),
    }


UNEQUAL = replace(LLAMA, read=read, gguf=None)


@pytest.fixture(scope="module")
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


@pytest.fixture
def path(tmp_path, monkeypatch, weights):
    monkeypatch.setitem(FAMILIES, "unequal", Entry("of this test", f"{__name__}:UNEQUAL"))
    config = {
        "model_type": "unequal", "hidden_size": HIDDEN, "num_hidden_layers": len(WIDTHS), "num_attention_heads": HEADS,
        "num_key_value_heads": 2, "head_dim": ROTARY, "intermediate_size": WIDE, "vocab_size": VOCABULARY,
        "max_position_embeddings": 64, "torch_dtype": "float32", "kv_heads": KV_HEADS, "widths": WIDTHS,
    }  # fmt: skip
    folder = tmp_path / "unequal"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
    return folder


def norm(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def turned(x, angles):
    """The first ROTARY entries of each head, as pairs half a rotation apart."""
    first, second, rest = x[..., : ROTARY // 2], x[..., ROTARY // 2 : ROTARY], x[..., ROTARY:]
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)


def written_out(weights, tokens):
    """Logits of every position, all at once, without a cache."""
    x = weights["model.embed_tokens.weight"][tokens]
    length = len(tokens)
    angles = torch.arange(length)[:, None] / 10000.0 ** (torch.arange(0, ROTARY, 2) / ROTARY)
    ahead = torch.ones(length, length, dtype=torch.bool).triu(1)
    for number, (kv_heads, width) in enumerate(zip(KV_HEADS, WIDTHS, strict=True)):
        own = {name: weights[f"model.layers.{number}.{name}.weight"] for name in (
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
    return norm(x, weights["model.norm.weight"]) @ weights["lm_head.weight"].T


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"cache": False},
        {"block_size": 1},
        {"block_size": 3, "max_step_tokens": 5},
        {"program": "compiled", "compile": "no", "block_size": 16},
    ],
    ids=str,
)
def test_the_text_is_that_of_the_arithmetic(path, weights, how):
    engine = load(path, max_length=60, scheme="dense", **{"program": "eager", **how})
    torch.testing.assert_close(engine.logits(START), written_out(weights, START), atol=2e-4, rtol=1e-4)
    tokens = list(START)
    for token in engine.generate(START, max_new_tokens=20, ignore_eos=True).tokens:
        assert token == written_out(weights, tokens)[-1].argmax()
        tokens.append(token)


@pytest.mark.parametrize("cache_format", ["dense", "int8"])
def test_rows_are_shared_kept_on_disk_and_saved(path, tmp_path, cache_format):
    settings = {"max_length": 60, "program": "eager", "block_size": 4, "cache_format": cache_format}
    engine = load(path, max_sequences=2, prefix_dir=str(tmp_path / "blocks"), **settings)
    wanted = engine.generate(START, max_new_tokens=20, ignore_eos=True).tokens
    with engine.session(START) as session, session.fork() as other:
        begun = session.generate(max_new_tokens=9, ignore_eos=True).tokens
        session.save(tmp_path / "x.kv")
        assert other.generate(max_new_tokens=20, ignore_eos=True).tokens == wanted
    later = load(path, prefix_dir=str(tmp_path / "blocks"), **settings)
    assert later.generate(START, max_new_tokens=20, ignore_eos=True).tokens == wanted
    with later.open_session(tmp_path / "x.kv") as session:
        assert session.num_cached > len(START)
        assert begun + session.generate(max_new_tokens=11, ignore_eos=True).tokens == wanted


def test_its_bytes_are_the_sum_of_its_layers(path):
    engine = load(path, max_length=60, program="eager", block_size=4)
    row = sum(heads * width for heads, width in zip(KV_HEADS, WIDTHS, strict=True))
    assert engine.memory["cache_bytes"] == 2 * 4 * row * 60
    assert engine.core.loaded.compatibility["shape"] == {
        "num_layers": 3, "num_kv_heads": list(KV_HEADS), "head_dim": list(WIDTHS),
    }  # fmt: skip


@pytest.mark.skipif(native_library.why_not() is not None, reason=f"the library {native_library.why_not()}")
def test_the_native_program_says_that_it_has_no_such_layers(path):
    with pytest.raises(ConfigError, match="native: has no head widths that differ from layer to layer"):
        load(path, program="native")
    assert load(path).program_name == "eager"
