"""Calibration: what layers see is what the model computes, an interrupted run goes on, what cannot be used is said."""

import json
import logging

import pytest
import safetensors.torch
import torch

import tokenmill
from tests.calibrate.runs import TEXTS, calibrated, entries, save_wide
from tests.tiny_models import HYBRIDS, KINDS, prompt, save
from tests.word_model import save_word_model
from tokenmill.calibrate.layers import LayerWalk
from tokenmill.calibrate.rounding import Rounding
from tokenmill.calibrate.texts import cut_text, written_texts
from tokenmill.cli.main import main
from tokenmill.errors import CheckpointError, ConfigError, RequestError
from tokenmill.hub.progress import Silent
from tokenmill.model.families import read_config
from tokenmill.quant.gptq import NotInvertible, compensation, gptq
from tokenmill.quant.rtn import round_to_nearest
from tokenmill.quant.schemes import Scheme
from tokenmill.settings.engine_config import FUSIBLE
from tokenmill.weights.checkpoint import open_checkpoint, read_config_json
from tokenmill.weights.load import load_decoder
from tokenmill.weights.source import WeightSource

GRIDS = ["minimum", "zero_point", "symmetric"]


def correlated(num_inputs, num_tokens=512, seed=0):
    """Inputs of unequal size that hang together."""
    generator = torch.Generator().manual_seed(seed)
    mixed = torch.randn(num_inputs, num_inputs, generator=generator) * 0.3 + torch.eye(num_inputs)
    sizes = torch.randn(num_inputs, generator=generator).exp()
    return torch.randn(num_tokens, num_inputs, generator=generator) @ mixed * sizes


# ---- one matrix


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize(("num_inputs", "group"), [(96, 32), (80, 64), (40, 128)])
def test_each_algorithm_changes_the_outputs_less_than_the_one_before(grid, num_inputs, group):
    inputs_TK = correlated(num_inputs)
    numbers_RK = torch.randn(24, num_inputs, generator=torch.Generator().manual_seed(1))
    nearest = round_to_nearest(numbers_RK, 4, group, grid)
    changes = [((nearest.values()[:, :num_inputs] - numbers_RK) @ inputs_TK.t()).square().mean()]
    for algorithm in ("importance", "gptq"):
        stored = Rounding(algorithm, group, grid).round("x", numbers_RK, inputs_TK, 4)
        assert stored.codes.shape == nearest.codes.shape
        assert stored.scales.shape == nearest.scales.shape
        assert torch.equal(stored.scales.half().float(), stored.scales)
        changes.append(((stored.values()[:, :num_inputs] - numbers_RK) @ inputs_TK.t()).square().mean())
    assert changes[2] < changes[1] < changes[0]


def test_independent_inputs_are_rounded_to_nearest():
    """No column can compensate the error of another then, so GPTQ's codes are the nearest levels of its scales."""
    numbers_RK = torch.randn(8, 64, generator=torch.Generator().manual_seed(1))
    stored = gptq(numbers_RK, 4, 32, "minimum", compensation(torch.eye(64), 32))
    assert torch.equal(stored.values(), round_to_nearest(numbers_RK, 4).values())


def test_rows_do_not_depend_on_each_other():
    numbers_RK, inputs_TK = torch.randn(9, 96, generator=torch.Generator().manual_seed(1)), correlated(96)
    how = compensation(inputs_TK.t() @ inputs_TK, 32)
    whole = gptq(numbers_RK, 4, 32, "minimum", how)
    for row in range(9):
        assert torch.equal(gptq(numbers_RK[row : row + 1], 4, 32, "minimum", how).codes[0], whole.codes[row])


def test_inputs_that_were_seldom_seen_still_have_an_inverse():
    """Three tokens for 64 inputs, and half of the inputs always zero."""
    inputs_TK = correlated(64, num_tokens=3)
    inputs_TK[:, 32:] = 0
    stored = Rounding("gptq", 32, "minimum").round("x", torch.randn(4, 64), inputs_TK, 4)
    assert torch.isfinite(stored.values()).all()
    assert compensation(torch.zeros(64, 64), 32).factor_KK.isfinite().all()


@pytest.mark.parametrize("algorithm", ["importance", "gptq"])
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_a_matrix_whose_inputs_are_no_numbers_is_rounded_to_nearest(caplog, algorithm, wrong):
    inputs_TK, numbers_RK = correlated(64), torch.randn(4, 64)
    inputs_TK[5, 7] = wrong
    rounding = Rounding(algorithm, 32, "minimum")
    with caplog.at_level(logging.WARNING):
        stored = rounding.round("model.layers.3.x.weight", numbers_RK, inputs_TK, 4)
    assert torch.equal(stored.values(), round_to_nearest(numbers_RK, 4).values())
    assert "model.layers.3.x.weight is rounded to nearest: " in caplog.text
    assert rounding.changes == {}
    with pytest.raises(NotInvertible):
        compensation(inputs_TK.t() @ inputs_TK, 32)


