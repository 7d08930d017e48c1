"""Compiled code on disk: the tokens of the plain modules without a compiler; refused by field where it does not fit."""

import errno
import json
import logging
import shutil
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from tests.marks import covering
from tests.peft_adapters import save_adapter
from tests.program.test_compiled import engine_for, same, save_one_layer, together
from tests.tiny_models import HYBRIDS, KINDS, save
from tokenmill.cli.main import main
from tokenmill.errors import ConfigError, PackageMismatch
from tokenmill.hub.progress import Silent
from tokenmill.loader.compile import save_aot_package
from tokenmill.memory import atomic_file as whole
from tokenmill.program.aot import exporting, package
from tokenmill.program.aot.manifest import MANIFEST, read_manifest
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.weights.checkpoint import open_checkpoint

ROOT = Path(__file__).parents[2]


def write(model, folder, **how):
    config = EngineConfig(model=str(model), dtype="float32", device="cpu", **how)
    return save_aot_package(open_checkpoint(model), config, folder, Silent())


@pytest.fixture(scope="module")
def made(llama, tmp_path_factory):
    """All but the machine code."""
    folder = tmp_path_factory.mktemp("code") / "llama.aot"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exporting, "compile_part", lambda package, path: path.write_bytes(package.name.encode()))
        num_bytes = write(llama, folder)
    assert num_bytes == sum(path.stat().st_size for path in folder.glob("*.pt2"))
    return folder


@pytest.fixture(scope="module")
def compiled(llama, tmp_path_factory):
    """Of one sequence alone: each package is ten seconds of a compiler."""
    folder = tmp_path_factory.mktemp("code") / "llama.aot"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(exporting.KINDS, "decode", ("one",))
        write(llama, folder)
    return folder


@pytest.fixture
def copy(made, tmp_path):
    return shutil.copytree(made, tmp_path / "x.aot")


@pytest.mark.compiler
def test_the_tokens_are_the_same_in_any_block_size(compiled, llama):
    for block_size in (8, None):
        engine = engine_for(llama, aot_package=str(compiled), block_size=block_size)
        assert engine.program_name == "aot"
        same(engine, engine_for(llama, program="eager", block_size=block_size))


@pytest.mark.compiler
def test_a_chunk_takes_states_in_an_operation_that_compiled_code_calls(models, tmp_path):
    path = save("kimi_linear", models)
    write(path, tmp_path / "x.aot", compile_phases="prefill")
    engine, reference = engine_for(path, aot_package=str(tmp_path / "x.aot")), engine_for(path, program="eager")
    assert together(engine) == together(reference)


class Interpreted:
    """A part as it was exported, in the place of its machine code, which is only its number."""

    programs: ClassVar = {}

    def __init__(self, path, *_):
        self.program = self.programs[Path(path).read_bytes()]
        self.module = self.program.module()

    def run(self, tensors):
        leaves, spec = tree_flatten(self.program.example_inputs)
        given = iter(tensors)
        inputs, named = tree_unflatten(
            [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], spec
        )
        return [self.module(*inputs, **named)]


@pytest.mark.parametrize(
    ("family", "how"),
    covering(
        ["llama", "mixtral", "gpt2", *HYBRIDS, "falcon_h1"],
        [{}, {"scheme": "q8", "cache_format": "int8"}],
        ids=["as it is", "codes"],
        marks=pytest.mark.slow,
    ),
)
def test_every_part_takes_any_sizes(family, how, tmp_path, monkeypatch):
    """Several sequences and chunks as well, which the tests have no time to compile."""

    def keep(program, package_path):
        number = str(len(Interpreted.programs)).encode()
        Interpreted.programs[number] = program
        package_path.write(number)

    monkeypatch.setattr(exporting, "aoti_compile_and_package", keep)
    monkeypatch.setattr(package, "Loader", Interpreted)
    path = save(family, tmp_path) if family not in KINDS else save_one_layer(family, tmp_path)
    Interpreted.programs.clear()
    write(path, tmp_path / "x.aot", compile_phases="both", **how)
    engine = engine_for(path, aot_package=str(tmp_path / "x.aot"), **how)
    assert len(Interpreted.programs) == len(read_manifest(tmp_path / "x.aot")["files"])
    reference = engine_for(path, program="eager", **how)
    same(engine, reference)
    if family == "llama":
        save_adapter("llama", tmp_path / "a", target_modules=["q_proj", "up_proj"], layers_to_transform=[0])
        for each in (engine, reference):
            each.load_adapter("a", tmp_path / "a")
        same(engine, reference)
        assert together(engine, adapter="a") == together(reference, adapter="a") != together(engine)


