"""`tokenmill merge`: a model with an adapter (LoRA) in its weights, written as a new directory."""

from pathlib import Path

from tokenmill.cli.models import find_checkpoint
from tokenmill.cli.parser.options import JSON, MODEL, OUTPUT, QUIET, argument, option
from tokenmill.cli.process.display import echo, print_json, progress_on_stderr
from tokenmill.memory.interrupts import held_interrupts

EXAMPLES = (
    "tokenmill merge Qwen/Qwen3-0.6B my-adapter -o qwen3-mine",
    "tokenmill merge qwen3-0.6b my-adapter.gguf -o qwen3-mine --dtype bfloat16",
    "tokenmill quantize qwen3-mine --algorithm gptq -o qwen3-mine-q4",
)


def command(
    model: str = argument(..., "MODEL", "As everywhere: a directory, .gguf file, short name or hub name.", MODEL),
    adapter: Path = argument(..., "ADAPTER", "A directory of PEFT, or a GGUF file of llama.cpp.", MODEL),
    output: Path = option(..., "The new directory, in Hugging Face layout.", OUTPUT, "-o", metavar="DIR"),
    dtype: str = option("auto", "Of the weights that are written: float32, bfloat16 or float16.", MODEL),
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Write a model with the changes of an adapter (LoRA) in its weights.

    The result is a model like any other: quantize and pack take it. An adapter can also be loaded beside its model, by
    --adapter, without a copy of the weights.
    """
    with held_interrupts():
        from tokenmill.weights.write.merge import merge

    with progress_on_stderr(quiet) as progress:
        checkpoint = find_checkpoint(model, progress)
        path = merge(checkpoint, adapter, output, dtype, progress)
    if json:
        print_json({"path": str(path), "model": str(checkpoint.path), "adapter": str(adapter)})
    elif not quiet:
        echo(f"{path}: {checkpoint.path.name} with {adapter.name}")
