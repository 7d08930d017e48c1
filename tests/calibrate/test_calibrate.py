"""Calibration: what layers see is what the model computes, an interrupted run goes on, what cannot be used is said."""

import json
import logging
import shutil

import pytest
import safetensors.torch
import torch
import transformers

import tokenmill
from tests.tiny_models import FAMILY_NAMES, VOCABULARY, prompt, save
from tests.word_model import save_word_model
from tokenmill.calibrate.layers import LayerWalk
from tokenmill.calibrate.partial import Partial
from tokenmill.calibrate.rounding import Rounding
from tokenmill.calibrate.run import quantize_calibrated
from tokenmill.calibrate.texts import Texts, cut_text, written_texts
from tokenmill.cli.main import main
from tokenmill.config import FUSIBLE
from tokenmill.errors import CapacityError, CheckpointError, ConfigError, RequestError
from tokenmill.hub.progress import Progress, Silent
from tokenmill.model.families import read_config
from tokenmill.quant.gptq import NotInvertible, compensation, gptq
from tokenmill.quant.rtn import round_to_nearest
from tokenmill.quant.schemes import Scheme
from tokenmill.weights.checkpoint import open_checkpoint, read_config_json
from tokenmill.weights.load import empty_decoder, load_decoder

TEXTS = [prompt(24, seed) for seed in range(4)]
GRIDS = ["minimum", "zero_point", "symmetric"]


def calibrated(source, out, progress=None, algorithm="gptq", texts=TEXTS, described=None, **settings):
    get_texts = lambda: {"calibration": Texts(texts, "given")}  # noqa: E731
    progress = progress or Silent()
    return quantize_calibrated(
        open_checkpoint(source), out, progress, algorithm, get_texts, described or {"seed": 0}, **settings
    )


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


@pytest.mark.parametrize("family", FAMILY_NAMES)
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
    decoder = empty_decoder(read_config(read_config_json(source)), Scheme(), 24, FUSIBLE)
    load_decoder(open_checkpoint(source), decoder, torch.float32, torch.device("cpu"), lambda done, total: None)
    logits_TV = decoder.end(walk.hidden_TD)
    engine = tokenmill.load(source, program="eager", dtype="float32", scheme="dense")
    expected_TV = torch.cat([engine.logits(text) for text in TEXTS])
    assert torch.allclose(logits_TV, expected_TV, atol=1e-4, rtol=1e-4)


# ---- texts


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


class Stopped(Progress):
    """Ctrl-C when so much of a stage is done, by default of the first."""

    def __init__(self, share: float, stage: int = 1) -> None:
        self.share, self.left = share, stage

    def stage(self, what: str) -> None:
        self.left -= 1

    def advance(self, done: int, total: int) -> None:
        if self.left <= 0 and done >= self.share * total:
            raise KeyboardInterrupt


def entries(directory):
    return sorted(file.name for file in directory.iterdir())


def contents(directory):
    return {file.name: file.read_bytes() for file in directory.iterdir()}


@pytest.mark.parametrize("settings", [{}, {"export": "gptq", "group": 32, "scheme": "q8"}], ids=["own", "gptq"])
def test_an_interrupted_run_goes_on_to_the_same_files(models, tmp_path, caplog, settings):
    source = save_wide(models)
    whole = calibrated(source, tmp_path / "whole", **settings)
    with pytest.raises(KeyboardInterrupt), caplog.at_level(logging.WARNING):
        calibrated(source, tmp_path / "out", Stopped(0.7), **settings)
    assert "out.partial keeps what is done" in caplog.text
    assert entries(tmp_path) == ["out.partial", "whole"]
    assert "layer-0000.safetensors" in entries(tmp_path / "out.partial")
    with pytest.raises(ConfigError, match=r"\(others: seed\); delete that directory to begin anew"):
        calibrated(source, tmp_path / "out", described={"seed": 1}, **settings)
    again = calibrated(source, tmp_path / "out", **settings)
    assert again.changes == whole.changes
    assert all(after <= before for before, after in whole.changes.values())
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert entries(tmp_path) == ["out", "whole"]


