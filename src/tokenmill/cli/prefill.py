"""`tokenmill prefill`: compute a prompt once and keep its rows in a file, for `tokenmill decode`."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tokenmill.cli.models import load_engine, looks_saved
from tokenmill.cli.parser.options import JSON, MODEL_NAME, OUTPUT, QUIET, option
from tokenmill.cli.process.display import echo, print_json, progress_on_stderr, remark
from tokenmill.cli.prompts import CHAT, FILES, IDS, SYSTEM, TEXT, gather
from tokenmill.cli.watch import prompt_progress
from tokenmill.errors import ConfigError, SnapshotError
from tokenmill.memory.atomic_file import beside, make_folder
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.units import counted, size

EXAMPLES = (
    'tokenmill prefill -p "Once upon a time" -o tale.kv',
    "tokenmill prefill smollm2-135m --prompt-file book.txt --max-length 8192 -o book.kv",
    "tokenmill decode tale.kv -n 64 --temperature 0.8 --seed 7",
)

TRIAL_BYTES = 4096

FORCE = option(False, "Overwrite a file of another kind too.", OUTPUT)


def command(
    engine: EngineConfig,
    model: str = MODEL_NAME,
    prompt: list[str] | None = TEXT,
    prompt_file: list[Path] | None = FILES,
    tokens: list[str] | None = IDS,
    chat: bool = CHAT,
    system: str | None = SYSTEM,
    output: Path = option(..., "The file to write.", OUTPUT, "-o", metavar="FILE"),
    force: bool = FORCE,
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Compute and save the KV cache of one prompt.

    `tokenmill decode` goes on from the file, in another process and on another day, with the text that one run would
    have given. The file names its model, and no other model accepts it.
    """
    check_target(output, "--output", force)
    prompts = gather(prompt, prompt_file, tokens, chat, system, model)
    if len(prompts) > 1:
        raise ConfigError("--prompt", f"{len(prompts)} prompts", "one: a file holds one text")
    with progress_on_stderr(quiet) as progress:
        loaded = load_engine(replace(engine, model=model), progress)
        (start,) = prompts if not chat else [loaded.chat_prompt(messages) for messages in prompts]
    started_s = time.perf_counter()
    with loaded.session(start) as session:
        with prompt_progress(loaded, quiet):
            session.prefill()
        seconds = time.perf_counter() - started_s
        num_bytes = session.save(output)
        num_tokens = len(session)
    if json:
        print_json({"path": str(output), "num_tokens": num_tokens, "num_bytes": num_bytes, "prefill_s": seconds})
    if quiet:
        return
    if not json:
        echo(f"{output}: {counted(num_tokens, 'token')}, {size(num_bytes)}")
    remark(f"computed in {seconds:.2f} s, {num_tokens / seconds:,.0f} tokens/s")


def check_target(
    path: Path,
    option: str,
    force: bool | None,
    is_ours: Callable[[Path], bool] = looks_saved,
    kind: str = "saved cache",
) -> None:
    """Refuse, before anything is computed, a file that cannot be written or is not of this kind. Its folder is made.

    force: None where the verb has no such option.
    """
    if path.exists() and not path.is_file():
        raise SnapshotError(f"{path} is not a file: give the name of one with {option}")
    if path.exists() and not force and not is_ours(path):
        forced = "" if force is None else ", or --force to overwrite it"
        raise SnapshotError(f"{path} is there and is not a {kind}: give another name{forced}")
    trial = beside(path)
    try:
        make_folder(path.parent)
        try:
            trial.write_bytes(bytes(TRIAL_BYTES))  # a disk that is full still takes an empty file
        finally:
            trial.unlink(missing_ok=True)
    except OSError as error:
        raise SnapshotError(f"{path} cannot be written: {error.strerror}") from None
