"""The port Matcher: the questions of the loop to a constraint on texts, and to the matcher of one text; constrain/
answers them."""

from collections.abc import Container, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tokenmill.errors import RequestError

Words = NDArray[np.int32]
"""A mask of one position: bit i of word w is 1 if the token 32 w + i may come."""


class MaskRows(NamedTuple):
    """Masks of positions one after the other. address: of the first mask; each follows the one before it."""

    words: list[Words]
    address: int


class ForcedTokens(NamedTuple):
    """Tokens that must come next. num_certain: a mask admits nothing else in the places of the first so many. The end
    of the text may follow them, where nothing else may come.
    """

    tokens: list[int]
    num_certain: int


class Matcher(Protocol):
    """The state of a constraint after some tokens of one text. tokens: the tokens that it has followed. ends: the
    tokens that end the text. num_words: words of a mask. error: the reason why no token may come, where a limit is
    reached.
    """

    tokens: list[int]
    ends: tuple[int, ...]

    @property
    def num_words(self) -> int: ...
    @property
    def error(self) -> RequestError | None: ...
    @property
    def has_ended(self) -> bool:
        """Say whether the text is complete: nothing may follow but its end."""

    def follow(self, tokens: Sequence[int]) -> int:
        """Go on, or back, to the state after these tokens or as many as fit; return their number."""

    def accept(self, tokens: Sequence[int]) -> int:
        """Go on by these tokens, or as many as fit; return their number."""

    def num_fitting(self, tokens: Sequence[int]) -> int:
        """Count how many of these tokens could come next, one after the other, without moving."""

    def masks(self, rows: MaskRows, drafts: Sequence[int], first: int) -> list[RequestError | None]:
        """Fill the masks after the first so many drafts, and after each of the others; return each row's error."""

    def forced(self, limit: int) -> ForcedTokens:
        """Find at most `limit` tokens that must come next."""


class Constraint(Protocol):
    """A constraint on the texts of a request. warnings: parts of it that have no effect."""

    warnings: tuple[str, ...]

    def matcher(self, stop_ids: Container[int] | None = None) -> Matcher:
        """Make the matcher of a text without tokens. stop_ids: its end tokens; None: all end tokens of the model."""
