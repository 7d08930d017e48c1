"""Which program "auto" takes, and that somebody is told where a faster one cannot run."""

import logging

import pytest
import torch

from tests.marks import needs_native
from tests.tiny_models import prompt, reference, save
from tokenmill.engine.load import load
from tokenmill.kernels import native_library
from tokenmill.program.forward import find_program
from tokenmill.program.spec import find_spec
from tokenmill.registry import PROGRAMS

PROMPT = prompt(20, seed=3)


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """A float16 checkpoint, and the same numbers in float32."""
    folder = tmp_path_factory.mktemp("models")
    model = reference("llama").half()
    try:
        model.save_pretrained(folder / "half")
        model.float().save_pretrained(folder / "float")
    finally:
        reference.cache_clear()  # others want its own numbers
    return folder / "half", folder / "float"


def test_a_missing_library_is_said_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(native_library, "why_not", lambda: "was not built: no compiler was found")
    with caplog.at_level(logging.INFO):
        engine = load(save("llama", tmp_path), packed_cache=False)
    assert engine.program_name == "eager"
    assert engine.program_refusals == {"native": "its library was not built: no compiler was found"}
    assert caplog.text.count("program eager runs, which is slower than native") == 1
    assert "no compiler was found" in caplog.text


@needs_native
def test_nothing_is_said_where_the_fastest_runs_or_another_was_asked_for(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        for settings in ({}, {"program": "eager"}):
            assert load(save("llama", tmp_path), packed_cache=False, **settings).program_refusals == {}
    assert caplog.text == ""


@needs_native
def test_a_float16_checkpoint_stays_as_it_is_in_the_fast_program(half, caplog):
    """Only its rows of the cache are rounded to float16."""
    with caplog.at_level(logging.INFO):
        engine = load(half[0], packed_cache=False)
    assert (engine.program_name, engine.config.dtype) == ("native", "float16")
    assert caplog.text == ""
    wide = load(half[1], packed_cache=False)
    assert wide.config.dtype == "float32"
    torch.testing.assert_close(engine.logits(PROMPT), wide.logits(PROMPT), atol=5e-3, rtol=5e-3)


def test_a_float16_checkpoint_is_computed_in_float32_by_torch(half, caplog):
    """Its numbers are all float32 numbers: the text is that of the float32 model, which bfloat16 does not promise."""
    with caplog.at_level(logging.INFO):
        engine = load(half[0], program="eager")
    assert (engine.program_name, engine.config.dtype) == ("eager", "float32")
    assert "the float16 checkpoint is computed in float32: on a CPU program eager would be slow" in caplog.text
    assert torch.equal(engine.logits(PROMPT), load(half[1], program="eager").logits(PROMPT))


def test_float16_where_it_is_asked_for(half, caplog):
    with caplog.at_level(logging.INFO):
        engine = load(half[0], dtype="float16", program="eager")
    assert (engine.program_name, engine.config.dtype) == ("eager", "float16")
    assert caplog.text == ""


def test_every_program_has_a_spec_and_a_class():
    assert all(find_spec(name) and find_program(name) for name in PROGRAMS)
