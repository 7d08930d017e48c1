"""Codes: rounding, files that keep theirs, and the native program's products of them."""

from math import log2

import gguf
import pytest
import torch

from tests import gguf_files
from tests.gguf_files import random_rows, write
from tests.marks import needs_native, skip_unless_it_runs
from tests.tiny_models import prompt, save
from tokenmill.cli.main import main
from tokenmill.engine.load import load
from tokenmill.hub.progress import Silent
from tokenmill.kernels import native_library
from tokenmill.quant import matrix as dense
from tokenmill.quant.quantized import QuantizedLinear
from tokenmill.quant.rtn import round_to_nearest
from tokenmill.quant.stored import Stored
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.gguf.header import KINDS
from tokenmill.weights.write.quantize import quantize

LONG = prompt(97, seed=5)


@needs_native
@pytest.mark.parametrize("scheme", ["q8", "q4"])
@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3"])
def test_native_is_eager_up_to_the_rounding_of_activations(family, scheme, models):
    """Both have the same codes. Activations in 8 bits are off by up to 1 / 254 of a group's largest: 0.6 % of a row's
    size in each of 8 products, which two layers of random weights make 2.4 % of (measured; 4 % allowed)."""
    path = save(family, models)
    eager = load(path, program="eager", scheme=scheme, dtype="float32").logits(LONG)
    ours = load(path, program="native", scheme=scheme, dtype="float32", threads=1).logits(LONG)
    assert (ours - eager).pow(2).mean().sqrt() < 0.04 * eager.pow(2).mean().sqrt()


WAYS = [({"max_step_tokens": 1}, 1), ({"max_step_tokens": 7}, 2), ({"max_step_tokens": 20}, 2)]
WAYS += [({"max_step_tokens": 20}, 1), ({"block_size": 3}, 2)]
OTHER_WAYS = [({"max_step_tokens": 1}, 2), ({"max_step_tokens": 7}, 1), ({"block_size": 3}, 1)]


@needs_native
@pytest.mark.parametrize("ways", [WAYS, pytest.param(OTHER_WAYS, marks=pytest.mark.long)], ids=["some", "others"])
@pytest.mark.parametrize("build", native_library.BUILDS)
@pytest.mark.parametrize("scheme", ["q8", "q4"])
def test_the_same_bits_for_any_chunk_and_thread(build, scheme, ways, models, monkeypatch):
    skip_unless_it_runs(build)
    monkeypatch.setattr("tokenmill.program.native.program.Native.build", build)
    path = save("llama", models)

    def logits(**settings):
        return load(path, program="native", scheme=scheme, dtype="float32", **settings).logits(LONG)

    whole = logits(threads=1)
    for settings, threads in ways:
        assert torch.equal(logits(threads=threads, **settings), whole)


@needs_native
def test_weights_take_what_their_bits_say(models):
    path = save("llama", models)
    taken = {
        s: load(path, program="native", scheme=s, dtype="float32").memory["matrix_bytes"] for s in ("dense", "q8", "q4")
    }
    assert taken["q8"] / taken["dense"] == pytest.approx(8.5 / 32)
    assert taken["q4"] / taken["dense"] == pytest.approx(5 / 32)


def test_eager_multiplies_codes_too(models):
    path = save("llama", models)
    full = load(path, program="eager", dtype="float32").logits(LONG)
    q8 = load(path, program="eager", scheme="q8", dtype="float32").logits(LONG)
    assert 0 < (q8 - full).pow(2).mean().sqrt() < 0.04 * full.pow(2).mean().sqrt()


@needs_native
@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("kind", [gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0])
def test_codes_of_a_file_are_kept_whichever_way_round_it_names_them(name, kind, tmp_path):
    """GPT-2's matrices are [in, out] in Hugging Face's words and [out, in] in a GGUF: the codes go in as they lie."""
    path = write(tmp_path / "x.gguf", name, kind)
    ours = load(path, threads=1)
    dense = load(path, program="native", dtype="float32", scheme="dense", threads=1)
    assert (ours.config.scheme, dense.config.scheme) == ("file", "dense")
    assert ours.memory["matrix_bytes"] < 0.4 * dense.memory["matrix_bytes"]
    wanted = load(path, program="eager", dtype="float32", scheme="dense").logits(LONG)
    assert (ours.logits(LONG) - wanted).pow(2).mean().sqrt() < 0.05 * wanted.pow(2).mean().sqrt()


