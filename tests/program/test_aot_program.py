"""Program aot with plain modules in the place of machine code, each called within the sizes it would be made for."""

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from tests.program.asked import MEETS, texts, told_in_sessions
from tests.program.test_compiled import engine_for, same
from tests.tiny_models import HYBRIDS, save
from tokenmill.errors import ConfigError
from tokenmill.hub.progress import Silent
from tokenmill.loader.compile import save_aot_package
from tokenmill.program.aot import exporting, package
from tokenmill.program.aot.exporting import KINDS, CompilablePart
from tokenmill.program.aot.program import End, weights_of
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.weights.checkpoint import open_checkpoint


class Uncompiled:
    """A part of the forward as it is given to the compiler. Sizes that are not dynamic are those of its example."""

    def __init__(self, export):
        self.module, self.calls = CompilablePart(export.module), 0
        self.names = list(weights_of(export.module))
        self.leaves, self.spec = tree_flatten(export.inputs)
        sizes = tree_leaves(export.dynamic_sizes, is_leaf=lambda value: value is None or self._are_sizes(value))
        both = [(leaf, size) for leaf, size in zip(self.leaves, sizes, strict=True) if torch.is_tensor(leaf)]
        self.examples, self.dynamic = zip(*both, strict=True)

    @staticmethod
    def _are_sizes(value):
        return isinstance(value, dict) and {*map(type, value)} == {int}

    def run(self, tensors):
        self.calls += 1
        given, weights = tensors[: len(self.examples)], tensors[len(self.examples) :]
        dims = {}
        for tensor, example, dynamic in zip(given, self.examples, self.dynamic, strict=True):
            assert tensor.dim() == example.dim() and tensor.dtype == example.dtype
            for dimension, (size, wanted) in enumerate(zip(tensor.shape, example.shape, strict=True)):
                if dynamic is not None and dimension in dynamic:
                    assert dims.setdefault(dynamic[dimension].__name__, size) == size
                    assert dynamic[dimension].min <= size
                else:
                    assert size == wanted
        tensors = iter(given)
        inputs = tree_unflatten([next(tensors) if torch.is_tensor(leaf) else leaf for leaf in self.leaves], self.spec)
        with torch.inference_mode():
            return [self.module(inputs, dict(zip(self.names, weights, strict=True)))]


@pytest.fixture
def parts(monkeypatch):
    """Every part by its name, once a package is written."""
    found = {}

    def keep(export, path):
        found[path.name] = Uncompiled(export)
        path.write_bytes(path.name.encode())

    monkeypatch.setattr(exporting, "compile_part", keep)
    monkeypatch.setattr(package, "Loader", lambda path, *_: found[path.rpartition("/")[2]])
    return found


def packaged(path, folder, phases="both", **how):
    config = EngineConfig(model=str(path), dtype="float32", device="cpu", compile_phases=phases, **how)
    save_aot_package(open_checkpoint(path), config, folder, Silent())
    return engine_for(path, aot_package=str(folder), **how)


UNEQUAL = ("gemma3n_text", "gemma3n_text-departures", "gemma4_text", "gemma4_text-small", "mimo_v2_flash")
"""Rows that layers share, inputs of layers, streams, experts beside an MLP, unequal heads, narrow values."""
LAYERS = {"llama": 1, "gpt2": 1, "nemotron_h": 4, "falcon_h1": 1, "laguna": 3}
LAYERS |= {"gemma3n_text": 5, "gemma3n_text-departures": 5, "gemma4_text": 4, "gemma4_text-small": 4}
"""How many kinds of layers a family has, where it is not two."""


@pytest.mark.parametrize(
    ("family", "how"),
    [
        ("llama", {}),
        ("gpt2", {"scheme": "q8"}),
        ("qwen2-window", {"cache_format": "int8"}),
        *((name, {}) for name in (*HYBRIDS, "falcon_h1", "deepseek_v2", "laguna", *UNEQUAL)),
        ("gemma4_text", {"scheme": "q8", "cache_format": "int8"}),
    ],
)
def test_every_part_is_called_with_what_it_was_made_for(family, how, parts, tmp_path):
    """gpt2 has no angles, and the layers of others are of several kinds: in hybrids they keep rows, states or both."""
    path = save(family, tmp_path)
    engine = packaged(path, tmp_path / "x.aot", **how)
    layers = LAYERS.get(family, 2)
    assert sorted(parts) == sorted(
        [f"layer-{kind}-{n}.pt2" for kind in KINDS["both"] for n in range(layers)] + ["end-one.pt2", "end-many.pt2"]
    )
    assert engine.program_name == "aot"
    same(engine, engine_for(path, program="eager", **how))
    assert all(part.calls for part in parts.values())


@pytest.mark.parametrize(("family", "how"), [*zip([*HYBRIDS, *UNEQUAL[1:]], [*MEETS] * 2, strict=True)])
def test_a_package_meets_other_features(family, how, parts, models, tmp_path):
    """Texts that end at other times than their neighbours, and sessions: those of the modules alone."""
    path = save(family, models)
    ours, theirs = packaged(path, tmp_path / "x.aot", **MEETS[how]), engine_for(path, program="eager")
    assert texts(ours, max_new_tokens=6) == texts(theirs, max_new_tokens=6)
    assert told_in_sessions(ours, tmp_path / "ours") == told_in_sessions(theirs, tmp_path / "theirs")


