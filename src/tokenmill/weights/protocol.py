"""What the loader needs of a model on disk, whatever kind of file it is."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from tokenmill.quant.stored import Stored
from tokenmill.text.tokenizer import Tokenizer

__all__ = ["Checkpoint"]


class Checkpoint(Protocol):
    """A model on disk, open for reading."""

    path: Path
    config: dict[str, Any]
    shapes: Mapping[str, tuple[int, ...]]
    """Every tensor's name (Hugging Face's) and shape."""
    num_bytes: int
    """Size of the tensors on disk."""
    rounded: str
    """What `read_codes` rounds again, in a sentence; empty where it gives everything as it is stored."""

    def read(self, name: str) -> Tensor:
        """One tensor, in the file's own floating type (quantised ones dequantised to float32)."""

    def read_codes(self, name: str) -> Stored | None:
        """One matrix as the file's own codes, [outputs, inputs] even where `read` gives it the other way round.

        None if it is stored in floating point, or as codes that are not kept.
        """

    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer that travels with the model, if one does."""

    def generation_defaults(self) -> dict[str, Any]:
        """The sampling settings that the model's files recommend, by their names in SamplingParams."""
