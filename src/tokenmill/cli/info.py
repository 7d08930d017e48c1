"""`tokenmill info`: what is in a model."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenmill.cli.info_beside import show_beside, show_file
from tokenmill.cli.models import find_path
from tokenmill.cli.parser.options import JSON, MODEL_NAME, OUTPUT, QUIET, option
from tokenmill.cli.process.display import echo, print_json, print_table, progress_on_stderr, write_text
from tokenmill.errors import CheckpointError, PackedModelError
from tokenmill.memory.interrupts import held_interrupts
from tokenmill.settings.recommended import say
from tokenmill.units import size

if TYPE_CHECKING:
    from tokenmill.model.description import DecoderDescription
    from tokenmill.text.tokenizer import Tokenizer
    from tokenmill.weights.checkpoint import Checkpoint
    from tokenmill.weights.outline import Outline, StoredTensor

EXAMPLES = (
    "tokenmill info",
    "tokenmill info model.gguf --tensors",
    "tokenmill info owner/name --json",
    "tokenmill info adapters/french",
    "tokenmill info tale.kv",
    "tokenmill info smollm2.aot",
)


def command(
    model: str = MODEL_NAME,
    tensors: bool = option(False, "List every tensor of the files.", OUTPUT),
    template: bool = option(False, "Print the chat template alone.", OUTPUT),
    check: bool = option(False, "Verify every checksum of a packed model or copy.", OUTPUT),
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Show what is in a model: its shape, parameters by part, tokenizer, tensors by type. Or of adapters and sessions.

    Only headers are read; a model that is not on this machine is fetched first. Of a model that no program can run
    this shows what its files say, and why.
    """
    with held_interrupts():
        from tokenmill.weights.checkpoint import open_checkpoint
        from tokenmill.weights.outline import read_outline

    if show_beside(Path(model), json):
        return
    with progress_on_stderr(quiet) as progress:
        path = find_path(model, progress)
    try:
        checkpoint = open_checkpoint(path)
    except CheckpointError as error:
        if show_file(path, json):
            return
        outline = None if check else read_outline(path)
        if outline is None:
            raise
        tokenizer, stored = outline.tokenizer, list(outline.tensors)
        facts, lines = _facts_of_outline(path, outline, str(error)), _lines_of_outline
    else:
        if check:
            _verify(path, json)
            return
        tokenizer, stored = checkpoint.tokenizer(), list(_stored_tensors(checkpoint))
        facts, lines = _describe(checkpoint, tokenizer, stored), _lines
    if template:
        if tokenizer is None or tokenizer.chat_template is None:
            raise CheckpointError(f"{path} has no chat template")
        write_text(f"{tokenizer.chat_template}\n")
        return
    if tensors:
        facts["tensors"] = [asdict(tensor) for tensor in stored]
    if json:
        print_json(facts)
        return
    print_table(model, lines(facts))
    if tensors:
        rows = ((t.name, " x ".join(map(str, t.shape)), t.type, size(t.num_bytes)) for t in stored)
        print_table("", rows, ("tensor", "shape", "type", "size"), expendable=("size",))


def _verify(path: Path, json: bool) -> None:
    """Read all of a packed model, or of each packed copy of a model; a damaged copy is deleted."""
    from tokenmill.loader.copies import copies, delete_copy, without_remedy
    from tokenmill.weights.packed.reader import PackedReader, is_packed_model

    found = [copy.path for copy in copies() if copy.source == str(path.resolve())]
    files = [path] if is_packed_model(path) else found
    rows = []
    for file in files:
        try:
            reader = PackedReader(file, again=True)
            reader.wait()
        except PackedModelError as error:
            if file not in found:
                raise
            delete_copy(file)
            raise PackedModelError(
                f"{without_remedy(error)}; it was deleted, and the next load makes another"
            ) from None
        rows.append({"path": str(file), "num_bytes": reader.facts["payload_bytes"], "is_sound": True})
    if json:
        print_json(rows)
    else:
        lines = [f"{row['path']}: all checksums match, {size(row['num_bytes'])} of weights" for row in rows]
        echo("\n".join(lines) or f"{path} has no packed copy: nothing to verify")


def _stored_tensors(checkpoint: "Checkpoint") -> Iterator["StoredTensor"]:
    """List the tensors under the file's own names: a GGUF's are not Hugging Face's."""
    from tokenmill.weights.outline import StoredTensor
    from tokenmill.weights.packed.reader import is_packed_model, read_header

    if is_packed_model(checkpoint.path):
        facts, _ = read_header(checkpoint.path)
        kind = f"{facts['dtype']} {facts['scheme']}, packed for {facts['program']}"
        yield StoredTensor("weights", (facts["payload_bytes"],), kind, facts["payload_bytes"])
        return
    if checkpoint.path.is_file():
        from tokenmill.weights.gguf.header import read_parts

        header, _ = read_parts(checkpoint.path)
        for info in header.tensors.values():
            yield StoredTensor(info.name, tuple(info.shape), info.type.name, info.num_bytes)
        return
    from tokenmill.weights.codes.checkpoint import QuantizedCheckpoint
    from tokenmill.weights.tensor_file import dtype_bytes

    in_files = checkpoint.plain if isinstance(checkpoint, QuantizedCheckpoint) else checkpoint  # codes, not matrices
    for name, shape in in_files.shapes.items():
        dtype = in_files.dtype_of(name)
        yield StoredTensor(name, shape, dtype, prod(shape) * dtype_bytes(dtype))


