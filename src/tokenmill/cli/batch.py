"""`tokenmill batch`: a file of rows in, a file with their answers out; broken off at any point, it goes on."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenmill.cli.models import load_engine, read_model_config
from tokenmill.cli.parser.command import Context
from tokenmill.cli.parser.options import (
    CHAT_TEMPLATE,
    JSON,
    MODEL,
    OUTPUT,
    PROMPT,
    QUIET,
    argument,
    option,
    option_name,
    with_defaults,
)
from tokenmill.cli.process.display import print_json, progress_on_stderr, remark, shows_bars
from tokenmill.cli.report import program_facts, versions
from tokenmill.errors import ConfigError
from tokenmill.memory.available import available_processors
from tokenmill.memory.interrupts import held_interrupts
from tokenmill.settings.engine_config import DEFAULT_MODEL, EngineConfig
from tokenmill.settings.sampling_params import SamplingParams
from tokenmill.units import counted

if TYPE_CHECKING:  # these import torch
    from tokenmill.batches.batch import Batch, BatchProgress, Summary
    from tokenmill.batches.task import Task
    from tokenmill.engine.core import Core
    from tokenmill.engine.engine import Engine

EXAMPLES = (
    "tokenmill batch requests.jsonl -o answers.jsonl",
    "tokenmill batch reviews.csv --prompt 'Translate: {text}' --chat -o translated.csv",
    "tokenmill batch rows.parquet --column prompt -n 64 --temperature 0.8 -o out.parquet",
    "tokenmill batch rows.jsonl --column prompt -o out.jsonl --shard 1/4",
    "tokenmill batch rows.jsonl --column prompt -o out.jsonl --join 4",
)
SHOWN_S, LINE_S = 0.25, 30.0  # between two updates of a terminal; between two lines where stderr is no terminal
FEWEST_SEQUENCES = 16
WORDS = {
    "max_sequences": "Sequences that run together. Default: 8 for each processor, at least 16, at most 64.",
    "cache_tokens": "Slots in the cache over all sequences. Default: max-sequences times max-length, or what fits.",
    "seed": "The same seed for every row. Default: a seed that depends on the row alone.",
}
ROWS = "Rows"
SHOWN = 5  # broken lines
WINDOW = 1024

INPUT = argument(
    ...,
    "INPUT",
    "A file of rows: .jsonl, .csv or .parquet. Without --prompt and --column, lines of OpenAI's batches.",
    ROWS,
)
COLUMN = option(None, "The column that is the prompt: a text, token ids, or with --chat messages.", PROMPT)
NAME = option(None, "Name of the model in requests of OpenAI's batches. Default: MODEL.", PROMPT)
SHARD_OPTION = option(None, "Only every Nth row, from the Ith on, into a file of its own.", ROWS, metavar="I/N")
RECOMMENDED = option(
    None, "Sample as the files or the maker of the model recommend. Default: with OpenAI's batches.", PROMPT
)
WITHOUT = ("max_waiting", "generation_config")


def command(
    context: Context,
    sampling: SamplingParams,
    engine: EngineConfig,
    input: Path = INPUT,
    output: Path = option(..., "The rows with their answers: .jsonl, .csv or .parquet.", OUTPUT, "-o", metavar="FILE"),
    model: str = option(DEFAULT_MODEL, "Directory, .gguf file, hub name, or short name.", MODEL, metavar="MODEL"),
    prompt: str | None = option(None, "The prompt of each row, columns in braces: 'Translate: {text}'.", PROMPT),
    column: str | None = COLUMN,
    chat: bool = option(False, "Ask through the model's chat template.", PROMPT),
    system: str | None = option(None, "System message, with --chat.", PROMPT),
    chat_template: Path | None = CHAT_TEMPLATE,
    generation_config: bool | None = RECOMMENDED,
    served_model_name: str | None = NAME,
    strict: bool = option(False, "Refuse unknown fields in requests of OpenAI's batches.", PROMPT),
    window: int = option(WINDOW, "Rows that are sorted together, so that equal beginnings meet.", ROWS, minimum=1),
    shard: str | None = SHARD_OPTION,
    join: int | None = option(None, "Make one file of the files of N shards.", ROWS, metavar="N", minimum=1),
    output_prefix: str = option("", "Prefix of the names of the new columns of a table.", OUTPUT),
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Answer every row of a file, in its order.

    Each answer goes into a journal beside the output as soon as it is there. Broken off at any point, even by kill -9,
    the same command goes on and computes nothing twice. The output is written when all answers are there; nothing in it
    depends on how often the run was broken off or how it was divided.
    """
    is_table = prompt is not None or column is not None
    recommended = generation_config if generation_config is not None else not is_table
    engine = replace(engine, model=model, generation_config=recommended)
    if is_table:
        _refuse_given(context, ("served_model_name", "strict"), "only without --prompt and --column, for requests")
        task = _table(context, sampling, recommended, prompt, column, chat, system, output_prefix)
    else:
        own = [field.name for field in fields(SamplingParams) if field.name != "seed"]
        why = "only with --prompt or --column: a request of a batch has settings of its own"
        _refuse_given(context, (*own, "chat", "system", "output_prefix"), why)
        task = _requests(served_model_name or model, sampling.seed, strict, output)
    if join is not None:
        _refuse_given(context, ("shard",), "without --join, which needs the files of all shards")
        _join(task, input, output, join, json, quiet)
        return
    num_sequences = engine.max_sequences if "max_sequences" in context.origins else None
    compute(task, input, output, engine, num_sequences, quiet, shard, window, chat_template, json)


