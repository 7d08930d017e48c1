"""The facts in a model's files beside its weights: tokenizer, digests, the files, recommended sampling settings.

The tokenizer is the model's own, or another model's, which the setting `tokenizer` names.
"""

import logging
from collections.abc import Mapping
from typing import NamedTuple

from tokenmill.errors import CheckpointError, ConfigError
from tokenmill.hub.names import locate
from tokenmill.settings.engine_config import ResolvedConfig
from tokenmill.settings.recommended import Recommended
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.weights.checkpoint import Checkpoint, open_tokenizer
from tokenmill.weights.fingerprint import ModelFiles, fingerprint, is_full
from tokenmill.weights.generation import recommended
from tokenmill.weights.packed.model import PackedCheckpoint

log = logging.getLogger(__name__)


class ModelFacts(NamedTuple):
    """The facts. fingerprint: digests of the files, see weights/fingerprint.py. generation_defaults: sampling settings
    in the place of SamplingParams' own defaults.
    """

    tokenizer: Tokenizer | None
    fingerprint: Mapping[str, str]
    files: ModelFiles
    generation_defaults: Recommended


def read_facts(checkpoint: Checkpoint, config: ResolvedConfig, vocab_size: int) -> ModelFacts:
    """Read the facts once, before the weights, because the files may be replaced later."""
    return ModelFacts(
        find_tokenizer(checkpoint, config.tokenizer, vocab_size),
        _fingerprint(checkpoint, config),
        _files(checkpoint, config),
        recommended(checkpoint, config.generation_config),
    )


def find_tokenizer(checkpoint: Checkpoint, other: str | None, vocab_size: int) -> Tokenizer | None:
    """Read the tokenizer; None where the model has none. Warns of one with more tokens than the model."""
    packed = checkpoint if isinstance(checkpoint, PackedCheckpoint) else None
    if packed is not None and packed.is_copy:
        other = None  # the copy was made with that tokenizer
    tokenizer = _read_own(checkpoint) if other is None else _read_other(other)
    is_checked = packed is not None and other is None  # when it was packed
    if tokenizer is not None and not is_checked and tokenizer.num_tokens > vocab_size:
        message = "%s: the tokenizer has %d tokens and the model %d: a text with one of the others is refused"
        log.warning(message, other or checkpoint.path, tokenizer.num_tokens, vocab_size)
    return tokenizer


def _read_own(checkpoint: Checkpoint) -> Tokenizer | None:
    try:
        return checkpoint.tokenizer()
    except CheckpointError as error:
        if isinstance(checkpoint, PackedCheckpoint):
            raise
        raise CheckpointError(f"{error}; the setting tokenizer names another model whose tokenizer is taken") from None


def _read_other(name: str) -> Tokenizer:
    tokenizer = open_tokenizer(locate(name))
    if tokenizer is None:
        raise ConfigError("tokenizer", name, "a model with a tokenizer")
    return tokenizer


def _fingerprint(checkpoint: Checkpoint, config: ResolvedConfig) -> dict[str, str]:
    """Take the fingerprint; for a packed model, the fingerprint of the model of which it was made."""
    if not isinstance(checkpoint, PackedCheckpoint):
        return fingerprint(checkpoint.path, config.fingerprint)
    digests = dict(checkpoint.facts["fingerprint"])
    if config.fingerprint == "full" and not is_full(digests):
        raise ConfigError("fingerprint", "full", f"sampled, because {checkpoint.path} was made with that")
    return digests


def _files(checkpoint: Checkpoint, config: ResolvedConfig) -> ModelFiles:
    """Note the files of the model; for a packed model, the files of which it was made, if they are there."""
    path = checkpoint.path
    if isinstance(checkpoint, PackedCheckpoint) and not checkpoint.is_copy and (source := checkpoint.source).exists():
        path = source
    return ModelFiles(path, None if config.tokenizer is None else locate(config.tokenizer))
