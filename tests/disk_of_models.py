"""A made-up disk with models of all origins, tiny ones, and with what goes wrong on real disks.

`make` writes it below a folder and points the environment there. Every entry that `tokenmill list` should have is in
MODELS or ADAPTERS (name → origin), or in PROBLEMS (name → words of what is wrong with it); names are filled in with
paths of the disk.
"""

import json
import os
import shutil
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import gguf
import huggingface_hub
import numpy as np

from tests import gguf_files
from tests.peft_adapters import write_small_adapter
from tokenmill.hub import short_names
from tokenmill.hub.download import Packaged
from tokenmill.hub.places import ollama

COMMIT, OLDER = "0123456789abcdef0123456789abcdef01234567", "89abcdef0123456789abcdef0123456789abcdef"
OLLAMA_KIND = "application/vnd.ollama.image."


@dataclass
class Disk:
    """home: the home folder. models, adapters: name → origin. problems: name → words. given: a folder for --dir."""

    root: Path
    home: Path
    hub: Path
    store: Path
    given: Path
    models: dict[str, str]
    problems: dict[str, str]
    adapters: dict[str, str]


def contents(root: Path) -> dict[str, object]:
    """All that lies below a folder: bytes of files, targets of links, None for folders."""
    return {
        path.relative_to(root).as_posix(): str(path.readlink())
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else None
        for path in root.rglob("*")
    }


class Sources(NamedTuple):
    """What is copied to many places: a directory in Hugging Face layout and GGUF files."""

    directory: Path
    llama: Path
    qwen: Path
    bert: Path


def sources(folder: Path, directory: Path) -> Sources:
    """GGUF files of two models, and one of a family that is not implemented."""
    llama = gguf_files.write(folder / "llama.gguf", "llama", metadata={"general.name": "Tiny Llama"})
    qwen = gguf_files.write(folder / "qwen.gguf", "qwen2", gguf_files.KIND.Q8_0)
    bert = folder / "bert.gguf"
    bert.write_bytes(llama.read_bytes().replace(b"llama", b"mamba"))
    return Sources(directory, llama, qwen, bert)


def make(root: Path, made: Sources, monkeypatch) -> Disk:
    home = root / "home"
    hub, store, system = home / "hub", home / ".ollama" / "models", root / "usr" / "share" / "ollama" / "models"
    given = root / "given"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TOKENMILL_CACHE", str(home / "cache"))
    for name in ("OLLAMA_MODELS", "LLAMA_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TOKENMILL_MODELS", str(given))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(hub))
    monkeypatch.setattr(ollama, "SYSTEM", (system,))
    disk = Disk(root, home, hub, store, given, {}, {}, {})
    _own(disk, made, monkeypatch)
    _hub(disk, made)
    _ollama(disk, made, system)
    _programs(disk, made)
    _given(disk, made)
    _adapters(disk, root)
    return disk


def _own(disk: Disk, made: Sources, monkeypatch) -> None:
    cache = disk.home / "cache"
    cache.mkdir(parents=True)
    for name in list(short_names.SHORT_NAMES):
        monkeypatch.delitem(short_names.SHORT_NAMES, name)
    for name, file in (("whole", "whole.gguf"), ("cut", "cut.gguf"), ("linked", "linked.gguf")):
        content = made.qwen.read_bytes()
        packaged = Packaged("Tiny", file, sha256(content).hexdigest(), len(content), ())
        monkeypatch.setitem(short_names.SHORT_NAMES, name, packaged)
        if name == "linked":
            (disk.root / "elsewhere.gguf").write_bytes(content)
            (cache / file).symlink_to(disk.root / "elsewhere.gguf")
        else:
            (cache / file).write_bytes(content if name == "whole" else content[:-9])
    shutil.copy(made.llama, cache / "mine.gguf")
    disk.models |= {"whole": "tokenmill", "linked": "tokenmill", "~/cache/mine.gguf": "tokenmill"}
    disk.problems["cut"] = "bytes, and has"


