"""Layers that keep rows of other heads and widths, compared with arithmetic written out."""

import pytest
import torch

from tests.tiny_models import prompt
from tests.unequal_model import KV_HEADS, WIDTHS, save_unequal, written_out
from tokenmill.engine.load import load

START = prompt(29, seed=4)


@pytest.fixture
def path(tmp_path, monkeypatch):
    return save_unequal(tmp_path / "unequal", monkeypatch)


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
def test_the_text_is_that_of_the_arithmetic(path, how):
    engine = load(path, max_length=60, scheme="dense", **{"program": "eager", **how})
    torch.testing.assert_close(engine.logits(START), written_out(START), atol=2e-4, rtol=1e-4)
    tokens = list(START)
    for token in engine.generate(START, max_new_tokens=20, ignore_eos=True).tokens:
        assert token == written_out(tokens)[-1].argmax()
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
