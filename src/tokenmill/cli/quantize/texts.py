"""The texts that `tokenmill quantize` calibrates with and measures on."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

from tokenmill.calibrate.texts import Texts, cut_text, written_texts
from tokenmill.cli.eval.perplexity import load_to_read
from tokenmill.engine.engine import Engine
from tokenmill.errors import RequestError
from tokenmill.hub.progress import Progress
from tokenmill.measure.perplexity import Comparison, compare
from tokenmill.model.families import read_config
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.weights.checkpoint import Checkpoint, open_checkpoint

HELD_OUT = 4  # texts
HELD_OUT_SEED = 1_000_000  # further on than those of any calibration text
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
        """Texts are no longer than the model's context."""
        self.length = min(self.length, read_config(checkpoint.config).context)

    @property
    def described(self) -> dict[str, Any]:
        """All that decides the texts."""
        digest = None if self.written is None else sha256(self.written.encode()).hexdigest()[:16]
        return {"text": digest, "num_texts": self.count, "text_length": self.length, "seed": self.seed}

    def make(self, checkpoint: Checkpoint, progress: Progress, measured: bool) -> Mapping[str, Texts]:
        """The texts to calibrate with, and those that are measured on, if anything is."""
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
    """The texts that are measured on, without any for calibration."""
    if settings.written is not None:
        return settings.make(checkpoint, progress, True)["held out"]
    with _engine(checkpoint, settings.length, progress, WRITES_IN) as engine:
        progress.stage(f"{settings.model} writes texts to measure on")
        return written_texts(engine, HELD_OUT, settings.length, settings.seed + HELD_OUT_SEED, progress)


def compare_with_source(checkpoint: Checkpoint, output: Path, texts: Texts, progress: Progress) -> Comparison:
    """The comparison of what was written with its source, each text by itself."""
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