def repository(hub: Path, name: str, files: dict[str, bytes], commit: str = COMMIT, ref: str | None = "main") -> Path:
    """A repository as the hub's client writes it; files of several commits share blobs."""
    folder = hub / f"models--{name.replace('/', '--')}"
    for part in ("blobs", "refs", f"snapshots/{commit}"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    if ref is not None:
        (folder / "refs" / ref).write_text(commit)
    for file, content in files.items():
        blob = folder / "blobs" / sha256(content).hexdigest()
        blob.write_bytes(content)
        link = folder / "snapshots" / commit / file
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    return folder


def _hub(disk: Disk, made: Sources) -> None:
    directory = {path.name: path.read_bytes() for path in sorted(made.directory.iterdir()) if path.is_file()}
    ggufs = {"a-q8_0.gguf": made.qwen.read_bytes(), "a-f32.gguf": made.llama.read_bytes(), "README.md": b"text"}
    repository(disk.hub, "one/tiny", directory)
    repository(disk.hub, "two/tiny", directory | {"config.json": directory["config.json"] + b"\n"})
    repository(disk.hub, "one/files", ggufs)
    repository(disk.hub, "one/moved", directory)
    repository(disk.hub, "one/moved", {**directory, "extra.json": b"{}"}, OLDER, None)
    disk.models |= dict.fromkeys(("one/tiny", "two/tiny", "one/moved", f"one/moved/tree/{OLDER}"), "hub")
    disk.models |= dict.fromkeys(("one/files:a-q8_0.gguf", "one/files:a-f32.gguf"), "hub")
    (repository(disk.hub, "one/foreign", {"x.gguf": made.qwen.read_bytes()}) / "notes.txt").write_text("of the user")
    outside = repository(disk.hub, "one/outside", {"y.gguf": made.qwen.read_bytes()})
    (outside / "snapshots" / COMMIT / "z.gguf").symlink_to(disk.root / "elsewhere.gguf")
    disk.models |= {"one/foreign:x.gguf": "hub", "one/outside:y.gguf": "hub", "one/outside:z.gguf": "hub"}
    (next((repository(disk.hub, "one/dangling", {"w.gguf": b"gone"}) / "blobs").iterdir())).unlink()
    repository(disk.hub, "one/config", {"config.json": directory["config.json"]})
    repository(disk.hub, "one/parts", {"p-00001-of-00002.gguf": made.llama.read_bytes()})
    disk.problems |= {
        "one/dangling": "Blob missing",
        "one/config": "holds no weights",
        "one/parts:p-00001-of-00002.gguf": "lacks p-00002-of-00002.gguf",
    }
    dataset = repository(disk.hub, "one/data", {"data.csv": b"1,2"})
    dataset.rename(disk.hub / "datasets--one--data")


def manifest(store: Path, name: str, *layers: tuple[str, bytes], keep: bool = True) -> Path:
    """A model of Ollama with layers of these kinds. keep: whether their blobs are written."""
    entries = []
    for kind, content in layers:
        digest = sha256(content).hexdigest()
        entries.append({"mediaType": OLLAMA_KIND + kind, "digest": f"sha256:{digest}", "size": len(content)})
        (store / "blobs").mkdir(parents=True, exist_ok=True)
        if keep:
            (store / "blobs" / f"sha256-{digest}").write_bytes(content)
    path = store / "manifests" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"schemaVersion": 2, "layers": entries}))
    return path


def _ollama(disk: Disk, made: Sources, system: Path) -> None:
    library, store = "registry.ollama.ai/library", disk.store
    model, template = ("model", made.qwen.read_bytes()), ("template", b"{{ .Prompt }}")
    manifest(store, f"{library}/tiny/latest", model, template)
    manifest(store, "registry.ollama.ai/somebody/tiny/1b", model)
    manifest(store, "hf.co/one/files/Q8_0", ("model", made.llama.read_bytes()), template)
    manifest(store, f"{library}/old/1b", ("model", made.bert.read_bytes()))
    disk.models |= {"ollama:tiny:latest": "Ollama", "ollama:old:1b": "Ollama", "ollama:hf.co/one/files:Q8_0": "Ollama"}
    disk.models["ollama:somebody/tiny:1b"] = "Ollama"
    manifest(store, f"{library}/broken/latest", model).write_text('{"layers": [')
    manifest(store, f"{library}/gone/latest", ("model", b"never fetched"), keep=False)
    manifest(store, f"{library}/adapted/latest", model, ("adapter", b"lora"))
    manifest(store, f"{library}/cloud/latest", template)
    tensors = [(f"tensor; name=t{number}; dtype=BF16", bytes([number])) for number in range(3)]
    manifest(store, f"{library}/tensors/latest", *tensors)
    alone = store / "blobs" / f"sha256-{'5' * 64}"
    alone.write_bytes(made.llama.read_bytes() + b"\0" * 8)
    disk.models[str(alone)] = "Ollama"
    (store / "blobs" / f"sha256-{'6' * 64}-partial").write_bytes(b"half")
    (store / "blobs" / f"sha256-{'6' * 64}-partial-0").write_text("{}")
    disk.problems |= {
        "ollama:broken:latest": "has a manifest that cannot be read",
        "ollama:gone:latest": "lacks its blob",
        "ollama:adapted:latest": "has an adapter",
        "ollama:cloud:latest": "no layer with a GGUF file",
        "ollama:tensors:latest": "its layers are tensor",
        str(store / "blobs" / f"sha256-{'6' * 64}-partial"): "has begun to fetch",
    }
    twice = made.qwen.read_bytes() + b"\0" * 32
    manifest(system, f"{library}/tiny/latest", ("model", twice))
    disk.models[str(system / "blobs" / f"sha256-{sha256(twice).hexdigest()}")] = "Ollama"


