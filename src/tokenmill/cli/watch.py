"""The tables of `--trace` and `--check-float32`, and the progress of long prompts, shown while steps run."""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING

from tokenmill.cli.models import load_engine
from tokenmill.cli.process.display import remark, shows_bars, table_text
from tokenmill.errors import ConfigError
from tokenmill.hub.progress import Progress
from tokenmill.settings.engine_config import EngineConfig

if TYPE_CHECKING:  # these import torch
    from tokenmill.engine.engine import Engine
    from tokenmill.measure.float32_check import TraceRow

HEADER = ("step", "sequence", "position", "fed", "without a cache", "chosen", "ms")


def load_reference(engine: "Engine", progress: Progress) -> "Engine":
    """Load the same model as plain float32 modules; a cache in small blocks, so that little is computed twice."""
    from tokenmill.quant.schemes import REFERENCE
    from tokenmill.weights.packed.reader import is_packed_model

    config = engine.config
    if is_packed_model(Path(config.model)):
        raise ConfigError(
            "--check-float32", True, "only with the model itself: a packed model cannot be read as float32"
        )
    plain = EngineConfig(
        model=config.model,
        program="eager",
        dtype="float32",
        scheme=REFERENCE,
        device=config.device,
        max_length=config.max_length,
        max_sequences=config.max_sequences,
        max_step_tokens=config.max_step_tokens,
        block_size=min(16, config.max_length or 16),
        threads=config.threads,
    )
    return load_engine(plain, progress)


@contextmanager
def prompt_progress(engine: "Engine", quiet: bool) -> Iterator[None]:
    """Show, on a terminal, how much of the prompts is computed inside, if that takes long."""
    if quiet or not shows_bars():
        yield
        return
    from tokenmill.cli.prompt_progress import PromptProgress

    observer = PromptProgress()
    with closing(observer), engine.core.observed_by(observer):
        yield


@contextmanager
def watched(engine: "Engine", trace: bool, reference: "Engine | None", json: bool) -> Iterator[None]:
    """Run the steps inside, then show the trace, the distance to the reference, or both."""
    if not trace and reference is None:
        yield
        return
    from tokenmill.measure.float32_check import checked, traced

    with ExitStack() as stack:
        rows = stack.enter_context(traced(engine)) if trace else []
        distance = None
        if reference is not None:
            distance = stack.enter_context(checked(engine, reference))
        yield
    if rows:
        remark("\n".join(dumps(asdict(row)) for row in rows) if json else _table(engine, rows))
    if distance is not None:
        remark(f"checked {distance}")


def _table(engine: "Engine", rows: list["TraceRow"]) -> str:
    def text(tokens: tuple[int, ...]) -> str:
        shown = engine.tokenizer.decode(tokens, skip_special=False) if engine.tokenizer else ""
        return " ".join(map(str, tokens)) + (f" {shown!r}" if shown else "")

    lines = [
        (
            *map(str, (row.step, row.sequence, row.position, row.fed, row.without_cache)),
            text(row.chosen),
            f"{row.milliseconds:.1f}",
        )
        for row in rows
    ]
    fed, without = sum(row.fed for row in rows), sum(row.without_cache for row in rows)
    lines.append(("", "", "", str(fed), str(without), f"{without / fed:.1f} times as many", ""))
    return table_text("", lines, HEADER)