STARTS = """
import sys
from tokenmill.engine.load import load
engine = load(sys.argv[1], dtype="float32", device="cpu", max_length=96, aot_package=sys.argv[2])
engine.generate([5, 6, 7], max_new_tokens=4)
print(sorted({"torch._inductor.compile_fx", "torch._dynamo.convert_frame"} & set(sys.modules)))
"""


@pytest.mark.compiler
def test_no_compiler_is_even_imported(compiled, llama):
    ran = subprocess.run(
        [sys.executable, "-c", STARTS, str(llama), str(compiled)], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert ran.stdout.strip().endswith("[]")


def test_every_field_is_checked(copy, llama):
    facts = read_manifest(copy)
    for name, other in {
        "model": {"config": "1", "weights": "2"},
        "dtype": "bfloat16",
        "scheme": "q4",
        "cache_format": "int8",
        "device": "a drum",
        "processor": "x86_64, MMX",
        "torch": "1.0",
        "triton": "9",
    }.items():
        (copy / MANIFEST).write_text(whole.seal({**facts, name: other}, 1))
        with pytest.raises(PackageMismatch, match=f"another setting: {name} .*, here .*make it again"):
            engine_for(llama, aot_package=str(copy))


def test_another_model_or_setting_is_refused(made, llama, tmp_path):
    other = save("qwen3", tmp_path)
    with pytest.raises(PackageMismatch, match=r"model \{'config'"):
        engine_for(other, aot_package=str(made))
    for how, message in (
        ({"dtype": "bfloat16"}, "dtype 'float32', here 'bfloat16'"),
        ({"scheme": "q8"}, "scheme 'dense', here 'q8'"),
        ({"cache_format": "int8"}, "cache_format 'dense', here 'int8'"),
    ):
        with pytest.raises(PackageMismatch, match=message):
            engine_for(llama, aot_package=str(made), **how)
    for how, message in (
        ({"program": "native", "aot_package": "x"}, "program is 'native'"),
        ({"program": "aot"}, "aot with an AOT package"),
    ):
        with pytest.raises(ConfigError, match=message):
            engine_for(llama, **how)


def test_damage_is_refused(copy, llama):
    name = "layer-one-0.pt2"
    code, manifest = (copy / name).read_bytes(), (copy / MANIFEST).read_bytes()
    middle = len(code) // 2

    def refused(message):
        with pytest.raises(PackageMismatch, match=message):
            engine_for(llama, aot_package=str(copy))

    (copy / name).write_bytes(code[:middle] + bytes([code[middle] ^ 1]) + code[middle + 1 :])
    refused("layer-one-0.pt2 does not match its digest")
    (copy / name).write_bytes(code[:middle])
    refused("layer-one-0.pt2 does not match its digest")
    (copy / name).unlink()
    refused("layer-one-0.pt2: No such file")
    (copy / MANIFEST).write_bytes(manifest[:-9])
    refused("cut or damaged")
    (copy / MANIFEST).write_text(json.dumps(json.loads(manifest) | {"checksum": 1}))
    refused("does not match its checksum")
    (copy / MANIFEST).unlink()
    refused("is no AOT package")


def test_info_shows_what_it_is_for(made, llama, capsys):
    assert main(["info", str(made)]) == 0
    shown = capsys.readouterr().out
    assert str(llama) in shown and "one, many" in shown and "float32" in shown
    assert main(["info", str(made), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kinds"] == ["one", "many"]


def test_the_plain_modules_serve_where_that_is_allowed(copy, llama, caplog):
    (copy / MANIFEST).write_bytes(b"{")
    with caplog.at_level(logging.WARNING):
        engine = engine_for(llama, aot_package=str(copy), aot_fallback=True)
    assert "cut or damaged" in caplog.text and "the plain modules serve" in caplog.text
    assert engine.program_name == "eager"
    same(engine, engine_for(llama, program="eager"))


def test_what_torch_refuses_to_load_is_no_end_either(made, llama, caplog):
    """It fits by its manifest, and is no code."""
    with pytest.raises(PackageMismatch, match="cannot be loaded"):
        engine_for(llama, aot_package=str(made))
    with caplog.at_level(logging.WARNING):
        engine = engine_for(llama, aot_package=str(made), aot_fallback=True)
    assert "cannot be loaded" in caplog.text and engine.program_name == "eager"
    same(engine, engine_for(llama, program="eager"))


@pytest.mark.parametrize("how", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_what_breaks_off_leaves_the_old_one_whole(how, copy, llama, monkeypatch):
    before = {path.name: path.read_bytes() for path in copy.iterdir()}

    def compile_some(package, path):
        path.write_bytes(b"half")
        if package.name.startswith("end"):
            raise how

    monkeypatch.setattr(exporting, "compile_part", compile_some)
    with pytest.raises(PackageMismatch if isinstance(how, OSError) else KeyboardInterrupt):
        write(llama, copy)
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before
    assert [path.name for path in copy.parent.iterdir()] == [copy.name]


@pytest.mark.slow
def test_torch_writes_no_file_itself(copy, llama, monkeypatch):
    """Its writer, where a disk is full, ends the process from a C++ destructor."""
    before = {path.name: path.read_bytes() for path in copy.iterdir()}

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(exporting, "aoti_compile_and_package", lambda _, package_path: package_path.write(b"code"))
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(PackageMismatch, match=r"x\.aot cannot be written: No space left on device"):
        write(llama, copy)
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before
    assert [path.name for path in copy.parent.iterdir()] == [copy.name]


def test_a_new_one_takes_the_place_of_the_old(copy, llama, monkeypatch):
    monkeypatch.setattr(exporting, "compile_part", lambda package, path: path.write_bytes(package.name.encode()))
    write(llama, copy, compile_phases="both")
    assert sorted(path.name for path in copy.iterdir()) == sorted(
        [MANIFEST, *(f"{name}.pt2" for name in ("end-many", "end-one", "layer-chunk-0", "layer-many-0", "layer-one-0"))]
    )
    assert [path.name for path in copy.parent.iterdir()] == [copy.name]


def test_nothing_else_is_overwritten(llama, tmp_path):
    for folder in (tmp_path, tmp_path / "file"):
        (tmp_path / "file").write_text("kept")
        with pytest.raises(PackageMismatch, match="not overwritten"):
            write(llama, folder)
    with pytest.raises(PackageMismatch, match="cannot be written: No such file"):
        write(llama, tmp_path / "nowhere" / "x.aot")


@pytest.mark.parametrize("manifest", ["{}", '{"name": "a web app", "files": {}}', ""])
def test_another_programs_manifest_is_no_package(manifest, llama, tmp_path):
    """Many programs have a manifest.json."""
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / MANIFEST).write_text(manifest)
    (folder / "index.html").write_text("mine")
    with pytest.raises(PackageMismatch, match="is no AOT package: it is not overwritten"):
        write(llama, folder)
    assert (folder / "index.html").read_text() == "mine"


def test_what_somebody_has_put_into_a_package_is_not_deleted(copy, llama):
    (copy / "notes.txt").write_text("mine")
    with pytest.raises(PackageMismatch, match=r"holds notes.txt, which is no part of the AOT package"):
        write(llama, copy)
    assert (copy / "notes.txt").read_text() == "mine"