def save_wide(models):
    """Groups of 32 divide all of its matrices, as GPTQ asks."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(vocab_size=VOCABULARY, num_hidden_layers=2, bos_token_id=None, **sizes)
    path = models / "wide"
    transformers.LlamaForCausalLM(config).float().save_pretrained(path)
    return path


def test_a_damaged_layer_is_named(models, tmp_path):
    source = save("llama", models)
    with pytest.raises(KeyboardInterrupt):
        calibrated(source, tmp_path / "out", Stopped(0.7))
    layer = tmp_path / "out.partial" / "layer-0000.safetensors"
    whole = layer.read_bytes()
    without_facts = safetensors.torch.save({"a": torch.zeros(1)})
    for damaged in (whole[:100], b"", without_facts, whole[:-1]):
        layer.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"layer-0000.safetensors is damaged .*: delete .*out.partial"):
            calibrated(source, tmp_path / "out")
    layer.write_bytes(whole)
    for name, wrong in WRONG:
        file = tmp_path / "out.partial" / name
        before = file.read_bytes() if file.exists() else None
        file.write_text(wrong)
        with pytest.raises(CheckpointError, match=f"{name} is damaged .*: delete .*out.partial"):
            calibrated(source, tmp_path / "out", target_bits=6.0 if name == "eight_bits.json" else None)
        file.unlink() if before is None else file.write_bytes(before)


WRONG = [
    ("texts.json", "["),
    ("texts.json", "[5]"),
    ("texts.json", "{}"),
    *(("texts.json", f'{{"calibration": {wrong}}}') for wrong in ('[5, "x"]', '[[], "x"]', '[[[]], "x"]', "5")),
    *(("texts.json", f'{{"calibration": [[[1, {wrong}]], "x"]}}') for wrong in ("999999", "-1", "1.5", '"a"', "true")),
    ("settings.json", "["),
    ("settings.json", "[]"),
]


@pytest.mark.parametrize("wrong", ["[", "{}", "5", '["x"]', '["model.norm.weight"]', "[1]"])
def test_a_damaged_choice_is_named(models, tmp_path, wrong):
    source = save_wide(models)
    with pytest.raises(KeyboardInterrupt):
        calibrated(source, tmp_path / "out", Stopped(0.7, stage=2), target_bits=6.0)
    (tmp_path / "out.partial" / "eight_bits.json").write_text(wrong)
    with pytest.raises(CheckpointError, match=r"eight_bits.json is damaged .*: delete .*out.partial"):
        calibrated(source, tmp_path / "out", target_bits=6.0)


def changed_layer(source, target, change):
    """Another layer file: `change` is given its tensors and its facts."""
    with safetensors.safe_open(source, "pt") as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        facts = json.loads(opened.metadata()["facts"])
    change(tensors, facts)
    safetensors.torch.save_file(tensors, target, {"facts": json.dumps(facts)})


DOWN = "model.layers.0.mlp.down_proj.weight"
CHANGES = {
    "codes of fewer inputs": lambda tensors, facts: tensors.update(
        {f"{DOWN}:codes": tensors[f"{DOWN}:codes"][:, :-8].clone()}
    ),
    "a row fewer": lambda tensors, facts: tensors.update({f"{DOWN}:codes": tensors[f"{DOWN}:codes"][1:].clone()}),
    "codes of another type": lambda tensors, facts: tensors.update({f"{DOWN}:codes": tensors[f"{DOWN}:codes"].int()}),
    "without minimums": lambda tensors, facts: tensors.pop(f"{DOWN}:minimums"),
    "other bits": lambda tensors, facts: facts["bits"].update({DOWN: 8}),
    "bits as text": lambda tensors, facts: facts["bits"].update({DOWN: "4"}),
    "a name fewer": lambda tensors, facts: facts["bits"].pop(DOWN),
    "wrong changes": lambda tensors, facts: facts["changes"].update({DOWN: 5}),
    "changes that are texts": lambda tensors, facts: facts["changes"].update({DOWN: ["a", "b"]}),
}


@pytest.mark.parametrize("how", CHANGES)
def test_a_layer_that_is_not_of_this_model_is_refused(models, tmp_path, how):
    source = save_wide(models)
    with pytest.raises(KeyboardInterrupt):
        calibrated(source, tmp_path / "out", Stopped(0.7))
    layer = tmp_path / "out.partial" / "layer-0000.safetensors"
    changed_layer(layer, layer, CHANGES[how])
    with pytest.raises(CheckpointError, match=r"layer-0000.safetensors is damaged .*: delete .*out.partial"):
        calibrated(source, tmp_path / "out")


def test_a_layer_in_the_place_of_another_is_refused(models, tmp_path):
    source = save_wide(models)
    with pytest.raises(KeyboardInterrupt):
        calibrated(source, tmp_path / "out", Stopped(0.99))
    folder = tmp_path / "out.partial"
    shutil.copy(folder / "layer-0000.safetensors", folder / "layer-0001.safetensors")
    with pytest.raises(CheckpointError, match=r"layer-0001.safetensors is damaged .*it holds other matrices"):
        calibrated(source, tmp_path / "out")


class Meanwhile(Progress):
    """Runs something once, in the midst of the layers."""

    def __init__(self, function):
        self.function = function

    def advance(self, done: int, total: int) -> None:
        function, self.function = self.function, lambda: None
        function()


@pytest.mark.parametrize("settings", [{}, {"group": 64}])
def test_another_process_with_the_same_output_is_refused(models, tmp_path, settings):
    """Locks are of open files, so that a second run in this process is refused as one in another."""
    source, refused = save_wide(models), []

    def second():
        with pytest.raises(ConfigError, match="that no other process is quantising to"):
            calibrated(source, tmp_path / "out", **settings)
        refused.append(True)

    calibrated(source, tmp_path / "out", Meanwhile(second))
    assert refused
    calibrated(source, tmp_path / "alone")
    assert contents(tmp_path / "out") == contents(tmp_path / "alone")
    assert entries(tmp_path) == ["alone", "out"]


def test_a_run_that_waits_for_its_texts_meanwhile_is_refused(models, tmp_path):
    """What another has written while this one looked for its own place is not written over."""
    source = save_wide(models)
    calibrated(source, tmp_path / "other")

    def finish():
        shutil.copytree(tmp_path / "other", tmp_path / "out")

    with pytest.raises(ConfigError, match="a directory that is new or empty"):
        calibrated(source, tmp_path / "out", Meanwhile(finish))


def test_a_number_that_is_missing_is_named_when_its_layer_is_reached(models, tmp_path):
    source = save_wide(models)
    tensors = safetensors.torch.load_file(source / "model.safetensors")
    tensors[DOWN][3, 4] = torch.nan
    safetensors.torch.save_file(tensors, source / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=f"{DOWN} cannot be rounded"):
        calibrated(source, tmp_path / "out")
    assert entries(tmp_path) == ["out.partial"]


@pytest.mark.parametrize("algorithm", ["rtn", "gptq"])
def test_the_folder_that_the_command_runs_in_is_refused(models, tmp_path, monkeypatch, capsys, algorithm):
    monkeypatch.chdir(tmp_path)
    assert main(["quantize", str(save_wide(models)), "--algorithm", algorithm, "-o", "."]) == 2
    assert "a new directory beside this one" in capsys.readouterr().err
    assert entries(tmp_path) == []


def test_importance_weighs_errors_in_8_bits_too(models, tmp_path):
    source = save_wide(models)
    found = calibrated(source, tmp_path / "out", algorithm="importance", scheme="q8")
    assert all(after < before for before, after in found.changes.values())


def test_what_was_rounded_is_what_is_loaded(models, tmp_path):
    """Nearer to the source than rounding to nearest, on texts that were not calibrated on."""
    source = save("llama", models)
    calibrated(source, tmp_path / "gptq", texts=[prompt(48, seed) for seed in range(64)])
    tokenmill_quantize(source, tmp_path / "rtn")
    engines = [tokenmill.load(path, dtype="float32") for path in (source, tmp_path / "rtn", tmp_path / "gptq")]
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


def test_a_full_disk_is_known_before_anything_is_computed(models, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    with pytest.raises(CapacityError, match="disk space for"):
        calibrated(save("llama", models), tmp_path / "out")
    assert entries(tmp_path) == []


def test_partial_keeps_codes_exactly(tmp_path):
    numbers_RK = torch.randn(6, 80, generator=torch.Generator().manual_seed(2))
    for bits, group, grid in [(4, 32, "minimum"), (4, 64, "zero_point"), (4, 128, "symmetric"), (8, 64, "symmetric")]:
        stored = round_to_nearest(numbers_RK, bits, group, grid)
        settings = tmp_path / f"{bits}{grid}", {}, group, grid != "symmetric"
        partial = Partial(*settings)
        with partial.locked():
            assert partial.matrix("x", (6, 80)) is None
            partial.keep_texts({})
            partial.keep_layer(0, {"x": stored}, {"x": (0.5, 0.25)})
        again = Partial(*settings)
        assert again.read_layer(0, {"x": bits}) == {"x": (0.5, 0.25)}
        found = again.matrix("x", (6, 80))
        assert torch.equal(found.values(), stored.values())
        assert torch.equal(found.codes, stored.codes)


# ---- as it is typed


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
