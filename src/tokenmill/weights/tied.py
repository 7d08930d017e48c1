"""The head and the embedding of a directory whose config and tensors disagree on whether they are one matrix.

As in transformers (`PreTrainedModel.tie_weights`), a single tensor of a tied model serves as both, and two tensors are
one matrix only where their values are equal.
"""

import logging
from collections.abc import Mapping
from typing import Any

from tokenmill.model.config import ModelConfig
from tokenmill.model.families import HEADLESS, read_config
from tokenmill.weights.names import name_of
from tokenmill.weights.plain import Checkpoint, PlainCheckpoint
from tokenmill.weights.pooling import has_modules

log = logging.getLogger(__name__)

ROWS = 4096  # compared at a time, so that temporaries stay small
CASTS = {"float32": "float", "float16": "half", "bfloat16": "bfloat16"}  # dtype → the method of a tensor that casts


def name_tied_embedding(checkpoint: PlainCheckpoint) -> None:
    """Show the head of a tied model as its embedding, where the files hold the head alone."""
    if not read_config(checkpoint.config).tie_embeddings:
        return
    embedding, head = _names(checkpoint)
    if embedding is None and head is not None:
        family = checkpoint.family
        short = next(name for name, target in family.names.items() if target == "embedding.weight")
        checkpoint.rename(head, family.prefix + short)


def is_classifier(config: Mapping[str, Any]) -> bool:
    """Say whether a config.json is of a model that was saved with a head which labels texts."""
    classes = config.get("architectures")
    return isinstance(classes, list) and bool(classes) and str(classes[0]).endswith("ForSequenceClassification")


def note_missing_head(checkpoint: PlainCheckpoint) -> None:
    """Take a model that was saved for vectors of texts as one without a head, whose place the embedding takes."""
    classes = checkpoint.config.get("architectures")
    if is_classifier(checkpoint.config):  # see classifier.py, which reads its matrices
        checkpoint.leave_out([name for name in checkpoint.shapes if name == "score.weight"])
        checkpoint.config |= {HEADLESS: True}
        return
    has_no_head_class = isinstance(classes, list) and bool(classes) and str(classes[0]).endswith("Model")
    if not (has_no_head_class or has_modules(checkpoint.path)) or read_config(checkpoint.config).tie_embeddings:
        return
    heads = {name.removesuffix("weight") for name, goal in checkpoint.family.names.items() if goal == "head.weight"}
    has_head = any(name.removeprefix(checkpoint.family.prefix).startswith(tuple(heads)) for name in checkpoint.shapes)
    if not has_head and _names(checkpoint)[0] is not None:  # a head of codes has other names than "weight"
        checkpoint.config |= {"tie_word_embeddings": True, HEADLESS: True}


def compare_tied_head(checkpoint: Checkpoint) -> None:
    """Leave out the head of a tied model where it equals the embedding; else the model is not tied, with a warning."""
    model = read_config(checkpoint.config)
    embedding, head = _names(checkpoint)
    if not model.tie_embeddings or embedding is None or head is None:
        return
    if _equal(checkpoint, model, embedding, head):
        checkpoint.shapes = {name: shape for name, shape in checkpoint.shapes.items() if name != head}
        return
    log.warning(
        "%s: config.json ties the head to the embedding, but %s and %s differ, so both are used; "
        '"tie_word_embeddings": false would say so',
        checkpoint.path,
        head,
        embedding,
    )
    checkpoint.config["tie_word_embeddings"] = False


def _names(checkpoint: Checkpoint) -> tuple[str | None, str | None]:
    return name_of(checkpoint, "embedding.weight"), name_of(checkpoint, "head.weight")


def _equal(checkpoint: Checkpoint, model: ModelConfig, one: str, other: str) -> bool:
    """Tell whether two matrices have the same values, in the model's own type where their types differ."""
    if checkpoint.shapes[one] != checkpoint.shapes[other]:
        return False
    if checkpoint.dtype_of(one) == checkpoint.dtype_of(other):
        first, second = checkpoint.stored_bytes(one), checkpoint.stored_bytes(other)
        if first is not None and second is not None:
            return all(piece == piece_of_other for piece, piece_of_other in zip(first, second, strict=True))
        return checkpoint.read(one).equal(checkpoint.read(other))
    cast = CASTS[model.dtype]
    first_RK, second_RK = checkpoint.read(one), checkpoint.read(other)
    parts = (slice(at, at + ROWS) for at in range(0, len(first_RK), ROWS))
    return all(getattr(first_RK[rows], cast)().equal(getattr(second_RK[rows], cast)()) for rows in parts)