def _refuse_given(context: Context, names: tuple[str, ...], why: str) -> None:
    for name in names:
        if name in context.origins:
            raise ConfigError(option_name(name), context.values.get(name), why)


def _table(
    context: Context,
    sampling: SamplingParams,
    recommended: bool,
    prompt: str | None,
    column: str | None,
    chat: bool,
    system: str | None,
    prefix: str,
) -> "Task":
    with held_interrupts():
        from tokenmill.batches.template import TableTask, Template
    if prompt is not None and column is not None:
        raise ConfigError("--column", column, "only without --prompt, which names its columns in braces")
    if system is not None and not chat:
        raise ConfigError("system", system, "only together with --chat, since it is part of a conversation")

    def settings(core: "Core") -> SamplingParams:
        return with_defaults(context.origins, sampling, core.inputs.defaults) if recommended else sampling

    template = None if prompt is None else Template(prompt)
    return TableTask(settings, template, column, chat, system, prefix)


def _requests(name: str, seed: int | None, strict: bool, output: Path) -> "Task":
    if output.suffix != ".jsonl":
        allowed = "a name that ends with .jsonl, since the answer to a request has many fields; of a table, --prompt or"
        raise ConfigError("output", str(output), f"{allowed} --column says what the prompt of a row is")
    with held_interrupts():
        from tokenmill.serve.sessions.batch_lines import BatchLines
    return BatchLines(name, seed, strict)


def _join(task: "Task", source: Path, target: Path, count: int, json: bool, quiet: bool) -> None:
    from tokenmill.batches.output import join
    from tokenmill.batches.scan import scan

    with progress_on_stderr(quiet) as progress:
        progress.stage(f"reading {source.name}")
        index = scan(source, task.id_field)
        progress.stage(f"joining {counted(count, 'file')}")
        join(index, target, count, task, lambda done: progress.advance(done, index.num_rows))
    if json:
        print_json({"output": str(target), "rows": index.num_rows, "shards": count})
    if not quiet:
        remark(f"{target}: {counted(index.num_rows, 'row')} of {counted(count, 'shard')}")


def compute(
    task: "Task",
    source: Path,
    target: Path,
    config: EngineConfig,
    num_sequences: int | None,
    quiet: bool,
    shard: str | None = None,
    window: int = WINDOW,
    chat_template: Path | None = None,
    json: bool = False,
    writes_text: bool = True,
) -> None:
    """Do a task for each row of a file, or what is left of it. writes_text: see load_engine."""
    with held_interrupts():
        from tokenmill.batches.batch import opened
        from tokenmill.batches.output import Shard, parse_shard
    chosen = Shard() if shard is None else parse_shard(shard)
    with ExitStack() as held:
        with progress_on_stderr(quiet) as progress:
            progress.stage(f"reading {source.name}")
            batch = held.enter_context(opened(source, target, task, chosen))
            if not quiet:
                _tell_broken(batch)
            engine = load_for_many(config, num_sequences, chat_template, progress, writes_text)
        summary = _run(batch, engine, window, quiet)
    if json:
        print_json(_document(engine, batch, summary))
    if not quiet:
        remark(_told(batch, summary))


