"""`tokenmill embed`: a vector for each text, as lines of JSON or a table of numpy."""

import time
from dataclasses import replace
from io import BytesIO
from json import dumps
from pathlib import Path
from typing import Any

from tokenmill.cli.batch import load_for_many
from tokenmill.cli.parser.options import MODEL_NAME, OUTPUT, PROMPT, QUIET, option
from tokenmill.cli.prefill import FORCE, check_target
from tokenmill.cli.process.display import echo, progress_on_stderr, remark
from tokenmill.cli.prompts import FILES, IDS, TEXTS, gather, split
from tokenmill.cli.watch import prompt_progress
from tokenmill.memory.atomic_file import writing
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.units import counted, size

EXAMPLES = (
    'tokenmill embed Qwen/Qwen3-Embedding-0.6B-GGUF -p "A cat on a mat." -p "Stock prices fell."',
    "tokenmill embed model.gguf --each-line --prompt-file texts.txt -o vectors.npy",
    'tokenmill embed model.gguf -p "Where is it?" --prompt-name query --dimensions 256',
)
NPY = b"\x93NUMPY"


def command(
    engine: EngineConfig,
    model: str = MODEL_NAME,
    prompt: list[str] | None = TEXTS,
    prompt_file: list[Path] | None = FILES,
    tokens: list[str] | None = IDS,
    each_line: bool = option(False, "Each line that is not empty is a text.", PROMPT),
    prompt_name: str | None = option(None, "A prompt of the model's files that stands before each text.", PROMPT),
    truncate: bool = option(False, "Cut a text that is too long at its end; otherwise it is refused.", PROMPT),
    pooling: str | None = option(None, "Last, mean, cls or weighted; by default as the model's files say.", OUTPUT),
    dimensions: int | None = option(None, "The first so many numbers of each vector.", OUTPUT),
    normalize: bool | None = option(None, "Make the length of each vector 1, or not.", OUTPUT),
    output: Path | None = option(None, "Write all vectors to a table of numpy (.npy).", OUTPUT, "-o", metavar="FILE"),
    force: bool = FORCE,
    quiet: bool = QUIET,
) -> None:
    """Compute the vector of each text (embedding).

    A line of JSON for each text goes to stdout, in their order: index, num_tokens, embedding. How rows are pooled is
    told by the model's own files: of sentence-transformers, or in the header of a GGUF file.
    """
    if output is not None:
        check_target(output, "--output", force, _is_table, "table of numpy")
    texts = split(gather(prompt, prompt_file, tokens, model=model), each_line)
    how = {"pooling": pooling, "dimensions": dimensions, "normalize": normalize, "prompt_name": prompt_name}
    with progress_on_stderr(quiet) as progress:
        many = engine.max_sequences if engine.max_sequences > 1 else None
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


def _is_table(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(NPY)) == NPY


def _write(path: Path, vectors: Any) -> None:
    import numpy as np

    table = BytesIO()
    np.save(table, vectors)
    with writing(path) as out:
        out.write(table.getvalue())
