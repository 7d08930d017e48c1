"""`tokenmill compile`: an AOT package, a directory with a model's layers compiled ahead of time."""

from dataclasses import replace
from pathlib import Path

from tokenmill.cli.models import find_checkpoint
from tokenmill.cli.parser.options import JSON, MODEL_NAME, OUTPUT, QUIET, option
from tokenmill.cli.process.display import echo, print_json, progress_on_stderr
from tokenmill.memory.interrupts import held_interrupts
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.units import size

EXAMPLES = (
    "tokenmill compile smollm2-135m -o smollm2.aot",
    'tokenmill generate smollm2-135m --aot-package smollm2.aot -p "Hello"',
    "tokenmill compile smollm2-135m --compile-phases both --cache-format int8 -o smollm2-int8.aot",
)
ONLY = ("dtype", "scheme", "cache_format", "compile_phases", "device")


def command(
    engine: EngineConfig,
    model: str = MODEL_NAME,
    output: Path = option(..., "The new directory.", OUTPUT, "-o", metavar="DIR"),
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Write an AOT package: a directory of compiled code, which later runs need no compiler for.

    The directory is given as --aot-package beside the model, whose weights stay where they are. It is refused when the
    model, a setting, the processor or torch differs. It is machine code: use only packages that you made.
    """
    with held_interrupts():
        from tokenmill.loader.compile import save_aot_package
        from tokenmill.program.aot.manifest import check_folder

    check_folder(output)
    with progress_on_stderr(quiet) as progress:
        checkpoint = find_checkpoint(model, progress)
        num_bytes = save_aot_package(checkpoint, replace(engine, model=model), output, progress)
    if json:
        print_json({"path": str(output), "model": str(checkpoint.path), "num_bytes": num_bytes})
    elif not quiet:
        echo(f"{output}: {size(num_bytes)}")
