"""`tokenmill quantize`: a model with matrices in 4 or 8 bits, as a directory or a GGUF file."""

from pathlib import Path

from tokenmill.cli.models import find_checkpoint
from tokenmill.cli.parser.options import JSON, MODEL, MODEL_NAME, OUTPUT, QUIET, option
from tokenmill.cli.process.display import print_json, progress_on_stderr, say_on_stderr
from tokenmill.cli.prompts import read_text
from tokenmill.errors import ConfigError
from tokenmill.memory.interrupts import held_interrupts
from tokenmill.registry import EXPORTS, either, help_of
from tokenmill.value_reader import check_choice

EXAMPLES = (
    "tokenmill quantize Qwen/Qwen3-0.6B --algorithm gptq -o qwen3-q4",
    "tokenmill quantize Qwen/Qwen3-0.6B --algorithm importance --text book.txt --group 128 -o qwen3-q4-128",
    "tokenmill quantize Qwen/Qwen3-0.6B --algorithm gptq --group 128 --target-bits 4.5 -o qwen3-q4-mixed",
    "tokenmill quantize model-directory --scheme q8 --head none -o model-q8",
    "tokenmill quantize Qwen/Qwen3-0.6B --algorithm gptq --export gptq --group 128 -o qwen3-gptq",
    "tokenmill quantize Qwen/Qwen3-0.6B --export gguf -o qwen3-q4_1.gguf",
)
CALIBRATION = "Calibration"

OUTPUT_FILE = option(
    ..., "The new directory, in Hugging Face layout; with --export gguf the new file.", OUTPUT, "-o", metavar="PATH"
)
SCHEME_NAME = option(
    "q4", "How matrices are stored: q4 or q8; with --export gguf also none, as they are.", MODEL, metavar="NAME"
)
HEAD = option(
    None,
    "Scheme of a head that is not the embedding: q8, q4 or none. Default: q8; with --export gptq, none. "
    "With --export gguf also of an embedding that is the head, by default none.",
    MODEL,
    metavar="NAME",
)
_EXPORTS = ["tokenmill's own", *(f"{name} ({help_of(EXPORTS[name])})" for name in EXPORTS if name != "tokenmill")]
SYMMETRIC = option(
    False, "Exports only: codes of 4 bits without a zero or minimum of their own (in GGUF Q4_0, not Q4_1).", MODEL
)
ALGORITHM = option(
    "rtn",
    "rtn rounds each weight to the nearest level, in seconds; importance weights its error by the mean square "
    "of its input; gptq also compensates each rounding error in the weights after it. Both take minutes.",
    CALIBRATION,
    metavar="NAME",
)
TARGET_BITS = option(
    None,
    "Bits per weight of the matrices, with scales: the matrices whose rounding to 4 bits changes predictions most "
    "get 8 bits, as many as fit. With importance or gptq.",
    CALIBRATION,
    metavar="BITS",
)
TEXT_FILE = option(
    None,
    "Calibrate on this text, in UTF-8, and measure on its end. Default: on what the model itself writes.",
    CALIBRATION,
    metavar="FILE",
)
EVALUATE = option(
    None,
    "Compare with the source on text that was not calibrated on. Default: unless the algorithm is rtn.",
    CALIBRATION,
)


def command(
    model: str = MODEL_NAME,
    output: Path = OUTPUT_FILE,
    scheme: str = SCHEME_NAME,
    group: int = option(32, "Inputs that share a scale: 32, 64, 128 or 256.", MODEL),
    head: str | None = HEAD,
    export: str = option("tokenmill", f"The format: {either(_EXPORTS)}.", OUTPUT, metavar="NAME"),
    symmetric: bool = SYMMETRIC,
    algorithm: str = ALGORITHM,
    target_bits: float | None = TARGET_BITS,
    text: Path | None = TEXT_FILE,
    num_texts: int = option(32, "Calibration texts.", CALIBRATION, minimum=2, maximum=4096),
    text_length: int = option(512, "Tokens of each text.", CALIBRATION, minimum=16),
    seed: int = option(0, "Seed of the texts that the model writes.", CALIBRATION, minimum=0),
    evaluate: bool | None = EVALUATE,
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Round the matrices of a model to 4 or 8 bits and write them as a directory, or as a GGUF file.

    What is written is kept exactly when the model is loaded. Embeddings, norms and biases stay as they are. A
    calibration that is interrupted goes on when the same command is given again.
    """
    with held_interrupts():
        from tokenmill.calibrate.rounding import ALGORITHMS
        from tokenmill.cli.quantize.report import document, show
        from tokenmill.cli.quantize.run import TextSettings, quantize_and_compare
        from tokenmill.weights.write.export import find_export

    check_choice("algorithm", algorithm, ALGORITHMS)
    if target_bits is not None and algorithm == "rtn":
        raise ConfigError(
            "target_bits", target_bits, f"only with algorithm {' or '.join(ALGORITHMS[1:])}, which measure"
        )
    find_export(export).check_output(output)
    if not quiet:
        say_on_stderr()
    written = None if text is None else read_text(text)
    texts = TextSettings(model, None if text is None else str(text), written, num_texts, text_length, seed)
    settings = {"scheme": scheme, "group": group, "head": head, "export": export, "symmetric": symmetric}
    settings |= {} if target_bits is None else {"target_bits": target_bits}
    with progress_on_stderr(quiet) as progress:
        checkpoint = find_checkpoint(model, progress)
        wanted = algorithm != "rtn" if evaluate is None else evaluate
        report = quantize_and_compare(checkpoint, output, progress, algorithm, texts, wanted, settings)
    if json:
        print_json(document(report))
    else:
        show(report)
