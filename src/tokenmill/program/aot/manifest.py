"""AOT packages on disk, and the manifest that says what their code was compiled for: every field is compared.

manifest.json      the fields, the files and their digests, sealed by a checksum
layer-one-0.pt2 …  the compiled parts: machine code, so load only packages that you made
"""

import hashlib
import platform
import zlib
from collections.abc import Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tokenmill.config import EngineConfig
from tokenmill.errors import PackageMismatch
from tokenmill.memory.atomic_file import seal, unseal

__all__ = ["MANIFEST", "Package", "check_folder", "made_for", "open_package", "read_manifest", "write_manifest"]

Loader = torch._C._aoti.AOTIModelPackageLoader

MANIFEST, FORMAT = "manifest.json", 1
REMEDY = "make it again with `tokenmill compile`, or load without it"


class Package(NamedTuple):
    """Compiled parts by name, the kinds of steps that they are for, and the number of each layer's code."""

    code: Mapping[str, Loader]
    kinds: Sequence[str]
    layers: Sequence[int]


def made_for(config: EngineConfig, fingerprint: Mapping[str, str], device: torch.device) -> dict[str, Any]:
    """The fields that must be equal, of an engine whose config is resolved."""
    versions = (each.version for each in distributions(name="triton"))
    return {
        "model": {part: digest for part, digest in fingerprint.items() if part != "tokenizer"},
        **{name: getattr(config, name) for name in ("dtype", "scheme", "cache_format", "fuse")},
        "device": device.type if device.type == "cpu" else torch.cuda.get_device_name(device),
        "processor": _processor(),
        "torch": str(torch.__version__),
        "triton": next(versions, None) if device.type == "cuda" else None,
    }


def _processor() -> str:
    """The processor with its features: code is compiled for all features of the processor that compiles it."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
    first = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    found = {field.strip(): value.strip() for field, _, value in first}
    name, flags = found.get("model name", platform.processor()), found.get("flags", found.get("Features", ""))
    features = f"features {zlib.crc32(flags.encode()):08x}"
    return ", ".join([platform.machine(), name, torch.backends.cpu.get_cpu_capability(), features])


def check_folder(folder: Path) -> None:
    """PackageMismatch for a directory or file that is there and no package, or holds what is not of the package."""
    if not folder.exists():
        return
    try:
        known = {MANIFEST, *read_manifest(folder)["files"]}
    except (PackageMismatch, KeyError, TypeError) as error:
        raise PackageMismatch(f"{folder} is there and is no AOT package: it is not overwritten ({error})") from None
    if others := sorted(path.name for path in folder.iterdir() if path.name not in known):
        raise PackageMismatch(f"{folder} holds {others[0]}, which is not of the AOT package: it is not overwritten")


def write_manifest(folder: Path, facts: Mapping[str, Any]) -> int:
    """Write the manifest of a package whose compiled parts are in `folder`; the size of those in bytes."""
    paths = sorted(folder.iterdir())
    num_bytes = sum(path.stat().st_size for path in paths)
    files = {path.name: _digest(path) for path in paths}
    (folder / MANIFEST).write_text(seal({**facts, "num_bytes": num_bytes, "files": files}, FORMAT), encoding="utf-8")
    return num_bytes


def read_manifest(folder: Path) -> dict[str, Any]:
    """Its facts. PackageMismatch if it is no AOT package, damaged, or of another version."""
    path = folder / MANIFEST
    try:
        return unseal(path.read_bytes(), FORMAT)
    except OSError as error:
        raise PackageMismatch(f"{folder} is no AOT package: {path.name}: {error.strerror}") from error
    except ValueError as error:
        raise PackageMismatch(f"{path} {error}; {REMEDY}") from error


def open_package(folder: Path, wanted: Mapping[str, Any], device: torch.device) -> Package:
    """PackageMismatch names every field that differs from `wanted`, or the first file that is damaged."""
    facts = read_manifest(folder)
    differ = [f"{name} {facts.get(name)!r}, here {here!r}" for name, here in wanted.items() if facts.get(name) != here]
    if differ:
        raise PackageMismatch(f"{folder} was made for another setting: {'; '.join(differ)}; {REMEDY}")
    for name, wanted_digest in facts["files"].items():
        try:
            found = _digest(folder / name)
        except OSError as error:
            raise PackageMismatch(f"{folder} is damaged: {name}: {error.strerror}; {REMEDY}") from error
        if found != wanted_digest:
            raise PackageMismatch(f"{folder} is damaged: {name} does not match its digest; {REMEDY}")
    number = torch.empty(0, device=device).get_device()  # -1 for the CPU
    try:  # the fourth argument: calls do not overlap, so on a GPU the loader need not wait for the one before
        code = {name: Loader(str(folder / name), "model", number >= 0, 1, number) for name in facts["files"]}
    except RuntimeError as error:
        line = (str(error).splitlines() or [""])[0]
        raise PackageMismatch(f"{folder} cannot be loaded: {line}; {REMEDY}") from error
    return Package(code, facts["kinds"], facts["layers"])


def _digest(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
