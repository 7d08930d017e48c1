"""`tokenmill eval perplexity`: how well a model predicts a text."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenmill.cli.models import find_checkpoint
from tokenmill.cli.parser.options import JSON, MODEL, QUIET, argument, option
from tokenmill.cli.process.display import print_json, print_table, progress_on_stderr
from tokenmill.cli.prompts import read_stdin, read_text
from tokenmill.cli.report import program_facts, versions
from tokenmill.errors import RequestError
from tokenmill.hub.progress import Progress
from tokenmill.memory.interrupts import held_interrupts
from tokenmill.settings.engine_config import EngineConfig

if TYPE_CHECKING:  # these import torch
    from tokenmill.engine.engine import Engine
    from tokenmill.measure.perplexity import Comparison, Perplexity, ScoredText
    from tokenmill.weights.checkpoint import Checkpoint

EXAMPLES = (
    "tokenmill eval perplexity smollm2-135m book.txt",
    "tokenmill eval perplexity smollm2-135m book.txt --scheme q4 --compare-dense --max-tokens 4096",
    "cat book.txt | tokenmill eval perplexity smollm2-135m - --window 512 --stride 512 --json",
)
EVALUATED = "What is evaluated"
MAX_BYTES = 1_000_000_000

# These follow from the windows, or change nothing there.
PREFIX = ("prefix_cache", "prefix_dir", "prefix_limit", "fingerprint", "packed_cache", "packed_limit")
COMPILE = ("compile", "compile_phases", "compile_backend", "compile_in_background", "aot_package", "aot_fallback")
OWN = (
    "fuse",
    "max_length",
    "max_sequences",
    "max_waiting",
    "cache_tokens",
    *PREFIX,
    *COMPILE,
    "cache",
    "async_scheduling",
    "speculate",
    "num_draft_tokens",
    "draft_model",
    "suffix_dir",
    "suffix_limit",
    "lora_modules",
    "max_loras",
)

NEEDED = argument(
    ..., "MODEL", "Directory in Hugging Face layout, .gguf file, hub name, or short name such as smollm2-135m.", MODEL
)
WINDOW_SIZE = option(None, "Tokens fed at a time. Default: the context, at most 1024.", EVALUATED)
STRIDE = option(None, "Tokens from a window to the next. Default: half of it.", EVALUATED)
MAX_TOKENS = option(None, "Evaluate only this many tokens from the start.", EVALUATED, minimum=2)
WITHOUT = OWN


def command(
    engine: EngineConfig,
    model: str = NEEDED,
    file: str = argument(..., "FILE", "Text in UTF-8; - reads stdin.", EVALUATED),
    window: int | None = WINDOW_SIZE,
    stride: int | None = STRIDE,
    max_tokens: int | None = MAX_TOKENS,
    compare_dense: bool = option(
        False, "Compare with the same model with dense weights in float32; both are in memory at once.", EVALUATED
    ),
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Compute the perplexity of a model on a text, as transformers does over sliding windows.

    Each window scores the tokens that no window before it has scored, with at least window minus stride tokens before
    them. The smaller the stride, the lower and truer the figure, and the longer it takes.
    """
    written = read_written(file)
    with held_interrupts():
        from tokenmill.measure.perplexity import choose_window, compare, perplexity
        from tokenmill.model.families import read_config
        from tokenmill.quant.schemes import REFERENCE

    with progress_on_stderr(quiet) as progress:
        checkpoint = find_checkpoint(model, progress)
        context = read_config(checkpoint.config).context
        window, stride = choose_window(window, stride, context)
        text = read_tokens(written, file, checkpoint, model, max_tokens, engine.tokenizer)
        engine = replace(engine, model=model, max_length=window, prefix_cache=False)
        loaded = load_to_read(checkpoint, engine, progress)
        arguments = (text.tokens, window, stride, progress)
        compared: Comparison | None = None
        if compare_dense:
            dense = load_to_read(checkpoint, replace(engine, dtype="float32", scheme=REFERENCE), progress)
            progress.stage(f"reading {len(text.tokens):,} tokens twice")
            compared = compare(loaded, dense, *arguments)
            found = compared.ours
        else:
            progress.stage(f"reading {len(text.tokens):,} tokens")
            found = perplexity(loaded, *arguments)
    if json:
        print_json(_document(loaded, file, text, (window, stride), found, compared))
    else:
        rows = _rows(loaded, text, (window, stride), found, compared)
        print_table("perplexity", [("model", model), ("text", file), *rows])


