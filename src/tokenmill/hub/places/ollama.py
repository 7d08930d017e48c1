"""Models in Ollama's stores, by the names that Ollama has for them: `ollama:llama3.2:1b`.

A store has manifests/HOST/NAMESPACE/MODEL/TAG, JSON files that name layers by digest, and blobs/sha256-HEX with their
bytes (https://github.com/ollama/ollama/blob/main/docs/import.md and types/model/name.go). The layer of kind `model` is
a GGUF file. Templates and parameters, layers of their own, are not read: the GGUF file has a template too. A layer that
changes what the model computes, as an adapter does, is refused.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from tokenmill.errors import CheckpointError, file_errors
from tokenmill.hub.places.entry import OLLAMA, FoundModel, folder_of, is_folder, real_path, reason_of

PREFIX = "ollama:"
SYSTEM = (Path("/usr/share/ollama/.ollama/models"), Path("/var/lib/ollama/models"))  # of the service, by its installers
HOST, NAMESPACE, TAG = "registry.ollama.ai", "library", "latest"
DEEPEST = 10  # folders of manifests within folders
_KIND = "application/vnd.ollama.image."
_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")
_LARGEST = 1 << 20  # bytes of a manifest
_GGUF = b"GGUF"


class ManifestLayer(NamedTuple):
    """A layer of a manifest. kind: model, adapter, template, … num_bytes: as the manifest says."""

    kind: str
    blob: Path
    num_bytes: int


def stores() -> list[Path]:
    """List the stores that there are: the user's own, and the store of the system's service."""
    found: dict[Path, Path] = {}
    for folder in (*folder_of("OLLAMA_MODELS", ".ollama/models"), *SYSTEM):
        if is_folder(folder):
            found.setdefault(real_path(folder), folder)
    return list(found.values())


def name_of(manifest: Path) -> str:
    """Return the name that Ollama shows, from the path of a manifest below `manifests`."""
    host, *namespace, model, tag = manifest.parts
    inner = [] if namespace == [NAMESPACE] and host == HOST else namespace
    return "/".join([*([] if host == HOST else [host]), *inner, f"{model}:{tag}"])


def manifest_of(name: str) -> Path:
    """Return the path below `manifests` of a name as Ollama takes it, with what may be left out."""
    path, _, tag = name.rpartition(":") if ":" in name.rpartition("/")[2] else (name, "", "")
    parts = [part for part in path.split("/") if part]
    if not parts or ".." in parts or "/" in tag or tag in (".", ".."):
        raise CheckpointError(f"{PREFIX}{name} is no name of Ollama: give one as ollama:llama3.2:1b")
    before = {1: (HOST, NAMESPACE), 2: (HOST,)}.get(len(parts), ())
    return Path(*before, *parts, tag or TAG)


def blob_of(name: str) -> Path:
    """Find the GGUF file that a name of Ollama stands for; CheckpointError says what is missing."""
    manifest, found = manifest_of(name), stores()
    for store in found:
        path = store / "manifests" / manifest
        with file_errors(path, "read"):
            is_there = path.is_file()
        if is_there:
            entry = _entry(store, path)
            if entry.path is None:
                raise CheckpointError(f"{PREFIX}{name} {entry.problem}")
            return entry.path
    where = ", ".join(map(str, found)) or "no store of Ollama, for which OLLAMA_MODELS and ~/.ollama/models are read"
    there = ", ".join(sorted({entry.name for entry in all_entries() if entry.path and entry.name.startswith(PREFIX)}))
    remedy = f"it has {there}" if there else f"`ollama pull {name}` fetches it"
    raise CheckpointError(f"Ollama has no model {name!r} here ({where}); {remedy}")


def all_entries() -> Iterator[FoundModel]:
    """Yield everything in all stores. A name that an earlier store has already is told by its file."""
    known: set[str] = set()
    for store in stores():
        for entry in _entries(store):
            if entry.name in known and entry.path is not None:
                note = f"another store of Ollama has {entry.name} too, which is the one that this name means"
                yield replace(entry, name=str(entry.path), note=note)
            else:
                known.add(entry.name)
                yield entry


def _entries(store: Path) -> Iterator[FoundModel]:
    named: set[Path] = set()
    try:
        manifests = sorted(_manifests(store / "manifests"))
    except OSError as error:
        yield FoundModel(str(store), OLLAMA, store, problem=f"cannot be read: {reason_of(error)}")
        return
    for path in manifests:
        entry = _entry(store, path)
        named |= set(entry.files)
        yield entry
    try:
        blobs = sorted((store / "blobs").iterdir()) if (store / "blobs").is_dir() else []
    except OSError as error:
        yield FoundModel(str(store / "blobs"), OLLAMA, store, problem=f"cannot be read: {reason_of(error)}")
        return
    for blob in blobs:
        if blob not in named and (entry_of_blob := _blob_alone(store, blob)) is not None:
            yield entry_of_blob


def _manifests(folder: Path, depth: int = 0) -> Iterator[Path]:
    """Yield the files at the depth of a tag: HOST/NAMESPACE/MODEL/TAG, where a namespace may have several parts."""
    for path in sorted(folder.iterdir()) if folder.is_dir() and depth < DEEPEST else []:
        if path.is_dir() and not path.is_symlink():
            yield from _manifests(path, depth + 1)
        elif not path.name.startswith("."):
            yield path


def _entry(store: Path, path: Path) -> FoundModel:
    relative = path.relative_to(store / "manifests")
    if len(relative.parts) < 3:
        return FoundModel(str(path), OLLAMA, store, problem="is no manifest of a model: it lies too high in its folder")
    name = name_of(relative)
    typed, remove = PREFIX + name, f"ollama rm {quote(name)}"
    try:
        layers = _layers(store, path)
    except (OSError, ValueError) as error:
        why = reason_of(error) if isinstance(error, OSError) else str(error)
        return FoundModel(typed, OLLAMA, store, problem=f"has a manifest that cannot be read: {why}", elsewhere=remove)
    files = tuple(layer.blob for layer in layers)
    problem = _problem(layers)
    model = next((layer.blob for layer in layers if layer.kind == "model"), None)
    return FoundModel(typed, OLLAMA, store, None if problem else model, files, problem, elsewhere=remove)


def _problem(layers: list[ManifestLayer]) -> str:
    """Say why the layers hold no model that can be loaded; empty if they hold one."""
    models = [layer for layer in layers if layer.kind == "model"]
    if not models:
        kinds = ", ".join(sorted({layer.kind for layer in layers})) or "none"
        return f"has no layer with a GGUF file in its manifest: its layers are {kinds}"
    if len(models) > 1:
        return f"has {len(models)} layers with a model: a model in several files of Ollama is not read"
    if any(layer.kind == "adapter" for layer in layers):
        return "has an adapter beside its model, which would not be applied"
    blob = models[0].blob
    try:
        there = blob.stat().st_size
    except OSError as error:
        return f"lacks its blob {blob.name}: {reason_of(error)}"
    wanted = models[0].num_bytes
    return "" if there == wanted else f"has {there:,} of the {wanted:,} bytes of its blob {blob.name}"


def _layers(store: Path, path: Path) -> list[ManifestLayer]:
    """Read the layers of a manifest. OSError, or ValueError for a file that is no manifest."""
    if not path.is_file():  # a pipe would be waited for
        raise ValueError("it is a link to nothing" if path.is_symlink() else "it is no regular file")
    with path.open("rb") as opened:
        text = opened.read(_LARGEST + 1)
    if len(text) > _LARGEST:
        raise ValueError(f"it is longer than {_LARGEST} bytes")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is no JSON ({error})") from None
    layers = document.get("layers") if isinstance(document, dict) else None
    if not isinstance(layers, list):
        raise ValueError("it has no list of layers")
    return [_layer(store, layer) for layer in layers]


def _layer(store: Path, layer: Any) -> ManifestLayer:
    values = layer if isinstance(layer, dict) else {}
    kind, digest, size = (values.get(key) for key in ("mediaType", "digest", "size"))
    if not isinstance(kind, str) or not isinstance(digest, str) or type(size) is not int:
        raise ValueError("a layer has no mediaType, digest or size")
    match = _DIGEST.fullmatch(digest)
    if match is None:
        raise ValueError(f"a layer has the digest {digest[:80]!r}")
    kind = kind.partition(";")[0].strip()  # without its parameters, such as the name of a tensor
    return ManifestLayer(kind.removeprefix(_KIND), store / "blobs" / f"sha256-{match[1]}", size)


def _blob_alone(store: Path, blob: Path) -> FoundModel | None:
    """Describe a blob that no manifest names, if it is a model, or was begun to be fetched."""
    remove = f"rm {quote(str(blob))}"
    if "-partial" in blob.name:
        begun = "is a blob that Ollama has begun to fetch"
        is_first = blob.name.endswith("-partial")  # beside it lie files with the state of each of its parts
        return FoundModel(str(blob), OLLAMA, store, None, (blob,), begun, elsewhere=remove) if is_first else None
    try:
        if not blob.is_file():
            return None
        with blob.open("rb") as opened:
            is_model = opened.read(len(_GGUF)) == _GGUF
    except OSError as error:
        return FoundModel(str(blob), OLLAMA, store, None, (), f"cannot be read: {reason_of(error)}", elsewhere=remove)
    note = "no manifest of Ollama names this blob"
    return FoundModel(str(blob), OLLAMA, store, blob, (blob,), note=note, elsewhere=remove) if is_model else None
