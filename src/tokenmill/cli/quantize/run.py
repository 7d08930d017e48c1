"""The run of `tokenmill quantize` once its options are read: quantise, then compare with the source."""

import time
from pathlib import Path
from typing import Any

from tokenmill.calibrate.run import quantize_calibrated
from tokenmill.cli.process.display import remark
from tokenmill.cli.quantize.report import Report
from tokenmill.cli.quantize.texts import TextSettings, compare_with_source, held_out
from tokenmill.hub.progress import Progress
from tokenmill.measure.memory import peak_bytes
from tokenmill.weights.checkpoint import Checkpoint
from tokenmill.weights.write.quantize import quantize


def quantize_and_compare(
    checkpoint: Checkpoint,
    output: Path,
    progress: Progress,
    algorithm: str,
    texts: TextSettings,
    evaluated: bool,
    settings: dict[str, Any],
) -> Report:
    """evaluated: whether what was written is compared with the checkpoint. settings: of weights.write.quantize."""
    started_s = time.perf_counter()
    texts.fit(checkpoint)
    if "stored_as_codes" in checkpoint.config:
        remark(f"{texts.model} is quantised already: rounding its codes again loses more than rounding their source")
    report = Report(texts.model, output, algorithm, settings)
    if algorithm == "rtn":
        report.kinds = quantize(checkpoint, output, progress, **settings)
        kept = {}
    else:
        made = lambda: texts.make(checkpoint, progress, evaluated)  # noqa: E731
        found = quantize_calibrated(checkpoint, output, progress, algorithm, made, texts.described, **settings)
        report.kinds, report.changes, kept = found.kinds, found.changes, dict(found.texts)
    report.seconds, report.peak_bytes = time.perf_counter() - started_s, peak_bytes()
    if evaluated:
        try:
            text = kept.get("held out") or held_out(texts, checkpoint, progress)
            report.comparison, report.measured_on = compare_with_source(checkpoint, output, text, progress), text
        except KeyboardInterrupt:
            remark(f"{output} is complete; only its comparison with the source was interrupted")
            raise
    return report
