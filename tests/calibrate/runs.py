"""Calibrations of tiny models, for the tests of this folder."""

import torch
import transformers

from tests.tiny_models import VOCABULARY, prompt
from tokenmill.calibrate.run import quantize_calibrated
from tokenmill.calibrate.texts import Texts
from tokenmill.hub.progress import Progress, Silent
from tokenmill.weights.checkpoint import open_checkpoint

TEXTS = [prompt(24, seed) for seed in range(4)]


def calibrated(source, out, progress=None, algorithm="gptq", texts=TEXTS, described=None, **settings):
    get_texts = lambda: {"calibration": Texts(texts, "given")}  # noqa: E731
    progress = progress or Silent()
    return quantize_calibrated(
        open_checkpoint(source), out, progress, algorithm, get_texts, described or {"seed": 0}, **settings
    )


class Stopped(Progress):
    """Ctrl-C when so much of a stage is done, by default of the first."""

    def __init__(self, share: float, stage: int = 1) -> None:
        self.share, self.left = share, stage

    def stage(self, what: str) -> None:
        self.left -= 1

    def advance(self, done: int, total: int) -> None:
        if self.left <= 0 and done >= self.share * total:
            raise KeyboardInterrupt


def entries(directory):
    return sorted(file.name for file in directory.iterdir())


def contents(directory):
    return {file.name: file.read_bytes() for file in directory.iterdir()}


def save_wide(models):
    """Groups of 32 divide all of its matrices, as GPTQ asks."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(vocab_size=VOCABULARY, num_hidden_layers=2, bos_token_id=None, **sizes)
    path = models / "wide"
    transformers.LlamaForCausalLM(config).float().save_pretrained(path)
    return path
