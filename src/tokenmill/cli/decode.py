"""`tokenmill decode`: go on from a file that `tokenmill prefill` or Session.save wrote."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from tokenmill.cli.display import print_json, progress_on_stderr, remark
from tokenmill.cli.generate import Ids, Stream, Texts, gather, show
from tokenmill.cli.models import load_engine
from tokenmill.cli.options import OUTPUT, PROMPT, Json, Quiet, examples, is_given, with_settings
from tokenmill.cli.report import document, summary
from tokenmill.config import DEFAULT_MAX_LENGTH, DEFAULT_MAX_NEW_TOKENS, EngineConfig, SamplingParams, as_keywords
from tokenmill.errors import ConfigError

__all__ = ["EXAMPLES", "command"]

EXAMPLES = examples(
    "tokenmill decode tale.kv",
    'tokenmill decode tale.kv --prompt " Then the miller said:" -n 40 --save tale2.kv',
    "tokenmill decode tale.kv --model ./moved/model --temperature 0.8 --seed 7",
)


@with_settings(without=("generation_config",), sampling=SamplingParams, engine=EngineConfig)
def command(
    context: typer.Context,
    sampling: SamplingParams,
    engine: EngineConfig,
    file: Annotated[Path, typer.Argument(help="A file from `tokenmill prefill`.", show_default=False)],
    model: Annotated[
        str | None, typer.Option("--model", help="Where the model lies now. Default: where the file says.")
    ] = None,
    prompt: Texts = None,
    tokens: Ids = None,
    save: Annotated[
        Path | None, typer.Option("--save", help="Write the longer text and its rows here.", rich_help_panel=OUTPUT)
    ] = None,
    convert: Annotated[
        bool,
        typer.Option(
            "--convert", help="Take rows of another dtype or scheme; the text may differ.", rich_help_panel=PROMPT
        ),
    ] = False,
    stream: Stream = True,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Go on from a file of computed rows: the text that one run would have given.

    What is not asked for is as it was when the file was written: model, dtype, scheme, sampling and seed.
    """
    from tokenmill.cache.snapshot import read_facts

    facts = read_facts(file)
    more = gather([*(prompt or [])], [], [*(tokens or [])]) if prompt or tokens else []
    if len(more) > 1:
        raise ConfigError("--prompt", f"{len(more)} prompts", "one: the file holds one text")
    with progress_on_stderr(quiet) as progress:
        config = _as_saved(replace(engine, model=model or facts["model"]), facts, sampling)
        loaded = load_engine(config, progress)
        progress.stage(f"opening {file.name}")
        session = loaded.open(file, convert)
    given = {name: value for name, value in as_keywords(sampling).items() if is_given(context, name)}
    started_s = time.perf_counter()
    completion = show(loaded, session.stream(more[0] if more else None, **given), stream and not json)
    elapsed_s = time.perf_counter() - started_s
    if save is not None:
        session.save(save)
    if json:
        print_json(document(loaded, completion, session.params))
    if not quiet:
        remark(summary(loaded, [completion], elapsed_s))


def _as_saved(engine: EngineConfig, facts: dict[str, Any], sampling: SamplingParams) -> EngineConfig:
    """What was left to chance, as the file has it, and room for a long text."""
    for name in ("dtype", "scheme", "cache_format"):
        if getattr(engine, name) == getattr(EngineConfig(), name):
            engine = replace(engine, **{name: facts[name]})
    wanted = len(facts["tokens"]) + (sampling.max_new_tokens or DEFAULT_MAX_NEW_TOKENS)
    return engine if engine.max_length or wanted <= DEFAULT_MAX_LENGTH else replace(engine, max_length=wanted)
