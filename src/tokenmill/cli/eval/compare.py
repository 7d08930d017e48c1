"""`tokenmill eval compare`: how far two models are apart on a text."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenmill.cli.eval.perplexity import (
    EVALUATED,
    MAX_TOKENS,
    OWN,
    STRIDE,
    WINDOW_SIZE,
    load_to_read,
    read_tokens,
    read_written,
)
from tokenmill.cli.models import find_checkpoint
from tokenmill.cli.parser.options import JSON, MODEL, QUIET, argument, option
from tokenmill.cli.process.display import print_json, print_table, progress_on_stderr
from tokenmill.cli.report import versions
from tokenmill.memory.interrupts import held_interrupts
from tokenmill.settings.engine_config import EngineConfig

if TYPE_CHECKING:  # these import torch
    from tokenmill.measure.perplexity import Comparison, ScoredText
    from tokenmill.text.tokenizer import Tokenizer

EXAMPLES = (
    "tokenmill eval compare model-q4 model --text book.txt",
    "tokenmill eval compare model-q4.gguf model --text book.txt --max-tokens 4096 --json",
)
BEFORE = 8  # tokens shown before the token of a place
WITHOUT = OWN


def command(
    engine: EngineConfig,
    model: str = argument(..., "MODEL", "The model that is judged.", MODEL),
    reference: str = argument(
        ..., "REFERENCE", "What it is compared with, as the unrounded model. Both must have the same vocabulary.", MODEL
    ),
    text: str = option(..., "Text in UTF-8; - reads stdin.", EVALUATED, metavar="FILE"),
    window: int | None = WINDOW_SIZE,
    stride: int | None = STRIDE,
    max_tokens: int | None = MAX_TOKENS,
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Measure how far a model's probabilities are from another's on a text, and where they are farthest.

    Both models are in memory at once, and read the text in the windows of `eval perplexity`.
    """
    written = read_written(text)
    with held_interrupts():
        from tokenmill.measure.perplexity import choose_window, compare
        from tokenmill.model.families import read_config

    with progress_on_stderr(quiet) as progress:
        checkpoints = [find_checkpoint(name, progress) for name in (model, reference)]
        context = min(read_config(checkpoint.config).context for checkpoint in checkpoints)
        sizes = choose_window(window, stride, context)
        read, same = (
            read_tokens(written, text, checkpoint, name, max_tokens, engine.tokenizer)
            for checkpoint, name in zip(checkpoints, (model, reference), strict=True)
        )
        _check_vocabulary(read, same, model, reference)
        settings = replace(engine, max_length=sizes[0], prefix_cache=False)
        ours, theirs = (
            load_to_read(checkpoint, replace(settings, model=name), progress)
            for checkpoint, name in zip(checkpoints, (model, reference), strict=True)
        )
        progress.stage(f"reading {len(read.tokens):,} tokens twice")
        found = compare(ours, theirs, read.tokens, *sizes, progress)
    tokenizer = ours.tokenizer
    assert tokenizer is not None, "it has read the text"
    if json:
        print_json({**_document(model, reference, text, found), "window": sizes[0], "stride": sizes[1]})
        return
    print_table(f"{model} beside {reference}", _rows(found))
    worst = [_place(place.position, place.kl_divergence, read, tokenizer) for place in found.worst]
    print_table("where they are farthest apart", worst, ("KL", "position", "after", "token"))


def _check_vocabulary(ours: "ScoredText", theirs: "ScoredText", model: str, reference: str) -> None:
    from tokenmill.errors import ConfigError

    if ours.tokens != theirs.tokens:
        allowed = f"a model whose tokenizer reads the text as the tokenizer of {model} does"
        raise ConfigError("reference", reference, allowed)


def _rows(found: "Comparison") -> list[tuple[str, ...]]:
    return [
        ("scored tokens", f"{found.ours.num_scored:,}"),
        ("perplexity", f"{found.ours.perplexity:.4f}"),
        ("perplexity of the reference", f"{found.reference.perplexity:.4f}"),
        ("perplexity ratio", f"{found.ratio:.5f}"),
        ("mean KL divergence", f"{found.kl_divergence:.3g} nats per token"),
        ("same likeliest token", f"{found.agreement:.2%}"),
    ]


def _place(position: int, kl_divergence: float, text: "ScoredText", tokenizer: "Tokenizer") -> tuple[str, ...]:
    before = text.tokens[max(position - BEFORE, 0) : position]
    shown = (repr(tokenizer.decode(tokens, skip_special=False)) for tokens in (before, [text.tokens[position]]))
    return f"{kl_divergence:.3f}", str(position), *shown


def _document(model: str, reference: str, file: str, found: "Comparison") -> dict[str, Any]:
    return {
        "model": model,
        "reference": reference,
        "file": file if file == "-" else str(Path(file)),
        "num_tokens": found.ours.num_tokens,
        "num_scored_tokens": found.ours.num_scored,
        "perplexity": found.ours.perplexity,
        "reference_perplexity": found.reference.perplexity,
        "perplexity_ratio": found.ratio,
        "kl_divergence": found.kl_divergence,
        "agreement": found.agreement,
        "worst": [place._asdict() for place in found.worst],
        "versions": versions(),
    }
