"""The real model, SmolLM2-135M-Instruct from its GGUF file: the same tokens as transformers, the laws, the memory."""

import json
import subprocess
import sys

import pytest
import torch

import tokenmill
from tests.measure.test_perplexity import PROSE, recipe
from tokenmill.measure.perplexity import perplexity, read_text
from tokenmill.weights.checkpoint import open_checkpoint

pytestmark = pytest.mark.model

PROMPTS = [
    "The capital of France is",
    "Why is the sky blue?",
    "def fibonacci(n):\n",
    "Once upon a time, in a village by the sea,",
    "1, 2, 3, 5, 8, 13,",
    "Water boils at 100 degrees because",
    "Dear Sir or Madam,\n\nI am writing to",
    "Die Hauptstadt von Deutschland ist",
    "The three laws of thermodynamics are:\n\n1.",
    "A list of fruits: apple, banana,",
]
NEW = 64


@pytest.fixture(scope="module")
def engine(real_model):
    return tokenmill.load(real_model, dtype="float32", scheme="dense", max_sequences=10, block_size=16, max_length=256)


@pytest.fixture(scope="module")
def batch(engine):
    return engine.generate(PROMPTS, max_new_tokens=NEW, ignore_eos=True)


@pytest.mark.slow
def test_greedy_tokens_equal_transformers(engine, batch, real_peer):
    """Each of ours is transformers' likeliest, given all before it: what its greedy decoding would have said."""
    for prompt, done in zip(PROMPTS, batch, strict=True):
        tokens = engine.encode(prompt)
        with torch.no_grad():
            logits = real_peer(torch.tensor([[*tokens, *done.tokens]])).logits[0]
        assert logits.argmax(-1)[len(tokens) - 1 : -1].tolist() == list(done.tokens), prompt


@pytest.mark.slow
def test_perplexity_equals_transformers(real_model, real_peer):
    engine = tokenmill.load(real_model, dtype="float32", scheme="dense", max_length=128)
    tokens = read_text(PROSE * 2, open_checkpoint(real_model).tokenizer(), 300).tokens
    assert len(tokens) == 300
    ours = perplexity(engine, tokens, 128, 64)
    expected, count = recipe(real_peer, tokens, 128, 64)
    assert ours.num_scored == count == 299
    assert ours.perplexity == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_a_batch_says_what_singles_say(batch, real_model):
    single = tokenmill.load(real_model, dtype="float32", scheme="dense", max_length=256, max_step_tokens=5)
    for prompt, done in list(zip(PROMPTS, batch, strict=True))[2:5]:
        assert single.generate(prompt, max_new_tokens=24, ignore_eos=True).tokens == done.tokens[:24]


@pytest.mark.slow
def test_streamed_pieces_are_the_text(engine):
    for stop in ((), ("sea", "\n\n")):
        pieces = list(engine.stream(PROMPTS[3], max_new_tokens=NEW, stop=stop))
        done = pieces[-1].done
        assert "".join(piece.text for piece in pieces) == done.text
        assert sum((piece.tokens for piece in pieces), ()) == done.tokens
        assert not stop or (done.finish_reason == "stop") == (len(done.tokens) < NEW)
        assert not any(text in done.text for text in stop)


@pytest.mark.slow
def test_the_block_size_does_not_change_the_text_in_bfloat16(real_model):
    """Not even there, where a rounding error often turns a token: both ways of reading compute the same bits."""
    contiguous = tokenmill.load(real_model, max_length=128)
    paged = tokenmill.load(real_model, max_length=128, block_size=16)
    for prompt in PROMPTS[:3]:
        ours = paged.generate(prompt, max_new_tokens=48, ignore_eos=True)
        assert ours.tokens == contiguous.generate(prompt, max_new_tokens=48, ignore_eos=True).tokens


@pytest.mark.slow
def test_neighbours_do_not_change_the_text_in_bfloat16(real_model):
    """Packed matrices compute a row the same way among any others, and attention sees one sequence at a time."""
    many = tokenmill.load(real_model, max_length=128, max_sequences=10, block_size=16, prefix_cache=False)
    together = many.generate(PROMPTS, max_new_tokens=40, ignore_eos=True)
    for prompt, done in list(zip(PROMPTS, together, strict=True))[::3]:
        assert many.generate(prompt, max_new_tokens=40, ignore_eos=True).tokens == done.tokens


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_lower_precision_says_something_sensible(real_model, dtype):
    done = tokenmill.load(real_model, dtype=dtype, max_length=64).generate(PROMPTS[0], max_new_tokens=8)
    assert "Paris" in done.text


def test_chat_ends_with_the_models_own_end(engine):
    tokens = engine.chat_prompt([{"role": "user", "content": "What is 2 + 2? Answer with one number."}])
    done = engine.generate(tokens, max_new_tokens=100)
    assert done.finish_reason == "eos"
    assert "4" in done.text
    assert "<|im_end|>" not in done.text


MEMORY = """
import json, resource, sys, torch
import tokenmill
torch.set_num_threads(2)
# What torch and the libraries need by themselves: every kind of kernel has run once.
dtype = torch.bfloat16 if torch.ops.mkldnn._is_mkldnn_bf16_supported() else torch.float32
x = torch.randn(4, 64).to(dtype)
packed = torch.ops.mkldnn._reorder_linear_weight(torch.randn(64, 64).to(dtype), None)
torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
torch.nn.functional.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
engine = tokenmill.load(sys.argv[1], max_length=512)
engine.generate("word " * 300, max_new_tokens=200, ignore_eos=True)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"before": before * 1024, "after": after * 1024, **engine.memory}))
"""


@pytest.mark.slow
def test_peak_memory_is_weights_and_cache(real_model):
    """Within 10 % of weights, cache and torch's own; a second copy of the weights while loading would be 50 % more."""
    out = subprocess.run([sys.executable, "-c", MEMORY, str(real_model)], capture_output=True, text=True, check=True)
    figures = json.loads(out.stdout)
    expected = figures["before"] + figures["weights_bytes"] + figures["cache_bytes"]
    assert figures["after"] <= 1.1 * expected, figures
