"""`tokenmill embed`: a vector for each text, as lines of JSON or a table of numpy, or for each row of a file."""

import time
from dataclasses import replace
from io import BytesIO
from json import dumps
from pathlib import Path
from typing import Any

from tokenmill.cli.batch import compute, load_for_many
from tokenmill.cli.parser.options import MODEL_NAME, OUTPUT, PROMPT, QUIET, option
from tokenmill.cli.prefill import FORCE, check_target
from tokenmill.cli.process.display import echo, progress_on_stderr, remark
from tokenmill.cli.prompts import FILES, IDS, TEXTS, gather, split
from tokenmill.cli.watch import prompt_progress
from tokenmill.errors import ConfigError
from tokenmill.memory.atomic_file import writing
from tokenmill.memory.interrupts import held_interrupts
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.units import counted, size

EXAMPLES = (
    'tokenmill embed Qwen/Qwen3-Embedding-0.6B-GGUF -p "A cat on a mat." -p "Stock prices fell."',
    "tokenmill embed model.gguf --each-line --prompt-file texts.txt -o vectors.npy",
    'tokenmill embed model.gguf -p "Where is it?" --prompt-name query --dimensions 256',
    "tokenmill embed model.gguf --rows texts.parquet --column text -o vectors.parquet",
)
WRITTEN = (
    "Write all vectors to a table of numpy (.npy); with --rows, the rows and their vectors (.jsonl, .csv, .parquet)."
)
NPY = b"\x93NUMPY"


def command(
    engine: EngineConfig,
    model: str = MODEL_NAME,
    prompt: list[str] | None = TEXTS,
    prompt_file: list[Path] | None = FILES,
    tokens: list[str] | None = IDS,
    each_line: bool = option(False, "Each line that is not empty is a text.", PROMPT),
    rows: Path | None = option(None, "A file of rows, .jsonl, .csv or .parquet; --column has the texts.", PROMPT),
    column: str | None = option(None, "The column of --rows that holds the texts, or lists of token ids.", PROMPT),
    prompt_name: str | None = option(None, "A prompt of the model's files that stands before each text.", PROMPT),
    truncate: bool = option(False, "Cut a text that is too long at its end; otherwise it is refused.", PROMPT),
    pooling: str | None = option(None, "Last, mean, cls or weighted; by default as the model's files say.", OUTPUT),
    dimensions: int | None = option(None, "The first so many numbers of each vector.", OUTPUT),
    normalize: bool | None = option(None, "Make the length of each vector 1, or not.", OUTPUT),
    output: Path | None = option(None, WRITTEN, OUTPUT, "-o", metavar="FILE"),
    output_prefix: str = option("", "With --rows: prefix of the names of the new columns.", OUTPUT),
    force: bool = FORCE,
    quiet: bool = QUIET,
) -> None:
    """Compute the vector of each text (embedding).

    A line of JSON for each text goes to stdout, in their order: index, num_tokens, embedding. How rows are pooled is
    told by the model's own files: of sentence-transformers, or in the header of a GGUF file.

    With --rows the vectors stand in a new column of the rows. Broken off at any point, the same command goes on.
    """
    how = {"pooling": pooling, "dimensions": dimensions, "normalize": normalize, "prompt_name": prompt_name}
    many = engine.max_sequences if engine.max_sequences > 1 else None
    if rows is not None or column is not None or output_prefix:
        others = bool(prompt or prompt_file or tokens or each_line)
        source, name, target = _check_rows(rows, column, output, output_prefix, others)
        task = _task(name, how | {"truncate": truncate}, output_prefix)
        compute(task, source, target, replace(engine, model=model), many, quiet, writes_text=False)
        return
    if output is not None:
        check_target(output, "--output", force, _is_table, "table of numpy")
    texts = split(gather(prompt, prompt_file, tokens, model=model), each_line)
    with progress_on_stderr(quiet) as progress:
        loaded = load_for_many(replace(engine, model=model), many, None, progress, writes_text=False)
    from tokenmill.engine.embedding import embed, says_pooling  # they import torch

    started_s = time.perf_counter()
    with prompt_progress(loaded, quiet):
        found = embed(loaded.core, texts, truncate=truncate, **how)  # type: ignore[arg-type]
    seconds = time.perf_counter() - started_s
    if output is None:
        for index, (vector, num_tokens) in enumerate(zip(found.vectors.tolist(), found.num_tokens, strict=True)):
            echo(dumps({"index": index, "num_tokens": num_tokens, "embedding": vector}))
    else:
        _write(output, found.vectors.numpy())
    if quiet:
        return
    if output is not None:
        echo(f"{output}: {' x '.join(map(str, found.vectors.shape))} float32, {size(output.stat().st_size)}")
    if pooling is None and not says_pooling(loaded.core):
        remark("the files of this model say no pooling: each vector is the row of a text's last token")
    total = sum(found.num_tokens)
    remark(
        f"{counted(len(texts), 'text')}, {counted(total, 'token')} in {seconds:.2f} s, {total / seconds:,.0f} tokens/s"
    )


def _check_rows(
    rows: Path | None, column: str | None, output: Path | None, prefix: str, others: bool
) -> tuple[Path, str, Path]:
    """Check the options of a file of rows. others: texts are given beside it."""
    if rows is None:
        name, value = ("--column", column) if column is not None else ("--output-prefix", prefix)
        raise ConfigError(name, value, "only together with --rows")
    if others:
        allowed = "without other texts: --prompt, --prompt-file, --tokens, --each-line"
        raise ConfigError("--rows", str(rows), allowed)
    if column is None or output is None:
        raise ConfigError("--rows", str(rows), "together with --column NAME and --output FILE")
    return rows, column, output


def _task(column: str, asked: dict[str, Any], prefix: str) -> Any:
    with held_interrupts():
        from tokenmill.batches.embeddings import EmbedTask
    return EmbedTask(column, asked, prefix)


def _is_table(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(NPY)) == NPY


def _write(path: Path, vectors: Any) -> None:
    import numpy as np

    table = BytesIO()
    np.save(table, vectors)
    with writing(path) as out:
        out.write(table.getvalue())
