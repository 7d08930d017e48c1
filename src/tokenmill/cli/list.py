"""`tokenmill list`: every model and adapter that this machine has, wherever it lies, and what is kept for it."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from tokenmill.cli.cache.list import cache_rows, show_cache
from tokenmill.cli.parser.options import JSON, MODEL, OUTPUT, option
from tokenmill.cli.process.display import echo, for_stdout, print_json, print_table
from tokenmill.hub.places.entry import FoundModel, shown
from tokenmill.loader.at_hand import BASE, INSTRUCT
from tokenmill.memory.interrupts import held_interrupts
from tokenmill.units import counted, size
from tokenmill.value_reader import brief

if TYPE_CHECKING:  # this imports gguf and numpy, which --help does not wait for
    from tokenmill.loader.at_hand.adapters import FoundAdapter
    from tokenmill.loader.at_hand.models import Model, Pair

EXAMPLES = ("tokenmill list", "tokenmill list --dir ~/models --json", "tokenmill list --cache")
HEADER = ("name", "size", "family", "kind", "form", "runs", "kept", "of")
EXPENDABLE = ("of", "kept", "family", "runs", "kind")
OF_NAMES = ("short name", "model", "size", "context", "kind", "stands for", "sha256")
HEADER_OF_ADAPTERS = ("path", "size", "kind", "rank", "base", "of")
EXPENDABLE_OF_ADAPTERS = ("of", "kind", "size")
EXPENDABLE_OF_NAMES = ("sha256", "stands for", "model")

FOLDERS = option(
    None,
    "Look into this folder too, as into the folders of TOKENMILL_MODELS. May be repeated.",
    MODEL,
    "--dir",
    metavar="DIR",
)


def command(
    dirs: list[Path] | None = FOLDERS,
    cache: bool = option(False, "Show what lies in the cache folder, too.", OUTPUT),
    names: bool = option(False, "Show the short names, and what each stands for.", MODEL),
    json: bool = JSON,
) -> None:
    """Show every model on this machine: its name for --model, size, family, form, whether it is a base model, answers
    (instruct) or gives vectors of texts (embedding), and whether it runs here. And every adapter (LoRA): its kind, rank
    and base.

    It looks into the cache folder of tokenmill, the hub's cache (HF_HOME), Ollama's stores (OLLAMA_MODELS), the folders
    of llama.cpp and LM Studio, and the folders of TOKENMILL_MODELS and --dir. Only headers are read, and what they
    tell is kept in the cache folder. Files that are neither are told after the tables, with the reason.
    """
    with held_interrupts():
        from tokenmill.loader.at_hand.models import models_here, pairs_of

    if names:
        _show_names(json)
        return
    models, adapters, others = models_here(dirs or ())
    pairs = pairs_of(models)
    if json:
        document = {
            "models": [_document(model) for model in models],
            "adapters": [_document_of_adapter(adapter) for adapter in adapters],
            "others": [_without_model(entry) for entry in others],
            "same": [asdict(pair) for pair in pairs],
        }
        print_json(document | ({"cache": cache_rows()} if cache else {}))
        return
    if models:
        rows = [_row(model) for model in models]
        print_table(_title(models), rows, HEADER, EXPENDABLE)
    else:
        echo("no model is on this machine; `tokenmill pull` fetches one of 98 MB")
    if adapters:
        total = size(sum(adapter.entry.num_bytes for adapter in adapters))
        title = f"{counted(len(adapters), 'adapter')}, {total}: --adapter takes the path"
        print_table(title, map(_row_of_adapter, adapters), HEADER_OF_ADAPTERS, EXPENDABLE_OF_ADAPTERS)
    for line in _remarks(models, adapters, others, pairs):
        echo(for_stdout(line))
    if cache:
        show_cache()
    elif kept := cache_rows():
        total = size(sum(row["num_bytes"] for row in kept))
        echo(f"the cache folder takes {total} in all: `tokenmill cache list`, or --cache here")


def _show_names(json: bool) -> None:
    """Show the short names: what each stands for, and how it is known to be that."""
    from tokenmill.hub.download import Packaged
    from tokenmill.hub.short_names import HUB_NAMES, SHORT_NAMES, HubFile

    models: dict[str, Packaged | HubFile] = {**SHORT_NAMES, **HUB_NAMES}
    facts: list[dict[str, Any]] = [
        {
            "name": name,
            "title": model.title,
            "num_bytes": model.num_bytes,
            "context": model.context,
            "kind": BASE if model.is_base else INSTRUCT,
            "stands_for": "package" if name in SHORT_NAMES else HUB_NAMES[name].hub_name,
            "sha256": model.sha256 or None,
        }
        for name, model in models.items()
    ]
    if json:
        print_json(facts)
        return
    shown = [
        (
            *(each["name"], each["title"], size(each["num_bytes"]) if each["num_bytes"] else "not known"),
            *(f"{each['context']:,}", each["kind"], each["stands_for"]),
            "pinned" if each["sha256"] else "by its first fetch",
        )
        for each in facts
    ]
    print_table("", shown, OF_NAMES, EXPENDABLE_OF_NAMES)


def _title(models: Sequence["Model"]) -> str:
    total = sum(num_bytes for _, num_bytes in set().union(*(model.entry.inodes() for model in models)))
    kept = sum(model.kept.num_bytes for model in models)
    more = f", and {size(kept)} kept for them (--cache)" if kept else ""
    return f"{counted(len(models), 'model')}, {size(total)}{more}"


def _row(model: "Model") -> tuple[str, ...]:
    entry, facts = model.entry, model.facts
    kept = size(model.kept.num_bytes) if model.kept.num_bytes else ""
    return (
        quote(entry.name) if " " in entry.name else entry.name,
        size(entry.num_bytes),
        facts.family or "unknown",
        facts.kind or "",
        facts.quantization,
        facts.runs or "no",
        kept,
        entry.origin,
    )


def _row_of_adapter(adapter: "FoundAdapter") -> tuple[str, ...]:
    entry, facts = adapter.entry, adapter.facts
    assert entry.path is not None, "it has files"
    rank, base = str(facts.get("rank", "")), brief(facts.get("base", ""))[1:-1] or "unknown"
    kinds = [facts.get("format", "unknown"), *(name for name in ("rslora", "dora") if facts.get(name))]
    return shown(entry.path), size(entry.num_bytes), ", ".join(kinds), rank, base, entry.origin


def _remarks(
    models: Sequence["Model"],
    adapters: Sequence["FoundAdapter"],
    others: Sequence[FoundModel],
    pairs: Sequence["Pair"],
) -> Iterator[str]:
    """Yield what the tables do not say, a line each."""
    for model in models:
        if model.facts.runs is None:
            yield f"{model.entry.name} does not run here: {model.facts.why_not}"
        if model.entry.note:
            yield f"{model.entry.name}: {model.entry.note}"
    for adapter in adapters:
        if adapter.problem:
            yield f"adapter {adapter.entry.name} cannot be loaded: {adapter.problem}"
    forms = {model.entry.name: f"{model.facts.quantization}, {size(model.entry.num_bytes)}" for model in models}
    for pair in pairs:
        what = "are the same bytes twice" if pair.is_same else "seem to be one model in two forms"
        yield f"{pair.first} ({forms[pair.first]}) and {pair.second} ({forms[pair.second]}) {what}"
    for entry in others:
        yield f"no model: {entry.name} ({entry.origin}) {entry.problem}"


def _document(model: "Model") -> dict[str, Any]:
    entry, facts, kept = model.entry, model.facts, model.kept
    return {
        "name": entry.name,
        "origin": entry.origin,
        "path": str(entry.path),
        "num_bytes": entry.num_bytes,
        "family": facts.family,
        "kind": facts.kind,
        "form": facts.quantization,
        "num_parameters": facts.num_parameters,
        "context": facts.context,
        "runs": facts.runs,
        "why_not": facts.why_not,
        "note": entry.note or None,
        "packed_copies": [
            {"path": str(copy.path), "kind": copy.kind, "num_bytes": copy.num_bytes} for copy in kept.copies
        ],
        "prefixes": [
            {"path": str(each.path), "num_blocks": each.num_blocks, "num_bytes": each.num_bytes}
            for each in kept.prefixes
        ],
    }


def _document_of_adapter(adapter: "FoundAdapter") -> dict[str, Any]:
    entry = adapter.entry
    place = {"name": entry.name, "origin": entry.origin, "path": str(entry.path), "num_bytes": entry.num_bytes}
    return {**place, **adapter.facts, "problem": adapter.problem or None}


def _without_model(entry: FoundModel) -> dict[str, Any]:
    return {"name": entry.name, "origin": entry.origin, "num_bytes": entry.num_bytes, "problem": entry.problem}