def _describe(
    checkpoint: "Checkpoint", tokenizer: "Tokenizer | None", stored: Iterable["StoredTensor"]
) -> dict[str, Any]:
    from tokenmill.loader.at_hand.kept import KeptFiles, all_kept
    from tokenmill.loader.runs_here import runs_here
    from tokenmill.measure.cost import kv_bytes
    from tokenmill.model.counts import count_parameters
    from tokenmill.model.description import describe
    from tokenmill.model.families import read_config
    from tokenmill.model.features import features_of, states_of
    from tokenmill.model.per_layer import bytes_in_file
    from tokenmill.weights.generation import usable
    from tokenmill.weights.packed.reader import is_packed_model, read_header

    config = read_config(checkpoint.config)
    parts, recommended, decoder = count_parameters(config), usable(checkpoint), describe(config)
    return {
        "path": str(checkpoint.path),
        "packed_from": read_header(checkpoint.path)[0]["source"] if is_packed_model(checkpoint.path) else None,
        "family": config.family,
        "part_of": None if (kind := checkpoint.config["model_type"]) == config.family else kind,
        "num_parameters": sum(parts.values()),
        "parameters": {part: count for part, count in parts.items() if count},
        "num_layers": config.num_layers,
        "mixers": dict(Counter(mixer.name for layer in decoder.layers for mixer in layer.mixers)),
        "hidden_size": config.hidden_size,
        "num_heads": config.num_heads,
        "num_kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "heads": _count_heads(decoder),
        "intermediate_size": config.intermediate_size,
        "num_experts": config.num_experts,
        "num_experts_per_token": config.num_experts_per_token,
        "windows": sorted({window for window in config.windows if window is not None}),
        "context": config.context,
        "positions": config.positions,
        "rope": None if config.rope is None else {**asdict(config.rope), "scaling": dict(config.rope.scaling)},
        "vocab_size": config.vocab_size,
        "tied_head": config.tie_embeddings,
        "features": sorted(features_of(decoder)),
        "dtype": config.dtype,
        "tokenizer": None if tokenizer is None else {"num_tokens": tokenizer.num_tokens},
        "chat_template": tokenizer is not None and tokenizer.chat_template is not None,
        "writes_text": config.has_head,
        "sampling": {"settings": recommended, "origin": recommended.origin},
        "types": _count_types(stored),
        "dequantized": checkpoint.dequantized or None,
        "num_bytes": checkpoint.num_bytes,
        "kept_bytes": all_kept().get(str(checkpoint.path.resolve()), KeptFiles()).num_bytes,
        "kv_bytes_per_token": kv_bytes(config, config.dtype),
        "state_bytes": sum(state.num_bytes for state in states_of(decoder)),
        "in_file": dict(zip(("bytes", "bytes_per_token"), bytes_in_file(config, config.dtype), strict=True)),
        **runs_here(checkpoint),
    }


def _count_heads(decoder: "DecoderDescription") -> list[dict[str, Any]]:
    """Count the layers with attention of each shape, in the order of their first layers."""
    from tokenmill.model.mixers.attention import AttentionBlock
    from tokenmill.model.mixers.latent import LatentBlock

    shapes: Counter[tuple[int, int, int, int | None]] = Counter()
    for mixer in (mixer for layer in decoder.layers for mixer in layer.mixers):
        if isinstance(mixer, AttentionBlock):
            shapes[mixer.num_heads, mixer.head_dim, mixer.num_kv_heads, None] += 1
        elif isinstance(mixer, LatentBlock):
            shapes[mixer.num_heads, mixer.query_dim, 1, mixer.row_dim] += 1
    names = ("num_heads", "head_dim", "num_kv_heads", "latent_row", "num_layers")
    return [dict(zip(names, (*shape, count), strict=True)) for shape, count in shapes.items()]


def _count_types(stored: Iterable["StoredTensor"]) -> dict[str, dict[str, int]]:
    types: dict[str, dict[str, int]] = {}
    for tensor in stored:
        entry = types.setdefault(tensor.type, {"count": 0, "num_bytes": 0})
        entry["count"] += 1
        entry["num_bytes"] += tensor.num_bytes
    return types


def _facts_of_outline(path: Path, outline: "Outline", why_not: str) -> dict[str, Any]:
    """Gather the facts of a model that cannot be opened, under the same names as the facts of other models."""
    return {
        "path": str(path),
        "family": outline.family,
        "architectures": list(outline.architectures),
        "num_stored": sum(prod(tensor.shape) for tensor in outline.tensors),
        **outline.sizes,
        "features": list(outline.features),
        "tokenizer": None if outline.tokenizer is None else {"num_tokens": outline.tokenizer.num_tokens},
        "chat_template": outline.tokenizer is not None and outline.tokenizer.chat_template is not None,
        "types": _count_types(outline.tensors),
        "num_bytes": sum(tensor.num_bytes for tensor in outline.tensors),
        "runs": None,
        "why_not": why_not,
    }