def read_written(file: str) -> str:
    """Read the text as it stands, its last line break too."""
    text = read_stdin(MAX_BYTES) if file == "-" else read_text(Path(file), MAX_BYTES)
    if not text:
        raise RequestError(f"{_called(file)} is empty: perplexity needs a text of at least 2 tokens")
    return text


def _called(file: str) -> str:
    return "the input" if file == "-" else file


def read_tokens(
    written: str, file: str, checkpoint: "Checkpoint", model: str, max_tokens: int | None, other: str | None
) -> "ScoredText":
    """Encode the text with the model's tokenizer, or with the tokenizer of another model."""
    from tokenmill.loader.model_facts import find_tokenizer
    from tokenmill.measure.perplexity import read_text
    from tokenmill.model.families import read_config

    tokenizer = find_tokenizer(checkpoint, other, read_config(checkpoint.config).vocab_size)
    if tokenizer is None:
        raise RequestError(f"{model} has no tokenizer, which perplexity needs to read a text")
    text = read_text(written, tokenizer, max_tokens)
    if len(text.tokens) < 2:
        raise RequestError(f"{_called(file)}: perplexity needs at least 2 tokens, and this text has {len(text.tokens)}")
    return text


def load_to_read(checkpoint: "Checkpoint", config: EngineConfig, progress: Progress) -> "Engine":
    from tokenmill.engine.load import load_checkpoint

    progress.stage(f"loading {checkpoint.path.name}")
    return load_checkpoint(checkpoint, config, progress.advance)


def _rows(
    engine: "Engine", text: "ScoredText", step: tuple[int, int], found: "Perplexity", compared: "Comparison | None"
) -> list[tuple[str, ...]]:
    config = engine.config
    rows: list[tuple[str, ...]] = [
        ("tokens", f"{found.num_tokens:,}"),
        ("scored tokens", f"{found.num_scored:,}"),
        ("windows", f"{found.num_windows:,} of {step[0]:,} tokens, stride {step[1]:,}"),
        ("nll per token", f"{found.nll_per_token:.5f}"),
        ("perplexity", f"{found.perplexity:.4f}"),
        ("bits per byte", f"{found.bits_per_byte(text):.4f}"),
        ("seconds", f"{found.elapsed_s:.2f}"),
        ("scored tokens/s", f"{found.tokens_per_s:,.1f}"),
        ("program", f"{engine.program_name}, scheme {config.scheme}, {config.dtype}, {config.device}"),
    ]
    if compared is not None:
        rows += [
            ("perplexity, dense float32", f"{compared.reference.perplexity:.4f}"),
            ("perplexity ratio", f"{compared.ratio:.5f}"),
            ("mean KL divergence", f"{compared.kl_divergence:.3g} nats per token"),
            ("same likeliest token", f"{compared.agreement:.2%}"),
        ]
    return rows


def _document(
    engine: "Engine",
    file: str,
    text: "ScoredText",
    step: tuple[int, int],
    found: "Perplexity",
    compared: "Comparison | None",
) -> dict[str, Any]:
    dense = compared and {
        "perplexity": compared.reference.perplexity,
        "nll_per_token": compared.reference.nll_per_token,
        "perplexity_ratio": compared.ratio,
        "kl_divergence": compared.kl_divergence,
        "agreement": compared.agreement,
    }
    return {
        "file": file,
        "num_bytes": text.num_bytes,
        "num_tokens": found.num_tokens,
        "num_scored_tokens": found.num_scored,
        "num_windows": found.num_windows,
        "window": step[0],
        "stride": step[1],
        "nll_per_token": found.nll_per_token,
        "perplexity": found.perplexity,
        "bits_per_byte": found.bits_per_byte(text),
        "elapsed_s": found.elapsed_s,
        "tokens_per_s": found.tokens_per_s,
        "dense": dense,
        "program": program_facts(engine),
        "settings": asdict(engine.config),
        "versions": versions(),
    }