def _programs(disk: Disk, made: Sources) -> None:
    studio, llama = disk.home / ".lmstudio" / "models" / "one" / "tiny", disk.home / ".cache" / "llama.cpp"
    for folder in (studio, llama):
        folder.mkdir(parents=True)
    shutil.copy(made.llama, studio / "Tiny-Llama-F32.gguf")
    (studio / "mmproj-Tiny.gguf").write_bytes(b"GGUF")
    shutil.copy(made.qwen, llama / "one_tiny_q8_0.gguf")
    (llama / "one_tiny_q8_0.gguf.json").write_text("{}")
    disk.models["~/.lmstudio/models/one/tiny/Tiny-Llama-F32.gguf"] = "LM Studio"
    disk.models["~/.cache/llama.cpp/one_tiny_q8_0.gguf"] = "llama.cpp"


def _given(disk: Disk, made: Sources) -> None:
    given = disk.given
    shutil.copytree(made.directory, given / "deep" / "directory")
    gguf_files.write(
        given / "Tiny-Llama-F16.gguf", "llama", gguf_files.KIND.F16, metadata={"general.name": "Tiny Llama"}
    )
    shutil.copy(made.qwen, given / "with space.gguf")
    gguf_files.write(given / "split.gguf", "llama", split=8)
    (given / "damaged.gguf").write_bytes(made.qwen.read_bytes()[:1000])
    (given / "dangling.gguf").symlink_to(given / "nothing.gguf")
    (given / "round").symlink_to(given)
    (given / "knot").symlink_to(given / "knot")
    (given / "notes.txt").write_text("of the user")
    parts = sorted(path.name for path in given.glob("split-*.gguf"))
    names = ("deep/directory", "Tiny-Llama-F16.gguf", "with space.gguf", parts[0], "damaged.gguf")
    disk.models |= {str(given / name): "folder" for name in names}
    disk.problems[str(given / "dangling.gguf")] = "which does not exist"


def write_gguf_adapter(path: Path, tensors: dict[str, tuple[int, ...]], **metadata: str) -> Path:
    """Write an adapter as llama.cpp's converter does, of ones."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 16.0)
    for key, value in metadata.items():
        writer.add_string(key.replace("__", "."), value)
    for name, shape in tensors.items():
        writer.add_tensor(name, np.ones(shape, np.float32))
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file()
    writer.close()
    return path


def _adapters(disk: Disk, root: Path) -> None:
    given = disk.given
    write_small_adapter(root / "made", num_layers=2, hidden=32, seed=0)
    files = {file.name: file.read_bytes() for file in sorted((root / "made").iterdir())}
    settings = json.loads(files["adapter_config.json"]) | {"base_model_name_or_path": "one/tiny"}
    files["adapter_config.json"] = json.dumps(settings).encode()
    repository(disk.hub, "one/french", files)
    for name in ("french", "begun", "beside"):
        (given / name).mkdir()
        (given / name / "adapter_config.json").write_bytes(files["adapter_config.json"])
    for name in ("french", "beside"):
        (given / name / "adapter_model.safetensors").write_bytes(files["adapter_model.safetensors"])
    (given / "beside" / "config.json").write_text("{}")  # as some programs save it, without the model
    named = {"general__base_model__0__name": "Tiny Llama"}
    q = "blk.0.attn_q.weight.lora_{}".format
    write_gguf_adapter(given / "lora.gguf", {q("a"): (4, 32), q("b"): (32, 4)}, **named)
    write_gguf_adapter(given / "half.gguf", {q("a"): (4, 32)})
    disk.adapters |= {"one/french": "hub"} | {
        str(given / name): "folder" for name in ("french", "beside", "lora.gguf", "half.gguf")
    }
    disk.problems[str(given / "begun")] = "lacks adapter_model.safetensors"