# ---- layer by layer


@pytest.mark.parametrize("family", [*KINDS, *HYBRIDS])
def test_layers_see_what_the_model_computes(models, family):
    """The hidden states after the last layer, through the engine's norm and head, are the engine's logits."""
    source = save(family, models)
    walk = LayerWalk(open_checkpoint(source), TEXTS, set(open_checkpoint(source).shapes))
    seen: dict[str, int] = {}

    def unchanged(name, numbers_RK, inputs_TK):
        seen[name] = 0 if inputs_TK is None else len(inputs_TK)
        assert inputs_TK is None or inputs_TK.shape[1] == numbers_RK.shape[1]
        return numbers_RK

    for number in range(walk.num_layers):
        assert list(walk.names(number))
        walk.through(number, unchanged)
    assert {name for number in range(walk.num_layers) for name in walk.names(number)} == set(seen)
    assert max(seen.values()) == sum(map(len, TEXTS))
    weights = WeightSource(open_checkpoint(source), read_config(read_config_json(source)), Scheme(), torch.float32)
    decoder = load_decoder(weights, 24, FUSIBLE)
    logits_TV = decoder.end(walk.hidden_TD)
    engine = tokenmill.load(source, program="eager", dtype="float32", scheme="dense")
    expected_TV = torch.cat([engine.logits(text) for text in TEXTS])
    assert torch.allclose(logits_TV, expected_TV, atol=1e-4, rtol=1e-4)


# ---- texts


@pytest.mark.slow
def test_a_model_writes_the_same_texts_whatever_writes_beside_them(models):
    source = save("llama", models)
    one, four = (tokenmill.load(source, dtype="float32", max_sequences=n, max_length=32) for n in (1, 4))
    texts = [written_texts(engine, 6, 20, 3, Silent()) for engine in (one, four)]
    assert texts[0] == texts[1]
    assert [len(text) for text in texts[0].tokens] == [20] * 6
    assert texts[0].num_tokens == 120
    assert len({tuple(text) for text in texts[0].tokens}) == 6
    assert written_texts(one, 6, 20, 4, Silent()).tokens != texts[0].tokens


def test_a_file_is_cut_and_its_end_is_held_out(tmp_path):
    tokenizer = open_checkpoint(save_word_model(tmp_path)).tokenizer()
    words = [f"w{number}" for number in range(100)]
    calibration, end = cut_text(" ".join(words), "book.txt", tokenizer, 3, 10, 8)
    assert [text[0] for text in calibration.tokens] == [0, 20, 50]
    assert [text[0] for text in end.tokens] == [80, 90]
    with pytest.raises(RequestError, match=r"book.txt has 39 tokens, and calibration needs at least 40"):
        cut_text(" ".join(words[:39]), "book.txt", tokenizer, 3, 10, 8)


# ---- a whole model


def test_a_number_that_is_missing_is_named_when_its_layer_is_reached(models, tmp_path):
    source = save_wide(models)
    tensors = safetensors.torch.load_file(source / "model.safetensors")
    name = "model.layers.0.mlp.down_proj.weight"
    tensors[name][3, 4] = torch.nan
    safetensors.torch.save_file(tensors, source / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=f"{name} cannot be rounded"):
        calibrated(source, tmp_path / "out")
    assert entries(tmp_path) == ["out.partial"]


@pytest.mark.parametrize("algorithm", ["rtn", "gptq"])
def test_the_folder_that_the_command_runs_in_is_refused(models, tmp_path, monkeypatch, capsys, algorithm):
    monkeypatch.chdir(tmp_path)
    assert main(["quantize", str(save_wide(models)), "--algorithm", algorithm, "-o", "."]) == 2
    assert "a new directory beside this one" in capsys.readouterr().err
    assert entries(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("gemma4_text-small", "layer 0 has an input of each token"),
        ("gemma4_unified_text-departures", "layer 2 has rows that layers share"),
        ("gemma3n_text", "layer 0 has several streams of each token"),
    ],
)
def test_layers_that_read_more_than_the_layer_before_are_refused(name, more, models, tmp_path):
    with pytest.raises(ConfigError, match=f"rtn for this model: the others compute layers one by one, and {more}"):
        calibrated(save(name, models), tmp_path / "out")


def test_importance_weighs_errors_in_8_bits_too(models, tmp_path):
    source = save_wide(models)
    found = calibrated(source, tmp_path / "out", algorithm="importance", scheme="q8")
    assert all(after < before for before, after in found.changes.values())


