"""The manifest of an AOT package: what its code was compiled for. Every field is compared when it is loaded.

manifest.json      the fields, the files and their digests, sealed by a checksum
layer-one-0.pt2 …  the compiled parts: machine code, so load only packages that you made
"""

import hashlib
import platform
import zlib
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from tokenmill.config import EngineConfig
from tokenmill.errors import PackageMismatch
from tokenmill.memory.atomic_file import seal, unseal

__all__ = ["MANIFEST", "REMEDY", "check", "digest", "made_for", "read_manifest", "seal_manifest"]

MANIFEST, FORMAT = "manifest.json", 1
REMEDY = "make it again with `tokenmill compile`, or load without it"


def made_for(config: EngineConfig, fingerprint: Mapping[str, str], device: torch.device) -> dict[str, Any]:
    """The fields that must be equal, of an engine whose config is resolved."""
    return {
        "model": {part: digest for part, digest in fingerprint.items() if part != "tokenizer"},
        **{name: getattr(config, name) for name in ("dtype", "scheme", "cache_format", "fuse")},
        "device": device.type if device.type == "cpu" else torch.cuda.get_device_name(device),
        "processor": _processor(),
        "torch": str(torch.__version__),
        "triton": _triton() if device.type == "cuda" else None,
    }


def _processor() -> str:
    """The processor with its features: code is compiled for all features of the processor that compiles it."""
    name, flags = platform.processor(), ""
    cpuinfo = Path("/proc/cpuinfo")
    for line in cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else ():
        what, _, value = line.partition(":")
        if what.strip() == "model name":
            name = value.strip()
        elif what.strip() in ("flags", "Features"):
            flags = value.strip()
            break
    features = f"features {zlib.crc32(flags.encode()):08x}"
    return ", ".join([platform.machine(), name, torch.backends.cpu.get_cpu_capability(), features])


def _triton() -> str | None:
    try:
        return version("triton")
    except PackageNotFoundError:
        return None


def seal_manifest(facts: Mapping[str, Any]) -> str:
    """The text of a manifest."""
    return seal(facts, FORMAT)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Its facts. PackageMismatch if it is no AOT package, damaged, or of another version."""
    path = folder / MANIFEST
    try:
        return unseal(path.read_bytes(), FORMAT)
    except OSError as error:
        raise PackageMismatch(f"{folder} is no AOT package: {path.name}: {error.strerror}") from error
    except ValueError as error:
        raise PackageMismatch(f"{path} {error}; {REMEDY}") from error


def check(folder: Path, wanted: Mapping[str, Any]) -> None:
    """PackageMismatch names every field that differs, or the first file that is damaged."""
    facts = read_manifest(folder)
    differ = [f"{name} {facts.get(name)!r}, here {here!r}" for name, here in wanted.items() if facts.get(name) != here]
    if differ:
        raise PackageMismatch(f"{folder} was made for another setting: {'; '.join(differ)}; {REMEDY}")
    for name, wanted_digest in facts["files"].items():
        try:
            found = digest(folder / name)
        except OSError as error:
            raise PackageMismatch(f"{folder} is damaged: {name}: {error.strerror}; {REMEDY}") from error
        if found != wanted_digest:
            raise PackageMismatch(f"{folder} is damaged: {name} does not match its digest; {REMEDY}")


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
