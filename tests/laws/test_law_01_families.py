"""Law 1: every family equals transformers on the same random weights, in float32.

Bounds are assert_close's defaults for float32 (rtol 1.3e-6, atol 1e-5), and 2e-4 of the largest logit for delta nets:
transformers computes them in chunks of 64 tokens, whose sums run in another order, and differs as much from itself.
Mamba 2, which it computes in chunks of 256, has the native program's bound.
"""

from functools import cache
from typing import Any

import pytest
import torch

from tests.marks import each
from tests.tiny_models import CONTEXT, FAMILY_NAMES, HYBRIDS, KINDS, TINY, prompt, reference, save
from tokenmill import load
from tokenmill.registry import FAMILIES


def expected_logits(name: str, tokens: list[int]) -> torch.Tensor:
    return _logits(name, tuple(tokens))


@cache
def _logits(name: str, tokens: tuple[int, ...]) -> torch.Tensor:
    with torch.no_grad():
        return reference(name)(torch.tensor([tokens])).logits[0]


def expected_tokens(name: str, tokens: list[int], count: int) -> list[int]:
    with torch.no_grad():
        whole = reference(name).generate(torch.tensor([tokens]), max_new_tokens=count, do_sample=False, pad_token_id=0)
    return whole[0, len(tokens) :].tolist()


def test_every_family_of_the_registry_has_a_tiny_model():
    assert {kind for kind, _ in TINY.values()} == set(FAMILIES)
    assert set(FAMILY_NAMES) == set(FAMILIES)


DELTA = ("qwen3_5", "qwen3_next", "olmo_hybrid", "kimi_linear")
OTHER_SUMS = ("mamba2", "bamba", "granitemoehybrid", "nemotron_h", "falcon_h1", "gemma3n", "gemma4")
OF_THEIR_OWN = """falcon_h1-departures nemotron_h-departures phi3-short gemma3n_text-departures llama-dynamic
    llama4_text-departures stablelm-parallel olmo-clipped glm4_moe_lite-departures deepseek_v2-groups phi-departures
    lfm2-departures granitemoehybrid-departures""".split()
"""Departures whose description has a part that the description of no family has."""


def way(name: str, program: str, scheme: str) -> Any:
    """Both programs are built from the description of a model. A departure that has the parts of others in another
    order is read and computed once by default, by the native program."""
    has_both = name in FAMILY_NAMES or name in OF_THEIR_OWN or TINY[name][0] in (*KINDS, *HYBRIDS)
    return pytest.param(name, program, scheme, marks=() if has_both or program == "native" else pytest.mark.long)


WAYS = [(name, "eager", "packed") for name in TINY]
WAYS += [(name, "eager", "dense") for name in KINDS] + [(name, "native", "dense") for name in TINY]
WAYS.sort()  # those of one model beside each other, for which transformers computes once


@pytest.mark.parametrize(("name", "program", "scheme"), [way(*which) for which in WAYS])
def test_logits_of_prompts_of_several_lengths(name, program, scheme, models):
    """The native program sums in another order: 1e-4 of the largest logit."""
    engine = load(save(name, models), dtype="float32", program=program, scheme=scheme)
    for length in (1, 7, CONTEXT) if name in FAMILY_NAMES else (1, CONTEXT):
        check_logits(engine.logits(prompt(length)), name, prompt(length), program)


def check_logits(found: torch.Tensor, name: str, tokens: list[int], program: str = "eager") -> None:
    expected = expected_logits(name, tokens)
    bound = 2e-4 if name.startswith(DELTA) else 1e-4 if program == "native" or name.startswith(OTHER_SUMS) else None
    bounds = {} if bound is None else {"rtol": 0.0, "atol": bound * float(expected.abs().max())}
    torch.testing.assert_close(found, expected, **bounds)


@pytest.mark.parametrize("name", ["qwen3_5_text", "qwen3_next", "qwen3_next-departures", "olmo_hybrid"])
def test_delta_nets_over_several_chunks_of_transformers(name, models, monkeypatch):
    """A chunk has 64 tokens, and the last one may have fewer."""
    (kind, config), longer = TINY[name], f"{name}-longer"
    monkeypatch.setitem(TINY, longer, (kind, config | {"max_position_embeddings": 256}))
    for program in ("eager", "native"):
        engine = load(save(longer, models), dtype="float32", program=program, scheme="dense")
        for length in (63, 64, 65, 200):
            check_logits(engine.logits(prompt(length)), longer, prompt(length), program)


@pytest.mark.parametrize("name", each(FAMILY_NAMES))
def test_greedy_decoding_of_a_ragged_batch(name, models):
    engine = load(save(name, models), dtype="float32", max_sequences=4, block_size=16)
    prompts = [prompt(length, seed=5) for length in (3, 21, 1, 12)]
    done = engine.generate(prompts, max_new_tokens=12)
    assert [list(d.tokens) for d in done] == [expected_tokens(name, p, 12) for p in prompts]


def test_dynamic_rope_beyond_its_trained_context_equals_cached_decoding(models):
    """transformers turns a whole prompt by its own length; what it decodes with a cache is what holds here."""
    engine = load(save("llama-dynamic", models), dtype="float32", max_length=2 * CONTEXT)
    tokens = prompt(CONTEXT - 8)
    done = engine.generate(tokens, max_new_tokens=40)
    assert list(done.tokens) == expected_tokens("llama-dynamic", tokens, 40)


def test_longrope_is_chosen_once_by_the_longest_text(models, monkeypatch):
    """transformers chooses by the prompt: the two agree where it passes the trained length like max_length, or not."""
    _, config = TINY["phi3-short"]
    monkeypatch.setitem(TINY, "phi3-both", ("phi3", config | {"original_max_position_embeddings": 32}))
    path = save("phi3-both", models)
    for max_length, lengths in ((32, (1, 7, 32)), (33, (33,)), (CONTEXT, (33, CONTEXT))):
        for program in ("eager", "native"):
            engine = load(path, dtype="float32", program=program, max_length=max_length)
            for tokens in map(prompt, lengths):
                torch.testing.assert_close(
                    engine.logits(tokens), expected_logits("phi3-both", tokens), rtol=1e-4, atol=1e-4
                )


@pytest.mark.parametrize("name", KINDS)
def test_bin_files_and_shards_are_read_like_one_safetensors_file(name, models, tmp_path):
    model = reference(name)
    sharded = save(name, tmp_path / "sharded", max_shard_size="20KB")
    assert len(list(sharded.glob("*.safetensors"))) > 1
    as_bin = tmp_path / "bin"
    model.config.save_pretrained(as_bin)
    torch.save(checkpoint_tensors(sharded), as_bin / "pytorch_model.bin")
    tokens = prompt(9)
    for path in (sharded, as_bin):
        torch.testing.assert_close(load(path, dtype="float32").logits(tokens), expected_logits(name, tokens))


def checkpoint_tensors(path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return {name: tensor for file in path.glob("*.safetensors") for name, tensor in load_file(file).items()}
