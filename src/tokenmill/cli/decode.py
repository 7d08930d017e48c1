"""`tokenmill decode`: go on from a file that `tokenmill prefill` or Session.save wrote."""

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tokenmill.cli.generate import STREAM, show
from tokenmill.cli.models import load_engine, read_model_config
from tokenmill.cli.parser.command import Context
from tokenmill.cli.parser.options import JSON, MODEL, OUTPUT, PROMPT, QUIET, argument, option
from tokenmill.cli.prefill import FORCE, check_target
from tokenmill.cli.process.display import print_json, progress_on_stderr, remark
from tokenmill.cli.prompts import IDS, TEXT, gather
from tokenmill.cli.report import document, logprobs_table, summary
from tokenmill.cli.watch import prompt_progress
from tokenmill.errors import ConfigError
from tokenmill.hub.progress import Progress
from tokenmill.memory.interrupts import held_interrupts
from tokenmill.settings.engine_config import DEFAULT_MAX_LENGTH, EngineConfig
from tokenmill.settings.sampling_params import DEFAULT_MAX_NEW_TOKENS, SamplingParams

EXAMPLES = (
    "tokenmill decode tale.kv",
    'tokenmill decode tale.kv --prompt " Then the miller said:" -n 40 -o tale2.kv',
    "tokenmill decode tale.kv --model ./moved/model --temperature 0.8 --seed 7",
)
WITHOUT = ("n",)


def command(
    context: Context,
    sampling: SamplingParams,
    engine: EngineConfig,
    file: Path = argument(..., "FILE", "A file from `tokenmill prefill`.", MODEL),
    model: str | None = option(None, "Where the model lies now. Default: where the file says.", MODEL),
    prompt: list[str] | None = TEXT,
    tokens: list[str] | None = IDS,
    convert: bool = option(False, "Accept a cache of another dtype or scheme; the text may differ.", PROMPT),
    output: Path | None = option(None, "Save the longer text with its cache.", OUTPUT, "-o", metavar="FILE"),
    force: bool = FORCE,
    stream: bool = STREAM,
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Go on from a saved KV cache: the text that one run would have given.

    What no option sets is as it was when the file was written: model, dtype, scheme, sampling and seed.
    """
    with held_interrupts():
        from tokenmill.cache.header import read_facts

    facts = read_facts(file)
    if output is not None:
        check_target(output, "--output", force)
    more = gather(prompt, None, tokens) if prompt or tokens else []
    if len(more) > 1:
        raise ConfigError("--prompt", f"{len(more)} prompts", "one: the file holds one text")
    with progress_on_stderr(quiet) as progress:
        config = _as_saved(replace(engine, model=model or facts["model"]), facts, sampling, progress)
        loaded = load_engine(config, progress)
        progress.stage(f"opening {file.name}")
        session = loaded.open_session(file, convert)
    typed = {name: value for name, value in asdict(sampling).items() if name in context.origins}
    given = {**loaded.core.inputs.defaults, **typed}  # with --generation-config what the model's files recommend
    started_s = time.perf_counter()
    with prompt_progress(loaded, quiet):
        completion = show(loaded, session.stream(more[0] if more else None, **given), stream and not json)
    elapsed_s = time.perf_counter() - started_s
    if output is not None:
        session.save(output)
    if json:
        print_json(document(loaded, completion, session.params))
    if quiet:
        return
    if session.params.logprobs is not None and not json:
        remark(logprobs_table(loaded, completion))
    remark(summary(loaded, [completion], elapsed_s, session.params))


def _as_saved(
    engine: EngineConfig, facts: dict[str, Any], sampling: SamplingParams, progress: Progress
) -> EngineConfig:
    """Fill in the file's own settings where none was typed, and room for a long text as far as the context goes."""
    for name in ("dtype", "scheme", "cache_format"):
        if getattr(engine, name) == getattr(EngineConfig(), name):
            engine = replace(engine, **{name: facts[name]})
    wanted = len(facts["tokens"]) + max(sampling.max_new_tokens or DEFAULT_MAX_NEW_TOKENS, 1)
    if engine.max_length or wanted <= DEFAULT_MAX_LENGTH:
        return engine
    return replace(engine, max_length=min(wanted, read_model_config(engine.model, progress).context))
