"""`tokenmill eval tasks`: tasks of lm-evaluation-harness."""

import json as json_text
import logging
import os
import sys
import time
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenmill.cli.eval.perplexity import EVALUATED, NEEDED
from tokenmill.cli.models import load_engine, read_model_config
from tokenmill.cli.parser.command import Context
from tokenmill.cli.parser.options import CHAT_TEMPLATE, JSON, OUTPUT, QUIET, argument, option
from tokenmill.cli.process.display import print_json, print_table, progress_on_stderr, say_on_stderr
from tokenmill.cli.report import program_facts, versions
from tokenmill.errors import ConfigError
from tokenmill.memory.interrupts import held_interrupts
from tokenmill.settings.engine_config import EngineConfig

if TYPE_CHECKING:  # these import torch
    from tokenmill.measure.harness.model import TokenmillLM
    from tokenmill.measure.harness.tasks import TaskSettings

EXAMPLES = (
    "tokenmill eval tasks smollm2-135m arc_easy hellaswag --limit 200 -o results.json",
    "tokenmill eval tasks ./my-model my_task --include-path ./my-tasks --num-fewshot 5",
    "tokenmill eval tasks smollm2-135m ifeval --apply-chat-template --log-samples --json",
)
WORDS = {
    "max_sequences": "Maximum number of sequences in one step. Default: by processors. It changes no result.",
    "cache_tokens": "Slots in the cache over all sequences. Default: max-sequences times max-length, if they fit.",
}
WITHOUT = ("max_waiting",)


def command(
    context: Context,
    engine: EngineConfig,
    model: str = NEEDED,
    tasks: list[str] = argument(
        ...,
        "TASK",
        "Names of tasks or groups, * for any letters, or YAML files. `lm_eval ls tasks` lists them.",
        EVALUATED,
    ),
    include_path: Path | None = option(None, "A folder with tasks of your own.", EVALUATED, metavar="DIR"),
    num_fewshot: int | None = option(None, "Examples before each question. Default: the task's.", EVALUATED, minimum=0),
    limit: float | None = option(None, "Documents of each task; below 1 a share of them.", EVALUATED),
    apply_chat_template: bool = option(False, "Ask through the model's chat template.", EVALUATED),
    chat_template: Path | None = CHAT_TEMPLATE,
    system_instruction: str | None = option(None, "A text before each prompt.", EVALUATED, metavar="TEXT"),
    seed: int | None = option(
        None, "Seed of examples, and of tasks that sample. Default: the harness' own seeds.", EVALUATED, minimum=0
    ),
    log_samples: bool = option(False, "With every document and answer in the JSON.", OUTPUT),
    output: Path | None = option(None, "Write all results as JSON.", OUTPUT, "-o", metavar="FILE"),
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Evaluate tasks of lm-evaluation-harness: multiple choice, perplexity of texts, answers that are compared.

    Contexts that requests share are computed once, and max-sequences of them run together; by default as many as memory
    and processors allow. No result depends on that. Needs the extra: pip install 'tokenmill[eval]'.
    """
    if limit is not None and not limit > 0:
        raise ConfigError("limit", limit, "a number of documents above 0, or a share below 1")
    with held_interrupts():
        from tokenmill.measure.files import check_appendable, write_atomically
    if output is not None:
        check_appendable(output, "--output")
    how: dict[str, Any] = {
        "num_fewshot": num_fewshot,
        "limit": limit,
        "template": apply_chat_template or chat_template is not None,
        "system_instruction": system_instruction,
        "seed": seed,
        "log_samples": log_samples,
    }
    number = engine.max_sequences if "max_sequences" in context.origins else None
    title, found = _evaluate(replace(engine, model=model), number, chat_template, (tasks, include_path), how, quiet)
    if output is not None:
        write_atomically(output, (_as_json(found) + "\n").encode(), "--output")
    if json:
        print_json(json_text.loads(_as_json(found)))
    else:
        print_table(title, _rows(found), HEADER)


def _evaluate(
    config: EngineConfig,
    number: int | None,
    chat_template: Path | None,
    tasks: tuple[list[str], Path | None],
    how: Mapping[str, Any],
    quiet: bool,
) -> tuple[str, dict[str, Any]]:
    """Find the tasks, load the model, evaluate; return a title and the document. number: of sequences in flight; None
    takes as many as memory and processors allow.
    """
    _silence()
    with held_interrupts():
        from tokenmill.loader.fit import fit_for_many
        from tokenmill.measure.harness.model import SEED, TokenmillLM
        from tokenmill.measure.harness.tasks import TaskSettings, evaluate, find_tasks
    # The harness prints what it is about, and the code of a task may print anything: stdout is for results alone.
    printed = StringIO() if quiet else sys.stderr
    with progress_on_stderr(quiet) as progress, redirect_stdout(printed):
        progress.stage("loading tasks")
        found, settings = find_tasks(*tasks), TaskSettings(**how)
        fitted = fit_for_many(config, read_model_config(config.model, progress), number)
        engine = load_engine(fitted, progress, chat_template)
        model = TokenmillLM(engine, seed=SEED if settings.seed is None else settings.seed, progress=progress)
        started_s = time.perf_counter()
        results = evaluate(model, found, settings)
    seconds = time.perf_counter() - started_s
    title = f"{config.model}, {engine.program_name} {engine.config.dtype}"
    return title, _document(model, settings, results, seconds)


def _silence() -> None:
    """Turn off the bars of other libraries, which read these variables when they are imported; warn in our own form."""
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    say_on_stderr("lm_eval", logging.ERROR)


HEADER = ("task", "metric", "value", "± stderr", "documents", "hash of texts")


def _rows(document: Mapping[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, found in document["results"].items():
        metrics = [key for key, value in found.items() if isinstance(value, float) and "_stderr" not in key]
        count = document.get("n-samples", {}).get(name, {}).get("effective", "")
        for number, key in enumerate(metrics):
            metric, _, kind = key.partition(",")
            error = found.get(f"{metric}_stderr,{kind}")
            shown = metric if kind in ("none", "") else f"{metric} ({kind})"
            spread = f"{error:.4f}" if isinstance(error, float) else ""
            once = ("", "", "") if number else (name, str(count), document["tokenmill"]["generated"].get(name, ""))
            rows.append((once[0], shown, f"{found[key]:.4f}", spread, *once[1:]))
    return rows


def _document(
    model: "TokenmillLM", settings: "TaskSettings", results: Mapping[str, Any], seconds: float
) -> dict[str, Any]:
    """Add to the harness' results, under `tokenmill`, what else somebody needs who wants to repeat them."""
    from tokenmill.bench.rows import commit

    engine = model.engine
    ours = {
        "model": engine.config.model,
        "fingerprint": dict(engine.fingerprint),
        "commit": commit(),
        "program": program_facts(engine),
        "settings": asdict(engine.config),
        "evaluation": asdict(settings),
        "generated": model.generated,
        "seconds": seconds,
        "versions": {**versions(), "lm_eval": version("lm_eval"), "datasets": version("datasets")},
    }
    return {**results, "tokenmill": ours}


def _as_json(document: Mapping[str, Any]) -> str:
    from lm_eval.utils import handle_non_serializable

    return json_text.dumps(document, ensure_ascii=False, indent=1, default=handle_non_serializable)
