"""`tokenmill prefill`: compute a prompt once and keep its rows in a file, for `tokenmill decode`."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from tokenmill.cli.display import print_json, progress_on_stderr, remark, size
from tokenmill.cli.generate import Chat, Files, Ids, System, Texts, gather
from tokenmill.cli.models import load_engine
from tokenmill.cli.options import OUTPUT, Json, Model, Quiet, examples, with_settings
from tokenmill.config import DEFAULT_MODEL, EngineConfig
from tokenmill.errors import ConfigError

__all__ = ["EXAMPLES", "command"]

EXAMPLES = examples(
    'tokenmill prefill -p "Once upon a time" -o tale.kv',
    "tokenmill prefill smollm2-135m --prompt-file book.txt --max-length 8192 -o book.kv",
    "tokenmill decode tale.kv -n 64 --temperature 0.8 --seed 7",
)


@with_settings(engine=EngineConfig)
def command(
    engine: EngineConfig,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.", rich_help_panel=OUTPUT)],
    model: Model = DEFAULT_MODEL,
    prompt: Texts = None,
    prompt_file: Files = None,
    tokens: Ids = None,
    chat: Chat = False,
    system: System = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compute the rows of one prompt and write them to a file.

    `tokenmill decode` goes on from there, in another process and on another day, with the text that one run would have
    given. The file says of which model it is, and is refused by any other.
    """
    prompts = gather(prompt or [], prompt_file or [], tokens or [], chat, system)
    if len(prompts) > 1:
        raise ConfigError("--prompt", f"{len(prompts)} prompts", "one: a file holds one text")
    with progress_on_stderr(quiet) as progress:
        loaded = load_engine(replace(engine, model=model), progress)
        (start,) = prompts if not chat else [loaded.chat_prompt(messages) for messages in prompts]
        progress.stage("computing the prompt")
        started_s = time.perf_counter()
        with loaded.session(start) as session:
            session.prefill()
            seconds = time.perf_counter() - started_s
            num_bytes = session.save(out)
            num_tokens = len(session)
    if json:
        print_json({"path": str(out), "num_tokens": num_tokens, "num_bytes": num_bytes, "prefill_s": seconds})
    else:
        typer.echo(f"{out}: {num_tokens} tokens, {size(num_bytes)}")
    if not quiet:
        remark(f"computed in {seconds:.2f} s, {num_tokens / seconds:,.0f} tokens/s")