def load_for_many(
    config: EngineConfig, num_sequences: int | None, chat_template: Path | None, progress: Any, writes_text: bool = True
) -> "Engine":
    """Load an engine for so many texts at a time (None: by the processors), as far as memory allows. writes_text: see
    load_engine."""
    from tokenmill.loader.fit import MOST_SEQUENCES, SEQUENCES_PER_CORE, fit_for_many

    default = min(max(FEWEST_SEQUENCES, SEQUENCES_PER_CORE * available_processors()), MOST_SEQUENCES)
    num_sequences = num_sequences or min(default, config.max_step_tokens)
    fitted = fit_for_many(config, read_model_config(config.model, progress), num_sequences, follow=True)
    return load_engine(fitted, progress, chat_template, writes_text=writes_text)


def _run(batch: "Batch", engine: "Engine", window: int, quiet: bool) -> "Summary":
    from tokenmill.batches.batch import How

    last: list[BatchProgress] = []
    try:
        with nullcontext(last.append) if quiet else batch_progress(last.append) as told:
            return batch.run(engine.core, How(window, told=told))
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and last:
            done = f"{last[-1].num_done:,} of {counted(last[-1].num_rows, 'row')} are done"
            remark(f"{done} and kept in {batch.journal_path}: the same command goes on")
        raise


def _tell_broken(batch: "Batch") -> None:
    """Name the lines that are no rows; each has an error in the output."""
    index = batch.index
    for problem in index.broken[:SHOWN]:
        remark(f"warning: {problem}")
    if index.num_broken > SHOWN:
        remark(f"warning: {counted(index.num_broken - SHOWN, 'more line')} cannot be read")


def _told(batch: "Batch", summary: "Summary") -> str:
    rows = f"{batch.target}: {counted(summary.num_rows, 'row')}"
    if summary.was_there:
        return f"{rows}, written before by the same command: nothing is left to do"
    new = f" + {counted(summary.tokens, 'new token')}" if summary.tokens else ""
    speed = summary.tokens_per_s if summary.tokens else summary.prompt_tokens / max(summary.elapsed_s, 1e-9)
    return " · ".join(
        [
            rows,
            *([f"{summary.num_known:,} known before"] if summary.num_known else []),
            *([f"{summary.num_errors:,} with an error in it"] if summary.num_errors else []),
            f"{summary.prompt_tokens:,} prompt{new}" if new else counted(summary.prompt_tokens, "token"),
            f"{summary.elapsed_s:.1f} s",
            f"{speed:.1f} tokens/s",
        ]
    )


def _document(engine: "Engine", batch: "Batch", summary: "Summary") -> dict[str, Any]:
    return {
        "output": str(batch.target),
        "rows": summary.num_rows,
        "computed": summary.num_computed,
        "known": summary.num_known,
        "errors": summary.num_errors,
        "was_there": summary.was_there,
        "prompt_tokens": summary.prompt_tokens,
        "completion_tokens": summary.tokens,
        "elapsed_s": summary.elapsed_s,
        "tokens_per_s": summary.tokens_per_s,
        "program": program_facts(engine),
        "versions": versions(),
    }


@contextmanager
def batch_progress(note: Callable[["BatchProgress"], None]) -> Iterator[Callable[["BatchProgress"], None]]:
    """Give a function that shows how far a run is, now and then. note: also gets what the function is told."""
    is_shown = shows_bars()
    begun_s = shown_s = time.monotonic()
    with progress_on_stderr(not is_shown) as bar:

        def told(progress: "BatchProgress") -> None:
            nonlocal shown_s
            note(progress)
            now_s = time.monotonic()
            if now_s - shown_s < (SHOWN_S if is_shown else LINE_S):
                return
            shown_s = now_s
            text = described(progress, now_s - begun_s)
            if is_shown:
                bar.stage(text)
                bar.advance(progress.num_done, progress.num_rows)
            else:
                remark(text)

        yield told


def described(progress: "BatchProgress", elapsed_s: float) -> str:
    """Describe the progress in one line. The estimate takes the remaining rows to be like the rows of this run."""
    counts, left = progress.counts, progress.num_rows - progress.num_done
    rate = f"{(counts.tokens or counts.prompt_tokens) / elapsed_s:.0f} tokens/s" if elapsed_s else ""
    rest = f", about {duration(left * elapsed_s / counts.rows)} left" if counts.rows and elapsed_s else ""
    return f"{progress.num_done:,} of {progress.num_rows:,} rows, {rate}{rest}"


def duration(seconds: float) -> str:
    """Spell seconds as 90 s, 12 min or 3 h 20 min: with as many digits as an estimate has."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
