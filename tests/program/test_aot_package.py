"""What a package says that it was made for: the processor, the GPU and the versions, on machines that are told here."""

import platform
import zlib

import pytest
import torch

from tokenmill.errors import PackageMismatch
from tokenmill.memory.atomic_file import seal
from tokenmill.program.aot import package
from tokenmill.program.aot.manifest import MANIFEST, file_digest, read_manifest, write_manifest
from tokenmill.program.aot.package import made_for, open_package
from tokenmill.settings.engine_config import EngineConfig

CPUINFO = (
    "processor : 0\nmodel name\t: Abacus 9\nflags\t: fpu sse avx2\n\nprocessor : 1\nmodel name : Other\nflags : none\n"
)
ARM = "processor : 0\nFeatures : fp asimd\n\n"
CPU = torch.device("cpu")


@pytest.fixture
def machine(monkeypatch):
    """Sets what /proc/cpuinfo says; None: there is no such file."""
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(platform, "processor", lambda: "a loom")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")

    def set_text(text):
        monkeypatch.setattr(package, "Path", lambda _: File(text))

    return set_text


class File:
    def __init__(self, text):
        self.text = text

    def exists(self):
        return self.text is not None

    def read_text(self, encoding):
        return self.text


@pytest.mark.parametrize(
    ("text", "name", "flags"),
    [(CPUINFO, "Abacus 9", "fpu sse avx2"), (ARM, "a loom", "fp asimd"), (None, "a loom", "")],
)
def test_the_processor_is_told_with_its_features(text, name, flags, machine):
    machine(text)
    assert package._processor() == f"x86_64, {name}, AVX2, features {zlib.crc32(flags.encode()):08x}"


def test_all_that_must_be_equal(monkeypatch):
    monkeypatch.setattr(package, "_processor", lambda: "a loom")
    monkeypatch.setattr(package, "distributions", lambda name: iter([type("D", (), {"version": f"{name} 3.1"})]))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.index}")
    config = EngineConfig(dtype="float32", scheme="q8", cache_format="int8", fuse="qkv")
    fingerprint = {"config": "1", "weights": "2", "tokenizer": "3"}
    here = {
        "model": {"config": "1", "weights": "2"}, "dtype": "float32", "scheme": "q8", "cache_format": "int8",
        "fuse": "qkv", "device": "cpu", "processor": "a loom", "torch": str(torch.__version__), "triton": None,
    }  # fmt: skip
    assert made_for(config, fingerprint, CPU) == here
    there = here | {"device": "GPU 1", "triton": "triton 3.1"}
    assert made_for(config, fingerprint, torch.device("cuda:1")) == there


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "b.pt2").write_bytes(b"12345")
    (tmp_path / "a.pt2").write_bytes(b"123")
    assert write_manifest(tmp_path, {"kinds": ["one"], "layers": [0, 0], "dtype": "float32"}) == 8
    return tmp_path


def test_a_manifest_has_sizes_and_digests(folder):
    facts = read_manifest(folder)
    assert (facts["num_bytes"], list(facts["files"])) == (8, ["a.pt2", "b.pt2"])
    sha256_of_123 = "a665a45920422f9d417e4867efdc4fb8a04a1f3fff1fa07e998e86f7f7a27ae3"
    assert facts["files"]["a.pt2"] == file_digest(folder / "a.pt2") == sha256_of_123


@pytest.fixture
def loaded(monkeypatch):
    found = []
    monkeypatch.setattr(package, "Loader", lambda *given: found.append(given) or given[0].rpartition("/")[2])
    return found


def test_parts_are_loaded_for_a_processor_in_one_thread(folder, loaded):
    opened = open_package(folder, {"dtype": "float32"}, CPU)
    assert opened.code == {"a.pt2": "a.pt2", "b.pt2": "b.pt2"}
    assert (opened.kinds, opened.layers) == (["one"], [0, 0])
    assert loaded[0] == (str(folder / "a.pt2"), "model", False, 1, -1)


def test_parts_are_loaded_for_the_gpu_of_that_number(folder, loaded, monkeypatch):
    class Empty:
        @staticmethod
        def get_device():
            return 0

    monkeypatch.setattr(torch, "empty", lambda *_, device: Empty)
    open_package(folder, {}, torch.device("cuda:0"))
    assert [given[1:] for given in loaded] == [("model", True, 1, 0)] * 2


@pytest.mark.parametrize(("words", "said"), [("bad magic\nat 0", "bad magic"), ("", "")])
def test_what_torch_does_not_load_is_said_in_a_line(words, said, folder, monkeypatch):
    def failing(*_):
        raise RuntimeError(words)

    monkeypatch.setattr(package, "Loader", failing)
    with pytest.raises(PackageMismatch) as refused:
        open_package(folder, {}, CPU)
    remedy = "make it again with `tokenmill compile`, or load without it"
    assert str(refused.value) == f"{folder} cannot be loaded: {said}; {remedy}"


def test_each_field_that_differs_is_named(folder, loaded):
    with pytest.raises(
        PackageMismatch, match="another setting: dtype 'float32', here 'bfloat16'; device None, here 'cpu'; make"
    ):
        open_package(folder, {"dtype": "bfloat16", "device": "cpu", "kinds": ["one"]}, CPU)
    assert loaded == []


def test_another_format_is_refused(folder):
    (folder / MANIFEST).write_text(seal({}, 2))
    with pytest.raises(PackageMismatch, match="make it again"):
        read_manifest(folder)
