"""The run of `tokenmill quantize` once its options are read: texts to calibrate with and to measure on, quantising,
and the comparison with the source.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

from tokenmill.calibrate.run import quantize_calibrated
from tokenmill.calibrate.texts import Texts, cut_text, written_texts
from tokenmill.cli.eval.perplexity import load_to_read
from tokenmill.cli.process.display import remark
from tokenmill.cli.quantize.report import Report
from tokenmill.engine.engine import Engine
from tokenmill.errors import RequestError
from tokenmill.hub.progress import Progress
from tokenmill.measure.memory import peak_bytes
from tokenmill.measure.perplexity import Comparison, compare
from tokenmill.model.families import read_config
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.weights.checkpoint import Checkpoint, open_checkpoint
from tokenmill.weights.write.quantize import quantize

HELD_OUT = 4  # texts
HELD_OUT_SEED = 1_000_000  # above the seed of any calibration text
AT_ONCE = 16  # texts that the model writes together
WRITES_IN = "q8"  # weights of 8 bits write as well, several times as fast, and take half the memory


@dataclass
class TextSettings:
    """The values of --text, --num-texts, --text-length and --seed. written: the contents of the file."""

    model: str
    file: str | None
    written: str | None
    count: int
    length: int
    seed: int

    def fit(self, checkpoint: Checkpoint) -> None:
        """Cut the length of texts to the model's context."""
        self.length = min(self.length, read_config(checkpoint.config).context)

    @property
    def described(self) -> dict[str, Any]:
        """All settings that decide the texts."""
        digest = None if self.written is None else sha256(self.written.encode()).hexdigest()[:16]
        return {"text": digest, "num_texts": self.count, "text_length": self.length, "seed": self.seed}

    def make(self, checkpoint: Checkpoint, progress: Progress, measured: bool) -> Mapping[str, Texts]:
        """Make the texts to calibrate with, and if `measured` the texts to measure on."""
        if self.written is not None:
            return self._cut(checkpoint)
        with _engine(checkpoint, self.length, progress, WRITES_IN) as engine:
            progress.stage(f"{self.model} writes {self.count} texts of {self.length} tokens to calibrate with")
            calibration = written_texts(engine, self.count, self.length, self.seed, progress)
            if not measured:
                return {"calibration": calibration}
            progress.stage("it writes others to measure on")
            held_out = written_texts(engine, HELD_OUT, self.length, self.seed + HELD_OUT_SEED, progress)
        return {"calibration": calibration, "held out": held_out}

    def _cut(self, checkpoint: Checkpoint) -> Mapping[str, Texts]:
        tokenizer = checkpoint.tokenizer()
        if tokenizer is None:
            raise RequestError(f"{self.model} has no tokenizer, which --text needs; without it the model writes texts")
        assert self.written is not None and self.file is not None
        calibration, ends = cut_text(self.written, self.file, tokenizer, self.count, self.length, HELD_OUT)
        return {"calibration": calibration, "held out": ends}


def held_out(settings: TextSettings, checkpoint: Checkpoint, progress: Progress) -> Texts:
    """Make the texts to measure on, without any for calibration."""
    if settings.written is not None:
        return settings.make(checkpoint, progress, True)["held out"]
    with _engine(checkpoint, settings.length, progress, WRITES_IN) as engine:
        progress.stage(f"{settings.model} writes texts to measure on")
        return written_texts(engine, HELD_OUT, settings.length, settings.seed + HELD_OUT_SEED, progress)


def compare_with_source(checkpoint: Checkpoint, output: Path, texts: Texts, progress: Progress) -> Comparison:
    """Compare what was written with its source, each text by itself."""
    length = len(texts.tokens[0])
    tokens = list(chain.from_iterable(texts.tokens))
    with _engine(checkpoint, length, progress) as source, _engine(open_checkpoint(output), length, progress) as ours:
        progress.stage(f"comparing on {len(tokens):,} tokens {texts.origin}")
        return compare(ours, source, tokens, length, length, progress)


def _engine(checkpoint: Checkpoint, length: int, progress: Progress, scheme: str = "auto") -> Engine:
    config = EngineConfig(
        model=str(checkpoint.path),
        scheme=scheme,
        max_length=length,
        max_sequences=AT_ONCE,
        prefix_cache=False,
        packed_cache=False,
    )
    return load_to_read(checkpoint, config, progress)


def quantize_and_compare(
    checkpoint: Checkpoint,
    output: Path,
    progress: Progress,
    algorithm: str,
    texts: TextSettings,
    evaluated: bool,
    settings: dict[str, Any],
) -> Report:
    """Quantise, and with `evaluated` compare the result with the checkpoint. settings: of `quantize`."""
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