WIDE = {**gguf_files.LLAMA, "hidden_size": 256, "intermediate_size": 256, "tie_word_embeddings": True}


ONE_OF_EACH_LAYOUT = ("Q5_0", "Q5_K", "Q6_K", "IQ4_XS")  # of those that only GGUF files have
OF_GGUF = [
    pytest.param(kind, id=kind.name, marks=[] if kind.name in ONE_OF_EACH_LAYOUT else pytest.mark.slow)
    for kind in KINDS
    if kind.name not in ("Q4_0", "Q4_1", "Q8_0")
]


@needs_native
@pytest.mark.parametrize("kind", OF_GGUF)
def test_codes_of_every_kind_are_multiplied_and_looked_up(kind, tmp_path, monkeypatch):
    """All matrices and the embedding in that kind: as the dense values of the file, up to the rounding of activations.
    The same bits for one token and for many."""
    monkeypatch.setitem(gguf_files.TINY, "wide", ("llama", "llama", WIDE))
    names = "attn_q attn_k attn_v attn_output ffn_gate ffn_up ffn_down".split()
    shapes = dict.fromkeys((f"blk.{i}.{name}.weight" for i in range(2) for name in names), (256, 256))
    shapes |= {f"blk.{i}.{name}.weight": (32, 256) for i in range(2) for name in ("attn_k", "attn_v")}
    shapes |= {f"blk.{i}.attn_q.weight": (64, 256) for i in range(2)}
    shapes |= {f"blk.{i}.attn_output.weight": (256, 64) for i in range(2)}
    shapes["token_embd.weight"] = (gguf_files.VOCABULARY, 256)
    size = 2.0 ** round(-3.0 - log2(gguf.dequantize(random_rows(kind, 8, 256), kind).std()))  # values of about 1 / 8
    stored = {
        name: (random_rows(kind, *shape, size=size), kind)
        for name, shape in shapes.items()
        if shape[1] % gguf.GGML_QUANT_SIZES[kind][0] == 0
    }
    path = write(tmp_path / "x.gguf", "wide", stored=stored)
    ours = load(path, program="native", threads=1)
    assert ours.config.scheme == "file"
    whole = ours.logits(LONG)
    wanted = load(path, program="eager", dtype="float32", scheme="dense").logits(LONG)
    assert (whole - wanted).pow(2).mean().sqrt() < 0.05 * wanted.pow(2).mean().sqrt()
    assert torch.equal(load(path, program="native", threads=2, max_step_tokens=1).logits(LONG), whole)


@needs_native
def test_codes_that_no_scheme_holds_are_rounded_to_8_bits_and_this_is_said(tmp_path, capsys):
    stored = (random_rows(gguf.GGMLQuantizationType.Q2_K, 64, 256, size=1 / 64), gguf.GGMLQuantizationType.Q2_K)
    path = write(tmp_path / "x.gguf", "llama", gguf.GGMLQuantizationType.Q8_0, stored={"blk.0.ffn_down.weight": stored})
    ours = load(path, threads=1)
    assert ours.config.scheme == "file"
    dense = load(path, program="native", dtype="float32", scheme="dense", threads=1)
    assert ours.memory["matrix_bytes"] < 0.3 * dense.memory["matrix_bytes"]
    wanted = dense.logits(LONG)
    assert (ours.logits(LONG) - wanted).pow(2).mean().sqrt() < 0.05 * wanted.pow(2).mean().sqrt()
    arguments = ["generate", str(path), "--tokens", "1,2", "-n", "2"]
    assert main(arguments) == 0
    said = capsys.readouterr().err
    assert "rounded to 8 bits: " in said
    assert "1 Q2_K; --scheme dense reads the file's values instead" in said
    assert main([*arguments, "--scheme", "dense"]) == 0
    assert "rounded" not in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.model
