"""What an interrupted calibration keeps: gone on from to the same files, by one process, and checked."""

import json
import logging
import shutil
from contextlib import suppress

import pytest
import safetensors.torch
import torch

from tests.calibrate.runs import Stopped, calibrated, contents, entries, save_wide
from tests.tiny_models import save
from tokenmill.calibrate.partial import Partial, _checksum
from tokenmill.errors import CapacityError, CheckpointError, ConfigError
from tokenmill.hub.progress import Progress
from tokenmill.memory.atomic_file import seal, unseal
from tokenmill.quant.rtn import round_to_nearest


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


def write_sealed(file, content):
    """A file as the calibration of that directory writes it, if that is JSON."""
    kept = json.loads((file.parent / "settings.json").read_text())["facts"]
    with suppress(ValueError):
        content = seal({"calibration": kept["calibration"], "content": json.loads(content)}, 1)
    file.write_text(content)


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
        write_sealed(file, wrong)
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
    write_sealed(tmp_path / "out.partial" / "eight_bits.json", wrong)
    with pytest.raises(CheckpointError, match=r"eight_bits.json is damaged .*: delete .*out.partial"):
        calibrated(source, tmp_path / "out", target_bits=6.0)


def changed_layer(source, target, change):
    """Another layer file: `change` is given its tensors and its facts."""
    with safetensors.safe_open(source, "pt") as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        facts = unseal(opened.metadata()["facts"], 1)
    change(tensors, facts)
    facts["data_checksum"] = _checksum(tensors)
    safetensors.torch.save_file(tensors, target, {"facts": seal(facts, 1)})


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
    with pytest.raises(
        CheckpointError, match=r"layer-0001.safetensors is damaged .*it is of another calibration or layer"
    ):
        calibrated(source, tmp_path / "out")


def interrupted(source, out, **settings):
    with pytest.raises(KeyboardInterrupt):
        calibrated(source, out, Stopped(0.99, stage=2 if settings.get("target_bits") else 1), **settings)
    return out.with_name(f"{out.name}.partial")


@pytest.mark.parametrize("name", ["layer-0000.safetensors", "texts.json", "eight_bits.json"])
def test_a_file_of_another_calibration_is_refused(models, tmp_path, name):
    """Of the same model with other texts, whose matrices have the same names and shapes."""
    source, settings = save_wide(models), {"target_bits": 6.0}
    first, second = (interrupted(source, tmp_path / each, described={"texts": each}, **settings) for each in "ab")
    shutil.copy(first / name, second / name)
    with pytest.raises(CheckpointError, match=rf"{name} is damaged .*it is of another calibration"):
        calibrated(source, tmp_path / "b", described={"texts": "b"}, **settings)


def test_a_flipped_bit_is_found(models, tmp_path):
    source = save_wide(models)
    layer = interrupted(source, tmp_path / "out") / "layer-0000.safetensors"
    data = bytearray(layer.read_bytes())
    data[-1000] ^= 1
    layer.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"layer-0000.safetensors is damaged .*do not match their checksum"):
        calibrated(source, tmp_path / "out")


@pytest.mark.parametrize("kind", ["empty", "full", "named", "file"])
def test_a_directory_of_somebody_else_is_neither_used_nor_deleted(models, tmp_path, kind):
    """On a refusal, too, and even where its files have our names."""
    theirs = tmp_path / "out.partial"
    if kind == "file":
        theirs.write_text("letters")
    else:
        theirs.mkdir()
    if kind in ("full", "named"):
        (theirs / ("letters" if kind == "full" else "settings.json")).write_text("{}")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match=r"a name beside which no other out\.partial lies"):
        calibrated(save_wide(models), tmp_path / "out")
    with pytest.raises(ConfigError, match="algorithm"):
        calibrated(save_wide(models), tmp_path / "out", algorithm="none")
    assert sorted(tmp_path.rglob("*")) == before


def test_what_somebody_has_put_into_it_stays(models, tmp_path, caplog):
    source = save_wide(models)
    partial = interrupted(source, tmp_path / "out")
    (partial / "notes.txt").write_text("of mine")
    (partial / "layer-0001").mkdir()
    with caplog.at_level(logging.WARNING):
        calibrated(source, tmp_path / "out")
    assert entries(partial) == [".tokenmill", "layer-0001", "notes.txt"]
    assert "stays, with what is not of the calibration: layer-0001, notes.txt" in caplog.text
    calibrated(source, tmp_path / "other")
    assert contents(tmp_path / "out") == contents(tmp_path / "other")


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