def test_what_was_rounded_is_what_is_loaded(models, tmp_path):
    """Nearer to the source than rounding to nearest, on texts that were not calibrated on."""
    source = save("llama", models)
    calibrated(source, tmp_path / "gptq", texts=[prompt(48, seed) for seed in range(64)])
    tokenmill_quantize(source, tmp_path / "rtn")
    engines = [
        tokenmill.load(path, dtype="float32", scheme="dense") for path in (source, tmp_path / "rtn", tmp_path / "gptq")
    ]
    text = prompt(100, seed=99)
    expected_TV, *found = (engine.logits(text) for engine in engines)
    nearest, ours = ((logits_TV - expected_TV).square().mean() for logits_TV in found)
    assert ours < 0.9 * nearest


def tokenmill_quantize(source, out):
    main(["quantize", str(source), "-o", str(out), "-q", "--json"])


def test_experts_that_no_token_reaches_are_named(models, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        found = calibrated(save("mixtral", models), tmp_path / "out", texts=[[1, 2, 3]])
    assert "is rounded to nearest: no calibration token reaches it" in caplog.text
    assert found.kinds["w1"].error is not None
    assert tokenmill.load(tmp_path / "out", dtype="float32").generate([[1, 2]], max_new_tokens=3)


# ---- as it is typed


@pytest.mark.slow
def test_quantize_as_it_is_typed(models, tmp_path, capsys):
    source, out = save("llama", models), tmp_path / "out"
    options = ["--num-texts", "4", "--text-length", "24", "--algorithm", "gptq"]
    assert main(["quantize", str(source), "-o", str(out), *options]) == 0
    shown = capsys.readouterr().out
    for expected in ("of outputs, to nearest", "by gptq", "perplexity of the source", "same likeliest token"):
        assert expected in shown
    assert "tokens written by the model, seed 1000000, not calibrated on" in shown
    assert main(["quantize", str(source), "-o", f"{out}2", *options, "--json", "-q"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["comparison"]["kl_divergence"] < 1
    assert told["algorithm"] == "gptq"
    assert 5.0 < told["bits_per_weight"] < 6.1  # rows of 48 and 80 inputs end in half a group
    down = next(kind for kind in told["tensors"] if kind["name"] == "mlp.down_proj")
    assert down["output_error"] < down["output_error_to_nearest"]


def test_calibration_on_a_file(tmp_path, capsys):
    source = save_word_model(tmp_path / "models")
    book = tmp_path / "book.txt"
    book.write_text(" ".join(f"w{number % 200}" for number in range(400)))
    options = ["--text", str(book), "--text-length", "20", "--algorithm", "importance", "-q"]
    assert main(["quantize", str(source), "-o", str(tmp_path / "out"), *options]) == 0
    assert f"tokens the end of {book}, not calibrated on" in capsys.readouterr().out
    for content, expected in (
        (b"", "has 0 tokens, and calibration needs at least"),
        (b"w1 w2", "calibration needs at least"),
        (b"\xff\xfe\x00", "UTF-8"),
    ):
        book.write_bytes(content)
        assert main(["quantize", str(source), "-o", str(tmp_path / "other"), *options]) == 2
        assert expected in capsys.readouterr().err
    assert entries(tmp_path) == ["book.txt", "models", "out"]
    assert main(["quantize", str(source), "-o", str(tmp_path / "other"), "--algorithm", "awq"]) == 2
    assert "algorithm" in capsys.readouterr().err


def test_a_text_of_tokens_that_the_embedding_has_not_is_refused(tmp_path, capsys):
    source, book = save_word_model(tmp_path / "models"), tmp_path / "book.txt"
    settings = json.loads((source / "tokenizer.json").read_text())
    settings["model"]["vocab"]["beyond"] = 900
    (source / "tokenizer.json").write_text(json.dumps(settings))
    book.write_text(" ".join(f"w{number % 200}" for number in range(399)) + " beyond")
    options = ["--text", str(book), "--text-length", "20", "--algorithm", "importance", "-q"]
    assert main(["quantize", str(source), "-o", str(tmp_path / "out"), *options]) == 2
    assert "token id 900 is out of range: this model's ids are 0 to" in capsys.readouterr().err


def test_compare_as_it_is_typed(tmp_path, capsys):
    source = save_word_model(tmp_path / "models")
    book = tmp_path / "book.txt"
    book.write_text(" ".join(f"w{number % 200}" for number in range(100)))
    tokenmill_quantize(source, tmp_path / "q4")
    capsys.readouterr()
    arguments = ["eval", "compare", str(tmp_path / "q4"), str(source), "--text", str(book), "-q"]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "same likeliest token" in shown
    assert "where they are farthest apart" in shown
    assert main([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert 0 < told["kl_divergence"] < 1
    divergences = [place["kl_divergence"] for place in told["worst"]]
    assert len(divergences) == 10
    assert divergences == sorted(divergences, reverse=True)
    assert main(["eval", "compare", str(source), str(source), "--text", str(book), "-q", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["kl_divergence"], told["agreement"], told["perplexity_ratio"]) == (0.0, 1.0, 1.0)
