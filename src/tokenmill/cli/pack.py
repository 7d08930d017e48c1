"""`tokenmill pack`: a packed model, one file with the weights as a program reads them, for quick starts."""

from dataclasses import replace
from pathlib import Path

from tokenmill.cli.models import find_checkpoint
from tokenmill.cli.parser.options import JSON, MODEL_NAME, OUTPUT, QUIET, option
from tokenmill.cli.prefill import check_target
from tokenmill.cli.process.display import echo, print_json, progress_on_stderr
from tokenmill.memory.interrupts import held_interrupts
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.units import size

EXAMPLES = (
    "tokenmill pack smollm2-135m -o smollm2.packed",
    'tokenmill generate smollm2.packed -p "Hello"',
    "tokenmill pack Qwen/Qwen3-0.6B --scheme q4 -o qwen3-q4.packed",
)
ONLY = ("dtype", "scheme", "program")


def command(
    engine: EngineConfig,
    model: str = MODEL_NAME,
    output: Path = option(..., "The new file.", OUTPUT, "-o", metavar="FILE"),
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Write a packed model: one file with the weights in the layout that the native program reads.

    The file can be given wherever a model is given. The text is the same, and loading is only reading the file, which
    holds tokenizer and settings too. It is refused when it is damaged, or when its model has changed since.
    """
    with held_interrupts():
        from tokenmill.loader.pack import save_packed_model
        from tokenmill.weights.packed.reader import is_packed_model

    config = replace(engine, model=model)
    if config.program == "auto":
        config = replace(config, program="native")  # no other program packs weights
    check_target(output, "--output", None, is_packed_model, "packed model")
    with progress_on_stderr(quiet) as progress:
        checkpoint = find_checkpoint(config.model, progress)
        progress.stage(f"loading {checkpoint.path.name}")

        def packing(done: int, total: int) -> None:
            if not done:  # what is refused, is refused before
                progress.stage(f"packing {checkpoint.path.name}")
            progress.advance(done, total)

        num_bytes = save_packed_model(checkpoint, config, output, packing)
    if json:
        print_json({"path": str(output), "model": str(checkpoint.path), "num_bytes": num_bytes})
    elif not quiet:
        echo(f"{output}: {size(num_bytes)}")
