"""The tokenizer of a model: its own, or that of another model, which the setting `tokenizer` names."""

import logging

from tokenmill.errors import CheckpointError, ConfigError
from tokenmill.hub.names import locate
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.weights.checkpoint import Checkpoint, open_tokenizer
from tokenmill.weights.packed.model import PackedCheckpoint

log = logging.getLogger(__name__)


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
