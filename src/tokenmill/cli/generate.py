"""`tokenmill generate`: prompts in, text out as it comes, figures on stderr."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tokenmill.cli.models import load_engine
from tokenmill.cli.parser.command import Context
from tokenmill.cli.parser.config_file import PRESET
from tokenmill.cli.parser.options import CHAT_TEMPLATE, JSON, MODEL_NAME, OUTPUT, QUIET, option, with_defaults
from tokenmill.cli.process.display import echo, print_json, progress_on_stderr, remark, write_text
from tokenmill.cli.prompts import CHAT, FILES, IDS, SYSTEM, TEXTS, check_waiting, gather, shown_ids
from tokenmill.cli.report import document, logprobs_table, summary
from tokenmill.cli.watch import load_reference, prompt_progress, watched
from tokenmill.errors import ConfigError
from tokenmill.measure.files import check_appendable
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.settings.sampling_params import SamplingParams

if TYPE_CHECKING:  # these import torch
    from tokenmill.engine.engine import Engine
    from tokenmill.engine.outputs import Completion, Piece

EXAMPLES = (
    'tokenmill generate --chat -p "Why is the sky blue?"',
    'tokenmill generate -p "Once upon a time" -n 64 --temperature 0.8 --seed 7',
    'tokenmill generate -p "One" -p "Two" --max-sequences 2 --json',
    "tokenmill generate --max-length 4096 < letter.txt",
)

STREAM = option(True, "Show text as it comes, or at the end.", OUTPUT)
TRACE = option(
    False, "Show on stderr what each step fed, and would have without a cache; a step for each token.", OUTPUT
)
RECEIPT = option(None, "Write a receipt of each text, for `tokenmill verify`.", OUTPUT, metavar="FILE")


def command(
    context: Context,
    sampling: SamplingParams,
    engine: EngineConfig,
    model: str = MODEL_NAME,
    prompt: list[str] | None = TEXTS,
    prompt_file: list[Path] | None = FILES,
    tokens: list[str] | None = IDS,
    chat: bool = CHAT,
    system: str | None = SYSTEM,
    chat_template: Path | None = CHAT_TEMPLATE,
    preset: str | None = PRESET,
    stream: bool = STREAM,
    trace: bool = TRACE,
    check_float32: bool = option(False, "Compute each step in float32 too; stop at the first difference.", OUTPUT),
    show_draft: bool = option(False, "Show in colour which tokens were drafted and accepted.", OUTPUT),
    json: bool = JSON,
    quiet: bool = QUIET,
    verbose: bool = option(False, "Say which program runs and why.", OUTPUT, "-v"),
    receipt: Path | None = RECEIPT,
) -> None:
    """Continue one or more prompts.

    Text goes to stdout as it is made, and one line of figures to stderr. At temperature 0, the default, the same
    prompt gives the same text on every run, alone or in a batch.
    """
    if (trace or check_float32) and engine.speculate == "auto":
        engine = replace(engine, speculate="off")  # a step for each token, to look at
    if chat_template is not None and not chat:
        raise ConfigError("chat_template", str(chat_template), "only together with --chat")
    prompts = gather(prompt, prompt_file, tokens, chat, system, model)
    check_waiting(engine, len(prompts) * sampling.n)
    if show_draft:
        _check_show_draft(prompts, sampling, json)
    if receipt is not None:
        check_appendable(receipt, "--receipt")
    with progress_on_stderr(quiet) as progress:
        loaded = load_engine(replace(engine, model=model), progress, chat_template)
        if engine.generation_config:
            sampling = with_defaults(context.origins, sampling, loaded.core.inputs.defaults)
        if chat:
            prompts = [loaded.chat_prompt(conversation) for conversation in prompts]
        reference = load_reference(loaded, progress) if check_float32 else None
    if verbose and not quiet:
        _say_choices(loaded)
    if show_draft:
        _write_receipts(receipt, [_show_draft(loaded, prompts[0], sampling, quiet)])
        return
    with prompt_progress(loaded, quiet), watched(loaded, trace, reference, json):
        completions, elapsed_s = _serve(loaded, prompts, sampling, stream, json)
    _write_receipts(receipt, completions)
    if json:
        documents = [document(loaded, completion, sampling) for completion in completions]
        print_json(documents if len(documents) > 1 else documents[0])
    if quiet:
        return
    if sampling.logprobs is not None and not json:
        remark("\n".join(logprobs_table(loaded, completion) for completion in completions))
    remark(summary(loaded, completions, elapsed_s, sampling))


def _say_choices(loaded: "Engine") -> None:
    remark(f"program {loaded.program_name}: {loaded.program_reason}; kernel {loaded.kernel_name}")
    remark(f"texts may have {loaded.config.max_length} tokens; the model's context is {loaded.model_config.context}")
    for name, reason in loaded.program_refusals.items():
        remark(f"program {name}: not chosen, because it {reason}")


def _write_receipts(path: Path | None, completions: Sequence["Completion"]) -> None:
    if path is None:
        return
    from tokenmill.receipts.file import write_receipts

    write_receipts(path, (each.receipt() for each in completions), "--receipt")


def _show_draft(loaded: "Engine", prompt: Any, sampling: SamplingParams, quiet: bool) -> "Completion":
    if loaded.tokenizer is None:
        raise ConfigError("--show-draft", True, "only with a model that has a tokenizer")
    from tokenmill.cli.show_draft import DraftMarks, colour_drafts
    from tokenmill.speculate.speculation import described

    marks, started_s = DraftMarks(), time.perf_counter()
    with loaded.core.observed_by(marks):
        prompt = loaded.encode(prompt)
        done = colour_drafts(loaded, prompt, loaded.stream(prompt, sampling), marks)
    if not quiet:
        remark(summary(loaded, [done], time.perf_counter() - started_s, sampling))
        remark(f"drafts: {described(loaded.core.speculation.stats.columns)}")
    return done


def _check_show_draft(prompts: list[Any], sampling: SamplingParams, json: bool) -> None:
    """Raise ConfigError unless there is one text to colour, token by token."""
    if len(prompts) * sampling.n > 1:
        raise ConfigError("--show-draft", True, f"only with one text, and these are {len(prompts) * sampling.n}")
    if sampling.stop or json:
        raise ConfigError("--show-draft", True, f"only without {'--json' if json else '--stop'}")


def _serve(
    loaded: "Engine", prompts: list[Any], sampling: SamplingParams, stream: bool, json: bool
) -> tuple[list["Completion"], float]:
    """Generate the completions, show them as they come, and measure the seconds that they took."""
    started_s = time.perf_counter()
    if len(prompts) == sampling.n == 1 and stream and not json:
        completions = [show(loaded, loaded.stream(prompts[0], **asdict(sampling)))]
    else:
        # One list may hold texts and ids, which the overloads do not say.
        done = loaded.generate(cast("list[str]", prompts), **asdict(sampling))
        completions = [each for one in done for each in one.completions]
        if not json:
            _print_all(completions, sampling.n)
    return completions, time.perf_counter() - started_s


def show(engine: "Engine", pieces: Iterator["Piece"], visible: bool = True) -> "Completion":
    """Print pieces as they come; a text that has begun ends with a line break also when it is interrupted."""
    done, is_begun = None, False
    try:
        for piece in pieces:
            is_begun = True
            if visible:
                write_text(piece.text if engine.tokenizer else shown_ids(piece.tokens))
            done = piece.done
    finally:
        if visible and is_begun:
            echo()
    assert done is not None, "the last piece carries the completion"
    return done


def _print_all(completions: Sequence["Completion"], num_each: int) -> None:
    for index, done in enumerate(completions):
        if len(completions) > 1:
            which = f", continuation {index % num_each + 1}" if num_each > 1 else ""
            echo(f"==> prompt {index // num_each + 1}{which} <==")
        write_text(f"{done.text or shown_ids(done.tokens)}\n")
