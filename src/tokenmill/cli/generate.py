"""`tokenmill generate`: prompts in, text out as it comes, figures on stderr."""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from tokenmill.cli.display import print_json, progress_on_stderr, remark
from tokenmill.cli.models import load_engine
from tokenmill.cli.options import OUTPUT, PROMPT, Json, Model, Quiet, examples, parse_ids, with_defaults, with_settings
from tokenmill.cli.report import document, summary
from tokenmill.cli.watch import load_reference, watched
from tokenmill.config import DEFAULT_MODEL, EngineConfig, SamplingParams, as_keywords
from tokenmill.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from tokenmill.engine.engine import Engine
    from tokenmill.engine.outputs import Completion, Piece

__all__ = ["EXAMPLES", "Chat", "Files", "Ids", "Stream", "System", "Texts", "command", "gather", "show"]

EXAMPLES = examples(
    'tokenmill generate --chat -p "Why is the sky blue?"',
    'tokenmill generate -p "Once upon a time" -n 64 --temperature 0.8 --seed 7',
    'tokenmill generate -p "One" -p "Two" --max-sequences 2 --json',
    "cat letter.txt | tokenmill generate -p - --max-length 4096",
)

Prompt = str | list[int]


Texts = Annotated[
    list[str] | None,
    typer.Option("--prompt", "-p", help="Text to continue; - reads stdin. Repeat for a batch.", rich_help_panel=PROMPT),
]
Files = Annotated[
    list[Path] | None,
    typer.Option("--prompt-file", help="The same from a file in UTF-8. May be repeated.", rich_help_panel=PROMPT),
]
Ids = Annotated[
    list[str] | None,
    typer.Option("--tokens", help="A prompt as token ids, 1,2,3. May be repeated.", rich_help_panel=PROMPT),
]
Chat = Annotated[bool, typer.Option("--chat", help="Ask through the model's chat template.", rich_help_panel=PROMPT)]
System = Annotated[str | None, typer.Option("--system", help="System message, with --chat.", rich_help_panel=PROMPT)]
Stream = Annotated[
    bool, typer.Option("--stream/--no-stream", help="Show text as it comes, or at the end.", rich_help_panel=OUTPUT)
]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Say which program runs and why.", rich_help_panel=OUTPUT)
]


@with_settings(sampling=SamplingParams, engine=EngineConfig)
def command(
    context: typer.Context,
    sampling: SamplingParams,
    engine: EngineConfig,
    model: Model = DEFAULT_MODEL,
    prompt: Texts = None,
    prompt_file: Files = None,
    tokens: Ids = None,
    chat: Chat = False,
    system: System = None,
    stream: Stream = True,
    trace: Annotated[
        bool,
        typer.Option(
            "--trace",
            help="Show on stderr what each step fed, and would have without a cache; a step for each token.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Compute each step in float32 too; stop where the two part.", rich_help_panel=OUTPUT
        ),
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Continue one or more prompts.

    Text goes to stdout as it is made, and one line of figures to stderr. At temperature 0, the default, the same
    prompt gives the same text on every run, alone or in a batch.
    """
    if (trace or verify) and engine.proposer == "auto":
        engine = replace(engine, proposer="none")  # a step for each token, to look at
    prompts = gather(prompt or [], prompt_file or [], tokens or [], chat, system)
    with progress_on_stderr(quiet) as progress:
        loaded = load_engine(replace(engine, model=model), progress)
        if engine.generation_config:
            sampling = with_defaults(context, sampling, loaded.core.inputs.defaults)
        if chat:
            prompts = [loaded.chat_prompt(conversation) for conversation in prompts]
        reference = load_reference(loaded, progress) if verify else None
    if verbose and not quiet:
        remark(f"program {loaded.program_name}: {loaded.program_reason}; kernel {loaded.kernel_name}")
    with watched(loaded, trace, reference, json):
        completions, elapsed_s = _serve(loaded, prompts, sampling, stream, json)
    if json:
        documents = [document(loaded, completion, sampling) for completion in completions]
        print_json(documents if len(documents) > 1 else documents[0])
    if not quiet:
        remark(summary(loaded, completions, elapsed_s))


def _serve(
    loaded: "Engine", prompts: list[Any], sampling: SamplingParams, stream: bool, json: bool
) -> tuple[list["Completion"], float]:
    """The completions, shown as they come, and the seconds that they took."""
    started_s = time.perf_counter()
    if len(prompts) == sampling.n == 1 and stream and not json:
        completions = [show(loaded, loaded.stream(prompts[0], **as_keywords(sampling)))]
    else:
        # One list may hold texts and ids, which the overloads do not say.
        completions = loaded.generate(cast("list[str]", prompts), **as_keywords(sampling))
        if not json:
            _print_all(completions, sampling.n)
    return completions, time.perf_counter() - started_s


def gather(
    texts: Sequence[str], files: Sequence[Path], ids: Sequence[str], chat: bool = False, system: str | None = None
) -> list[Any]:
    """Every prompt that was given, in the order text, files, ids; with chat, each as a conversation."""
    if system is not None and not chat:
        raise ConfigError("--system", system, "only together with --chat, since it is part of a conversation")
    if chat and ids:
        raise ConfigError("--tokens", ",".join(ids), "only without --chat, which renders text")
    prompts: list[Prompt] = [
        _text(sys.stdin.buffer.read() if text == "-" else os.fsencode(text), "--prompt") for text in texts
    ]
    for path in files:
        try:
            prompts.append(_text(path.read_bytes(), "--prompt-file"))
        except OSError as error:
            raise ConfigError("--prompt-file", str(path), f"a file that can be read ({error.strerror})") from None
    prompts += [parse_ids([text], "--tokens") for text in ids]
    if not prompts:
        raise RequestError("no prompt: give one with -p TEXT, with --prompt-file FILE, or on stdin with -p -")
    return [_conversation(str(text), system) for text in prompts] if chat else prompts


def _text(data: bytes, option: str) -> str:
    """A prompt without its last line break, so that an option, a file and stdin mean the same."""
    try:
        text = data.decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise ConfigError(option, data[:20], f"text in UTF-8, and byte {error.start} is not") from None
    if not text:
        raise RequestError(f"the prompt of {option} is empty: give a text of at least one character")
    return text


def _conversation(text: str, system: str | None) -> list[dict[str, str]]:
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, {"role": "user", "content": text}]


def show(engine: "Engine", pieces: Iterator["Piece"], visible: bool = True) -> "Completion":
    """Print pieces as they come; the text so far ends with a line break also when it is interrupted."""
    done = None
    try:
        for piece in pieces:
            if visible:
                typer.echo(piece.text if engine.tokenizer else _ids(piece.tokens), nl=False)
            done = piece.done
    finally:
        if visible:
            typer.echo()
    assert done is not None, "the last piece carries the completion"
    return done


def _print_all(completions: Sequence["Completion"], num_each: int) -> None:
    """Every text, under a header when there are several."""
    for index, done in enumerate(completions):
        if len(completions) > 1:
            which = f", continuation {index % num_each + 1}" if num_each > 1 else ""
            typer.echo(f"==> prompt {index // num_each + 1}{which} <==")
        typer.echo(done.text or _ids(done.tokens))


def _ids(tokens: Sequence[int]) -> str:
    """What is shown of a model that has no tokenizer."""
    return "".join(f"{token} " for token in tokens)
