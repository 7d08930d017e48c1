"""An AOT package opened: its manifest is compared with the model and the settings, then its code is loaded."""

import platform
import zlib
from collections.abc import Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tokenmill.errors import PackageMismatch
from tokenmill.program.aot.manifest import REMEDY, file_digest, read_manifest
from tokenmill.settings.engine_config import EngineConfig

Loader = torch._C._aoti.AOTIModelPackageLoader


class Package(NamedTuple):
    """Compiled parts by name, the kinds of steps that they serve, and the number of each layer's code."""

    code: Mapping[str, Loader]
    kinds: Sequence[str]
    layers: Sequence[int]


def made_for(config: EngineConfig, fingerprint: Mapping[str, str], device: torch.device) -> dict[str, Any]:
    """List the manifest's fields that must be equal before an engine uses the package. config: resolved."""
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
    """Name the processor with its features: code is compiled for all features of the processor that compiles it."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
    first = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    found = {field.strip(): value.strip() for field, _, value in first}
    name, flags = found.get("model name", platform.processor()), found.get("flags", found.get("Features", ""))
    features = f"features {zlib.crc32(flags.encode()):08x}"
    return ", ".join([platform.machine(), name, torch.backends.cpu.get_cpu_capability(), features])


def open_package(folder: Path, wanted: Mapping[str, Any], device: torch.device) -> Package:
    """Open a package; PackageMismatch names each field that differs from `wanted`, or the first damaged file."""
    facts = read_manifest(folder)
    differ = [f"{name} {facts.get(name)!r}, here {here!r}" for name, here in wanted.items() if facts.get(name) != here]
    if differ:
        raise PackageMismatch(f"{folder} was made for another setting: {'; '.join(differ)}; {REMEDY}")
    for name, wanted_digest in facts["files"].items():
        try:
            found = file_digest(folder / name)
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