@pytest.mark.parametrize(("phases", "called"), [("decode", {"one", "many"}), ("prefill", {"chunk"})])
def test_steps_without_code_run_as_plain_modules(phases, called, parts, llama, tmp_path):
    """A package of chunks alone has no code for what follows the last layer."""
    engine = packaged(llama, tmp_path / "x.aot", phases)
    same(engine, engine_for(llama, program="eager"))
    kinds = {name.split("-")[1].removesuffix(".pt2") for name, part in parts.items() if part.calls}
    assert kinds == called


def test_the_examples_are_no_sizes_of_one_where_sizes_may_differ(parts, llama, tmp_path):
    """torch.export takes a size of 1, or two that are alike, for a fixed one."""
    packaged(llama, tmp_path / "x.aot")
    for part in parts.values():
        for example, dynamic in zip(part.examples, part.dynamic, strict=True):
            assert all(example.shape[dimension] > 1 for dimension in dynamic or {})
    tokens = {name: part.examples[0].shape[0] for name, part in parts.items()}
    assert tokens == {
        "layer-one-0.pt2": 1, "layer-many-0.pt2": 3, "layer-chunk-0.pt2": 24, "end-one.pt2": 1, "end-many.pt2": 3,
    }  # fmt: skip
    keys = {name: tuple(part.examples[5].shape) for name, part in parts.items() if name.startswith("layer")}
    assert keys == {"layer-one-0.pt2": (1, 320), "layer-many-0.pt2": (3, 320), "layer-chunk-0.pt2": (1, 320)}


def test_weights_are_inputs_in_the_order_of_their_names(llama):
    decoder = engine_for(llama, program="eager", scheme="dense").core.loaded.program.decoder
    end = End(decoder)
    assert list(weights_of(end)) == ["norm.weight", "head.weight"]
    x = torch.randn(2, decoder.config.hidden_size)
    with torch.inference_mode():
        assert torch.equal(end(x), decoder.end(x))
    assert not any(tensor.requires_grad for tensor in weights_of(decoder.layers[0]).values())


def test_a_tied_head_is_the_embedding(tmp_path):
    decoder = engine_for(save("llama-mha-tied", tmp_path), program="eager", scheme="dense").core.loaded.program.decoder
    assert End(decoder).head is decoder.embedding


class Noted:
    """A progress that takes notes."""

    def __init__(self):
        self.notes = []

    def stage(self, text):
        self.notes.append(text)

    def advance(self, done, total):
        self.notes.append((done, total))


def test_progress_is_told(parts, llama, tmp_path):
    program = engine_for(llama, program="compiled", compile="no").core.loaded
    progress = Noted()
    exporting.write_package(
        tmp_path / "x.aot", program.program.decoder, program.pool, program.program.padded, "decode", {}, progress
    )
    assert progress.notes == [
        "compiling layer-one-0, 1 of 4", (0, 4), "compiling end-one, 2 of 4", (1, 4),
        "compiling layer-many-0, 3 of 4", (2, 4), "compiling end-many, 4 of 4", (3, 4), (4, 4),
    ]  # fmt: skip


def test_each_part_is_given_to_torch_with_its_sizes(llama, monkeypatch, tmp_path):
    """torch.export itself takes a second for each; what it is asked for is told here."""
    asked = []
    monkeypatch.setattr(
        exporting,
        "export",
        lambda module, args, dynamic_shapes: asked.append((module, args, dynamic_shapes)) or "program",
    )
    monkeypatch.setattr(
        exporting, "aoti_compile_and_package", lambda program, package_path: package_path.write(program.encode())
    )
    module = torch.nn.Linear(2, 3)
    exporting.compile_part(exporting.ExportedPart("x", module, (torch.ones(1, 2),), (None,)), tmp_path / "x.pt2")
    assert (tmp_path / "x.pt2").read_bytes() == b"program"
    ((part, (inputs, weights), sizes),) = asked
    assert sizes == {"inputs": (None,), "weights": {"weight": None, "bias": None}}
    assert torch.equal(part(inputs, weights), module(torch.ones(1, 2))) and not list(part.parameters())


@pytest.mark.parametrize(("words", "said"), [("no space\nleft", "no space"), ("", "")])
def test_a_compiler_that_fails_is_named(words, said, monkeypatch, tmp_path):
    def failing(program, package_path):
        raise RuntimeError(words)

    monkeypatch.setattr(exporting, "export", lambda *_, **__: None)
    monkeypatch.setattr(exporting, "aoti_compile_and_package", failing)
    with pytest.raises(ConfigError) as refused:
        exporting.compile_part(exporting.ExportedPart("x", torch.nn.Linear(1, 1), (), ()), tmp_path / "x.pt2")
    assert str(refused.value) == f"program = 'compiled' is not allowed: its compiler failed for x: {said}"


def test_the_compiler_is_told_by_its_first_line(monkeypatch, tmp_path):
    script = tmp_path / "gcc"
    script.write_text('#!/bin/sh\necho "gcc 13 $1"\necho more\n')
    script.chmod(0o755)
    monkeypatch.setattr(exporting.cpp_builder, "get_cpp_compiler", lambda: str(script))
    assert exporting._compiler() == "gcc 13 --version"
