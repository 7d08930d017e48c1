"""`tokenmill rerank`: documents in the order in which they answer a query, as lines of JSON."""

import time
from dataclasses import replace
from json import dumps
from pathlib import Path

from tokenmill.cli.batch import load_for_many
from tokenmill.cli.parser.options import MODEL_NAME, OUTPUT, PROMPT, QUIET, option
from tokenmill.cli.process.display import echo, progress_on_stderr, remark
from tokenmill.cli.prompts import FILES, TEXTS, gather, split
from tokenmill.cli.watch import prompt_progress
from tokenmill.errors import ConfigError
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.units import counted

EXAMPLES = (
    'tokenmill rerank ./bge-reranker-v2-m3 --query "What is a cat?" -p "An animal." -p "A stock price."',
    'tokenmill rerank ./Qwen3-Reranker-0.6B --query "2 + 2" --each-line --prompt-file documents.txt --top 5',
)


def command(
    engine: EngineConfig,
    model: str = MODEL_NAME,
    query: str = option(..., "What the documents are asked.", PROMPT),
    prompt: list[str] | None = TEXTS,
    prompt_file: list[Path] | None = FILES,
    each_line: bool = option(False, "Each line that is not empty is a document.", PROMPT),
    instruction: str | None = option(None, "What the query asks for, told to a decoder.", PROMPT),
    truncate: bool = option(False, "Cut a document that is too long at its end; otherwise it is refused.", PROMPT),
    top: int | None = option(None, "Print the best so many alone.", OUTPUT, metavar="N"),
    quiet: bool = QUIET,
) -> None:
    """Score how well documents answer a query.

    A line of JSON for each document goes to stdout, the best first: index, score, num_tokens, document. A model with a
    classifier scores pairs; any other is asked whether the document meets the query.
    """
    if top is not None and top < 1:
        raise ConfigError("--top", top, "a whole number from 1")
    documents = split(gather(prompt, prompt_file, None, model=model), each_line)
    with progress_on_stderr(quiet) as progress:
        many = engine.max_sequences if engine.max_sequences > 1 else None
        loaded = load_for_many(replace(engine, model=model), many, None, progress, writes_text=False)
    from tokenmill.engine.reranking import rerank  # it imports torch

    started_s = time.perf_counter()
    with prompt_progress(loaded, quiet):
        found = rerank(loaded.core, query, documents, instruction=instruction, truncate=truncate)
    seconds = time.perf_counter() - started_s
    for place in found.order[:top]:
        score, count = float(found.scores[place]), found.num_tokens[place]
        echo(dumps({"index": place, "score": score, "num_tokens": count, "document": documents[place]}))
    if not quiet:
        total = sum(found.num_tokens)
        remark(f"{counted(len(documents), 'document')}, {counted(total, 'token')} in {seconds:.2f} s")
