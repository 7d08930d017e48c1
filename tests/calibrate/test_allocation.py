"""Which matrices get 8 bits: what is measured, how many fit, and that the written model has them."""

import pytest
import torch
from safetensors.torch import load_file, save_file

import tokenmill
from tests.calibrate.runs import Stopped, calibrated, contents, entries, save_wide
from tests.tiny_models import KINDS, prompt, save
from tokenmill.calibrate.allocation import choose_8_bits
from tokenmill.calibrate.layers import LayerWalk
from tokenmill.calibrate.texts import Texts
from tokenmill.cli.main import main
from tokenmill.errors import ConfigError
from tokenmill.hub.progress import Silent
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.write.quantize import plan_quantization

TEXTS = [prompt(24, seed) for seed in range(4)]


def chosen(source, out, target_bits, **settings):
    plan, to = plan_quantization(open_checkpoint(source), out, **settings)
    return choose_8_bits(plan, to, Texts(TEXTS, "given"), target_bits, Silent())


class Changes:
    """Leaves so many tensors as they are, and makes zeros of the others."""

    def __init__(self, unchanged):
        self.left = unchanged

    def __call__(self, numbers):
        self.left -= 1
        return numbers if self.left >= 0 else torch.zeros_like(numbers)


@pytest.mark.parametrize("family", KINDS)
def test_a_changed_matrix_is_changed_in_its_own_state_alone(models, family):
    """Each state is what the model computes with that matrix changed; the others know nothing of it."""
    checkpoint = open_checkpoint(save(family, models))
    walk, plain = (LayerWalk(checkpoint, TEXTS, set(checkpoint.shapes)) for _ in range(2))
    states, names = {}, list(walk.names(0))
    for number in range(walk.num_layers):
        changes = {"same": names, "zero": names[:1]} if number == 0 else {}
        change = Changes(len(names))
        states = walk.through_with(number, states, changes, change)
        plain.through(number, lambda name, numbers, inputs: numbers)
    assert torch.equal(walk.hidden_TD, plain.hidden_TD)
    assert torch.equal(states["same"], plain.hidden_TD)
    without = LayerWalk(checkpoint, TEXTS, set(checkpoint.shapes))
    for number in range(without.num_layers):
        without.through(number, lambda name, numbers, _: torch.zeros_like(numbers) if name == names[0] else numbers)
    assert torch.equal(states["zero"], without.hidden_TD)
    assert not torch.equal(states["zero"], plain.hidden_TD)
    engine = tokenmill.load(checkpoint.path, program="eager", dtype="float32", scheme="dense")
    expected = torch.cat([engine.logits(text) for text in TEXTS])
    assert torch.allclose(walk.logits(walk.hidden_TD), expected, atol=1e-4, rtol=1e-4)


def test_the_matrix_that_rounding_changes_most_is_chosen_first(models, tmp_path):
    """What it adds to the hidden states is far more than all others do."""
    source = save_wide(models)
    tensors = load_file(source / "model.safetensors")
    name = "model.layers.1.self_attn.v_proj.weight"
    tensors[name] *= 100
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    assert chosen(source, tmp_path / "out", 6.0, head="none")[0] == name


def test_as_many_are_chosen_as_fit(models, tmp_path):
    source = save_wide(models)
    counts = [len(chosen(source, tmp_path / "out", bits, head="none")) for bits in (5.0, 5.5, 6.5, 8.5)]
    assert counts[0] == 0 < counts[1] < counts[2] < counts[3] == 14


@pytest.mark.parametrize("settings", [{}, {"export": "gguf", "head": "none"}], ids=["own", "gguf"])
def test_what_is_written_has_them(models, tmp_path, settings):
    source, out = save_wide(models), tmp_path / ("out.gguf" if settings else "out")
    found = calibrated(source, out, target_bits=6.0, **settings)
    eight = {kind.stored_as for kind in found.kinds.values()}
    assert {"q4", "q8"} <= eight
    coded = [kind for kind in found.kinds.values() if kind.error is not None and kind.name != "lm_head"]
    bits = 8 * sum(kind.bytes_after for kind in coded) / sum(kind.num_weights for kind in coded)
    assert 5.0 < bits <= 6.2
    assert sum(kind.count for kind in coded) == 14
    assert all(len(kind.names) == kind.count for kind in coded)
    plain = calibrated(source, tmp_path / ("plain.gguf" if settings else "plain"), **settings)
    assert len(tokenmill.load(out, dtype="float32").generate([prompt(5)], max_new_tokens=4)[0].tokens) == 4
    errors = [sum(kind.squared_error for kind in each.kinds.values()) for each in (found, plain)]
    assert errors[0] < errors[1]


def test_an_interrupted_run_keeps_the_choice(models, tmp_path, monkeypatch):
    source = save_wide(models)
    calibrated(source, tmp_path / "whole", target_bits=6.0)
    with pytest.raises(KeyboardInterrupt):
        calibrated(source, tmp_path / "out", Stopped(0.7, stage=2), target_bits=6.0)
    assert "eight_bits.json" in entries(tmp_path / "out.partial")
    for other in (6.5, None):
        with pytest.raises(ConfigError, match=r"others: target_bits"):
            calibrated(source, tmp_path / "out", target_bits=other)
    monkeypatch.setattr("tokenmill.calibrate.run.choose_8_bits", None)  # it is read
    calibrated(source, tmp_path / "out", target_bits=6.0)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target_bits": 4.5}, "target_bits = 4.5 is not allowed: from 5.00"),
        ({"target_bits": float("nan")}, "target_bits = nan is not allowed"),
        ({"target_bits": 9.0}, "to 8.50"),
        ({"target_bits": 5.5, "scheme": "q8"}, "only with scheme q4"),
        ({"target_bits": 5.5, "export": "gptq"}, "none with this export"),
        ({"target_bits": 5.5, "export": "gguf", "scheme": "none"}, "only with scheme q4"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_computed(models, tmp_path, settings, message):
    with pytest.raises(ConfigError, match=message):
        calibrated(save_wide(models), tmp_path / "out.gguf", head="none", **settings)
    assert entries(tmp_path) == []


def test_rounding_to_nearest_measures_nothing(models, tmp_path, capsys):
    assert main(["quantize", str(save_wide(models)), "--target-bits", "5.5", "-o", str(tmp_path / "out")]) != 0
    assert "only with algorithm importance or gptq" in capsys.readouterr().err
