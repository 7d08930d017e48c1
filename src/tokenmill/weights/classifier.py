"""The head of a model that scores texts: matrices over one pooled row.

Each family has its own: a pooler and a classifier (BERT), two matrices of the classifier (RoBERTa, EuroBERT), one with
a norm behind it (ModernBERT), or one matrix over the row of the last token (decoders). The last matrix has a row for
each label; a reranker has one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tokenmill.errors import CheckpointError
from tokenmill.model.families import find_family
from tokenmill.registry import CHECKPOINT_CHECKS, lookup
from tokenmill.text.tokenizer import read_json
from tokenmill.value_reader import ValueReader
from tokenmill.weights.dense_step import DenseStep, Floats, activation_of
from tokenmill.weights.file_kind import DIRECTORY, PACKED, file_kind
from tokenmill.weights.files import weight_files
from tokenmill.weights.plain import PlainCheckpoint
from tokenmill.weights.tied import is_classifier

Step = Callable[[Floats], Floats]
_OF_BERT = (("pooler.dense", "Tanh"), ("classifier", "Identity"))
_OF_ROBERTA = (("classifier.dense", "Tanh"), ("classifier.out_proj", "Identity"))
_FORMS = {
    "bert": _OF_BERT,
    "nomic_bert": _OF_BERT,
    "roberta": _OF_ROBERTA,
    "xlm-roberta": _OF_ROBERTA,
    "camembert": _OF_ROBERTA,
    "mpnet": _OF_ROBERTA,
    "distilbert": (("pre_classifier", "ReLU"), ("classifier", "Identity")),
    "eurobert": (("dense", "GELU"), ("classifier", "Identity")),
    "modernbert": (("head.dense", "GELU"), ("head.norm", ""), ("classifier", "Identity")),
}
"""The matrices of a family's head, with what follows each; without that it is a norm."""
_OF_DECODERS = (("score", "Identity"),)


@dataclass(frozen=True)
class Classifier:
    """pooling: of which row the steps are computed. row_steps: are computed of each row before it is pooled.
    activation: of the score, as sentence-transformers applies it.
    """

    pooling: str
    steps: tuple[Step, ...]
    num_labels: int
    activation: str
    row_steps: tuple[Step, ...] = ()


@dataclass(frozen=True)
class _NormStep:
    weight: Floats
    bias: Floats | None
    eps: float

    def __call__(self, x: Floats) -> Floats:
        bias = None if self.bias is None else torch.from_numpy(self.bias)
        normed = torch.nn.functional.layer_norm(
            torch.from_numpy(x), x.shape, torch.from_numpy(self.weight), bias, self.eps
        )
        return np.asarray(normed.numpy(), np.float32)


def classifier_of(path: Path) -> Classifier | None:
    """Read the head; None for a model without one. CheckpointError where a tensor of it is missing."""
    kind = file_kind(path)
    if kind not in (DIRECTORY, PACKED):
        return _of_gguf(path)
    if kind == PACKED or not is_classifier(config := read_json(path / "config.json")):
        return None
    reader = ValueReader(config, str(path / "config.json"), CheckpointError)
    family, checkpoint = find_family(config), PlainCheckpoint(path, config, weight_files(path))
    name = reader.text("model_type")
    form = _FORMS.get(name, _OF_DECODERS)
    pooling, is_late = _pooling(reader, name) if name in _FORMS else ("last", False)
    if name == "modernbert":
        reader.expect("classifier_activation", "gelu")
    eps = reader.number("norm_eps", 1e-5)
    steps = [
        _step(checkpoint.path, part, _tensors(checkpoint, family.prefix, part), activation, eps)
        for part, activation in form
    ]
    first = len(steps) - 1 if is_late else 0
    return Classifier(pooling, tuple(steps[first:]), _num_labels(steps), _activation(reader), tuple(steps[:first]))


def _pooling(reader: ValueReader, name: str) -> tuple[str, bool]:
    """Read the pooling before an encoder's head, and whether it is late: the mean of EuroBERT's scores, one for each
    token. Here the mean is taken before the last matrix, which comes to the same.
    """
    if name != "eurobert":
        return reader.expect("classifier_pooling", "cls", "mean"), False
    found = reader.expect("classifier_pooling", "late", "bos", "mean")
    reader.expect("clf_pooling", found)  # its name in the code that was published first
    return {"bos": "cls"}.get(found, "mean"), found == "late"


def _of_gguf(path: Path) -> Classifier | None:
    """Read the head of a GGUF file, whose norm has llama.cpp's epsilon and whose score goes through a sigmoid."""
    if (found := lookup(CHECKPOINT_CHECKS, "classifier", "reader")(path)) is None:
        return None
    pooling, form, tensors = found
    steps = []
    for part, activation in form:
        own = {kind: tensors[name] for kind in ("weight", "bias") if (name := f"{part}.{kind}") in tensors}
        steps.append(_step(path, part, own, activation, 1e-5))
    return Classifier(pooling, tuple(steps), _num_labels(steps), "Sigmoid")


def _num_labels(steps: Sequence[Step]) -> int:
    assert isinstance(steps[-1], DenseStep), "a classifier ends with a matrix"
    return len(steps[-1].weight)


def _tensors(checkpoint: PlainCheckpoint, prefix: str, part: str) -> dict[str, Floats]:
    return {
        kind: checkpoint.read(name).float().numpy()
        for kind in ("weight", "bias")
        for name in (f"{part}.{kind}", f"{prefix}{part}.{kind}")
        if name in checkpoint.shapes
    }


def _step(path: Path, part: str, found: Mapping[str, Floats], activation: str, eps: float) -> Step:
    if "weight" not in found:
        raise CheckpointError(f"{path} lacks a tensor of its classifier", missing=[f"{part}.weight"])
    if activation:
        return DenseStep(found["weight"], found.get("bias"), activation)
    return _NormStep(found["weight"], found.get("bias"), eps)


def _activation(reader: ValueReader) -> str:
    """Read what sentence-transformers applies to a score: a sigmoid, where the config says nothing."""
    name = reader.take("sbert_ce_default_activation_function", None)
    name = reader.inside("sentence_transformers").take("activation_fn", name)
    return "Sigmoid" if name is None else activation_of(reader, "sentence_transformers", name)
