"""`tokenmill info` of what stands beside a model: a saved session, compiled code, an adapter."""

import re
from dataclasses import asdict
from json import dumps, loads
from pathlib import Path

from tokenmill.cli.models import looks_saved
from tokenmill.cli.process.display import print_json, print_table
from tokenmill.memory.interrupts import held_interrupts
from tokenmill.settings.sampling_params import SamplingParams
from tokenmill.units import size
from tokenmill.value_reader import brief

_ROPE = re.compile(r"(?:dim|theta|kind)=[^,()]+")


def show_beside(path: Path, json: bool) -> bool:
    """Show what is at a path, if that is no model; tell whether it was shown. A GGUF file is opened as a model first,
    see show_file: to read its header takes a third of a second.
    """
    with held_interrupts():
        from tokenmill.program.aot.manifest import MANIFEST
        from tokenmill.weights.adapters.outline import is_adapter

    if (path / MANIFEST).is_file():
        _show_code(path, json)
    elif looks_saved(path):
        _show_session(path, json)
    elif path.is_dir() and is_adapter(path):
        _show_adapter(path, json)
    else:
        return False
    return True


def show_file(path: Path, json: bool) -> bool:
    """Show a file that no model can be read from, if it is an adapter; tell whether it was shown."""
    from tokenmill.weights.adapters.outline import is_adapter

    is_shown = path.is_file() and is_adapter(path)
    if is_shown:
        _show_adapter(path, json)
    return is_shown


def _show_session(path: Path, json: bool) -> None:
    """Show a saved session: its tokens, and what computed its rows."""
    from tokenmill.cache.header import read_session_facts

    facts = read_session_facts(path)
    facts = {**facts, "path": str(path), "num_tokens": len(facts["tokens"]), "num_bytes": path.stat().st_size}
    if json:
        print_json(facts)
        return
    usual = loads(dumps(asdict(SamplingParams())))
    settings = {name: value for name, value in facts["sampling"].items() if value != usual.get(name)}
    lines = (
        ("tokens", f"{facts['num_tokens']}, rows of {facts['num_rows']}"),
        ("model", facts["model"]),
        ("fingerprint", ", ".join(f"{part} {digest}" for part, digest in facts["fingerprint"].items())),
        ("rows", f"{facts['cache_format']} {facts['dtype']}, of weights in {facts['scheme']}, by {facts['program']}"),
        ("rope", ", ".join(part.replace("=", " ") for part in _ROPE.findall(facts["rope"])) or "none"),
        ("sampling", ", ".join(f"{name} {value}" for name, value in settings.items()) or "greedy"),
        ("written by", ", ".join(f"{name} {version}" for name, version in facts["versions"].items())),
        ("on disk", size(facts["num_bytes"])),
    )
    print_table(str(path), lines)


def _show_code(folder: Path, json: bool) -> None:
    """Show a folder of compiled code: the model and the steps that it is for."""
    from tokenmill.program.aot.manifest import read_manifest

    facts = read_manifest(folder)
    if json:
        print_json({**facts, "path": str(folder)})
        return
    lines = (
        ("compiled code of", facts["source"]),
        ("model", ", ".join(f"{part} {digest}" for part, digest in facts["model"].items())),
        ("steps of", ", ".join(facts["kinds"])),
        *((name, str(facts[name])) for name in ("dtype", "scheme", "cache_format", "fuse", "device", "processor")),
        ("written by", f"tokenmill {facts['tokenmill']}, torch {facts['torch']}, {facts['compiler']}"),
        ("on disk", size(facts["num_bytes"])),
    )
    print_table(str(folder), lines)


def _show_adapter(path: Path, json: bool) -> None:
    """Show an adapter: its base, its rank, what it changes."""
    from tokenmill.weights.adapters.outline import read_adapter_facts

    facts = read_adapter_facts(path)
    if json:
        print_json(facts)
        return
    kinds = [name for name in ("rslora", "dora") if facts[name]]
    lines = (
        (
            "adapter",
            f"{facts['format']}, rank {facts['rank']}, alpha {facts['alpha']:g}"
            + "".join(f", {kind}" for kind in kinds),
        ),
        ("of", brief(facts["base"])[1:-1] or "a model that it does not name"),
        ("changes", ", ".join(f"{count} {brief(name)[1:-1]}" for name, count in facts["modules"].items())),
        *([("replaces", ", ".join(brief(name)[1:-1] for name in facts["replaced"]))] if facts["replaced"] else []),
        ("parameters", f"{facts['num_parameters'] / 1e6:,.2f} million"),
        ("on disk", size(facts["num_bytes"])),
        ("sha256", facts["digest"]),
    )
    print_table(str(path), lines)