def _lines(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    total, rope = facts["num_parameters"], facts["rope"]
    yield "path", facts["path"]
    if facts["packed_from"] is not None:
        yield "packed from", facts["packed_from"]
    whole = "" if facts["part_of"] is None else f", the text part of a {facts['part_of']} model"
    yield "family", facts["family"] + whole
    yield "parameters", f"{total / 1e6:,.1f} million"
    for part, count in facts["parameters"].items():
        yield f"  {part}", f"{count / 1e6:,.1f} million, {count / total:.0%}"
    yield "layers", f"{facts['num_layers']} of width {facts['hidden_size']}, MLP {facts['intermediate_size']}"
    if set(facts["mixers"]) != {"attention"}:
        yield "mixers", ", ".join(f"{count} {name}" for name, count in facts["mixers"].items())
    for heads in facts["heads"]:
        keys = f"{heads['num_kv_heads']} for keys and values"
        if heads["latent_row"]:
            keys = f"one row of {heads['latent_row']} for all of them"
        where = f", in {heads['num_layers']} layers" if heads["num_layers"] < facts["num_layers"] else ""
        yield "heads", f"{heads['num_heads']} of {heads['head_dim']}, {keys}{where}"
    if facts["features"]:
        yield "features", ", ".join(facts["features"])
    if facts["num_experts"]:
        yield "experts", f"{facts['num_experts']}, {facts['num_experts_per_token']} for each token"
    windows = f", window {', '.join(map(str, facts['windows']))}" if facts["windows"] else ""
    yield "context", f"{facts['context']} tokens{windows}"
    if rope is None:
        yield "positions", "none" if facts["positions"] == "rope" else facts["positions"]
    else:
        scaling = "".join(f", {key} {value}" for key, value in rope["scaling"].items() if not isinstance(value, tuple))
        yield "rope", f"{rope['kind']}, theta {rope['theta']:g}, {rope['dim']} of {facts['head_dim']}{scaling}"
    yield "vocabulary", f"{facts['vocab_size']} tokens" + (", head tied to the embedding" if facts["tied_head"] else "")
    yield "tokenizer", "none: prompts are token ids" if facts["tokenizer"] is None else "yes"
    yield from _ends(facts)
    states = f", {size(facts['state_bytes'])} of states per text" if facts["state_bytes"] else ""
    yield "cache", f"{size(facts['kv_bytes_per_token'])} per token in {facts['dtype']}{states}"
    if num_bytes := (in_file := facts["in_file"])["bytes"]:
        row = size(in_file["bytes_per_token"])
        yield (
            "not in memory",
            f"{size(num_bytes)} of inputs of layers, of which a token reads a row of {row} in the file",
        )


def _ends(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the last lines, which every model has, whether it can be run or not."""
    without = "no: a base model" if facts.get("writes_text", True) else "no: it gives vectors of texts"
    yield "chat template", "yes, shown with --template" if facts["chat_template"] else without
    if "sampling" in facts:
        settings, origin = facts["sampling"]["settings"], facts["sampling"]["origin"]
        yield "sampling", f"{say(settings)} ({origin})" if settings else "nothing is recommended"
    types = (f"{entry['count']} {kind} ({size(entry['num_bytes'])})" for kind, entry in facts["types"].items())
    yield "tensors", ", ".join(types) or "no type can be read"
    if facts.get("dequantized") is not None:
        yield "codes", facts["dequantized"]
    kept = f", and {size(facts['kept_bytes'])} kept for quicker starts" if facts.get("kept_bytes") else ""
    yield "on disk", size(facts["num_bytes"]) + kept
    runs = facts["runs"]
    if runs is None:
        yield "runs here", f"in no program: {facts['why_not']}"
        return
    build = "" if runs["build"] is None else f", build {runs['build']},"
    yield "runs here", f"program {runs['program']}{build} in {runs['dtype']}, scheme {runs['scheme']}"
    for name, reason in runs["refusals"].items():
        yield f"  not {name}", reason


def _lines_of_outline(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the facts of a model that cannot be opened, as a person reads them."""
    yield "path", facts["path"]
    yield "family", ", ".join([facts["family"], *facts["architectures"]])
    if facts["num_stored"]:
        yield "numbers", f"{facts['num_stored'] / 1e6:,.1f} million, as they are stored"
    for name in ("num_layers", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim"):
        if name in facts:
            yield name.removeprefix("num_").replace("_", " "), str(facts[name])
    if facts["features"]:
        yield "features", ", ".join(facts["features"])
    if facts.get("num_experts"):
        yield "experts", f"{facts['num_experts']}, {facts.get('num_experts_per_token', 'some')} for each token"
    if "context" in facts:
        yield "context", f"{facts['context']} tokens"
    if "vocab_size" in facts:
        yield "vocabulary", f"{facts['vocab_size']} tokens"
    yield "tokenizer", "cannot be read" if facts["tokenizer"] is None else "yes"
    yield from _ends(facts)