@needs_native
def test_a_quantised_file_stays_as_it_is():
    engine = load("smollm2-135m", max_length=64)
    assert (engine.config.scheme, engine.program_name) == ("file", "native")
    assert engine.memory["matrix_bytes"] < 100e6  # Q4_1 and a Q8_0 head: 97 MB in the file
    plain = load("smollm2-135m", max_length=64, dtype="float32", scheme="dense")
    assert plain.config.scheme == "dense"
    tokens = plain.encode("The water mill stands beside the river, and the miller listens to the stones as they turn.")
    ours, exact = (one.logits(tokens).log_softmax(-1) for one in (engine, plain))
    divergence = (exact.exp() * (exact - ours)).sum(-1).mean()
    assert divergence < 0.02  # nats; 0.004 was measured on such a text


@pytest.mark.parametrize("program", ["eager", pytest.param("native", marks=needs_native)])
@pytest.mark.parametrize("scheme", ["q4", "q8"])
def test_a_router_stays_numbers_when_a_model_is_rounded_as_it_is_loaded(scheme, program, tmp_path):
    """`tokenmill quantize` leaves it so too: both ways to round a mixture of experts give the same logits."""
    model = save("mixtral", tmp_path)
    quickly = lambda name, rows, bits: round_to_nearest(rows, bits, quick=True)  # noqa: E731
    quantize(open_checkpoint(model), tmp_path / "rounded", Silent(), scheme, head=scheme, rounder=quickly)
    rounded = load(tmp_path / "rounded", program=program, dtype="float32", scheme="file")
    assert torch.equal(load(model, program=program, scheme=scheme).logits(LONG), rounded.logits(LONG))


def coded(bits, num_rows, num_inputs):
    codes = torch.arange(num_rows * num_inputs).view(num_rows, -1).remainder(1 << bits).to(torch.uint8)
    return Stored.of_groups(bits, codes, 32, torch.linspace(0.01, 0.02, num_rows)[:, None])


def test_rows_that_no_scheme_rounds_stay_numbers():
    matrix, numbers = QuantizedLinear(3, 2, False), torch.randn(2, 3)
    matrix.fill([Stored.plain(numbers)])
    (part,) = matrix.parts()
    assert (part.bits, part.codes) == (32, None) and torch.equal(part.numbers, numbers)
    assert matrix.weight is None and not list(matrix.parameters())


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("num_inputs", [64, 40])
def test_the_product_of_parts_of_every_kind(num_inputs, traced, bias, monkeypatch):
    """It is the product with the values, which a compiler gets as sums, for codes of both kinds and for numbers."""
    monkeypatch.setattr(dense, "is_traced", lambda: traced)
    matrix, numbers = QuantizedLinear(num_inputs, 6, bias).requires_grad_(False), torch.randn(2, num_inputs)
    if bias:
        matrix.bias.copy_(torch.randn(6))
    scales = torch.tensor([[0.1, 0.2], [0.3, 0.4]])
    codes = (torch.arange(2 * num_inputs).view(2, -1) % 16).to(torch.uint8)
    eights, fours = Stored.of_groups(8, codes + 100, 32, scales), Stored.of_groups(4, codes, 32, scales, -scales)
    matrix.fill([eights, fours, Stored.plain(numbers)])
    spread = scales.repeat_interleave(32, 1)[:, :num_inputs]
    weight = torch.cat([(codes.float() - 28) * spread, codes * spread - spread, numbers])
    x = torch.randn(1, num_inputs, generator=torch.Generator().manual_seed(9))
    for rows in (x, x.expand(3, -1)):
        wanted = rows @ weight.t() + (matrix.bias.detach() if bias else 0)
        torch.testing.assert_close(matrix(rows).detach(), wanted, rtol=1e-4, atol=1e-3)
    half = matrix(x.bfloat16())
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.detach().float(), matrix(x).detach(), rtol=0.03, atol=0.5)


def test_one_traced_row_is_summed_from_its_codes(monkeypatch):
    """A compiler makes one pass over the codes of this; no matrix of their values is made."""
    matrix = QuantizedLinear(32, 2, False)
    matrix.fill([coded(8, 2, 32)])
    x = torch.ones(1, 32)
    wanted = matrix(x)
    monkeypatch.setattr(dense, "is_traced", lambda: True)
    monkeypatch.setattr(Stored, "values", lambda _: pytest.fail("the values were made"))
    torch.testing.assert_close(matrix(x), wanted)
