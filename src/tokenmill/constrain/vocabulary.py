"""The vocabulary of a model for llguidance: the bytes of each token, with 0xFF before those of control tokens.

Control tokens begin with the byte 0xFF, which is in no text, so that no grammar of letters admits them; a grammar names
one by its id, `<[42]>`. A model whose logits are wider than its tokenizer has tokens of no bytes there, which are never
admitted.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import llguidance
import numpy as np
from llguidance import LLTokenizer
from numpy.typing import NDArray

from tokenmill.text.backend import for_continuation, with_names
from tokenmill.text.token_bytes import bytes_of_each
from tokenmill.text.tokenizer import Tokenizer

CONTROL = b"\xff"
BITS = 32  # of a word of a mask
SPELLINGS = 4096  # kept, because a grammar demands the same bytes again and again


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """See `vocabulary_of`, which makes one for each model.

    size: the number of logits. ends: ids that end a text; one after the last token stands for them where a model has
    none. control: spelling → id of control tokens. spelled: the bytes of each token. ids: bytes → the first such token.
    """

    tokens: LLTokenizer
    size: int
    ends: tuple[int, ...]
    control: dict[str, int]
    spelled: Sequence[bytes] = field(repr=False)
    ids: Mapping[bytes, int] = field(repr=False)

    @cached_property
    def words(self) -> int:
        """Words of 32 bits in the mask of one position."""
        return -(-int(self.tokens.vocab_size) // BITS)

    def num_bytes(self, token: int) -> int:
        """The length of what a token spells."""
        return int(self._lengths[token])

    def begin_alike(self, words_W: NDArray[np.int32]) -> int | None:
        """The shortest token of a mask, if all that it admits begin with one byte; None otherwise, or for no tokens."""
        place = int((words_W != 0).argmax())
        if not (word := int(words_W[place])):
            return None
        first = int(self._first_bytes[BITS * place + (word & -word).bit_length() - 1])
        others_W, alone = self._others[first]
        if (words_W & others_W).any():
            return None
        if alone is not None and int(words_W[alone // BITS]) >> alone % BITS & 1:
            return alone
        admitted = np.flatnonzero(np.unpackbits(words_W.view(np.uint8), bitorder="little"))
        return int(admitted[self._lengths[admitted].argmin()])

    @cached_property
    def _first_bytes(self) -> NDArray[np.int16]:
        """The first byte of each token; -1 where there is none."""
        return np.array([raw[0] if raw else -1 for raw in self.spelled], dtype=np.int16)

    @cached_property
    def _lengths(self) -> NDArray[np.int32]:
        return np.array([len(raw) for raw in self.spelled], dtype=np.int32)

    @cached_property
    def _others(self) -> list[tuple[NDArray[np.int32], int | None]]:
        """For each byte, the mask of the tokens that do not begin with it, and the token of this byte alone; at the end
        for no bytes.
        """
        bits_BV = np.ones((257, BITS * self.words), dtype=np.bool_)
        bits_BV[self._first_bytes, np.arange(len(self._first_bytes))] = False
        alone = {int(self._first_bytes[token]): int(token) for token in np.flatnonzero(self._lengths == 1)[::-1]}
        others_BW = np.packbits(bits_BV, axis=-1, bitorder="little").view(np.int32)
        return [(words_W, alone.get(byte)) for byte, words_W in enumerate(others_BW)]


def vocabulary_of(tokenizer: Tokenizer, size: int, ends: Iterable[int] = ()) -> Vocabulary:
    """The vocabulary of a model of `size` logits. It takes about a second for a large one, so it is made once."""
    ends = tuple(number for number in ends if 0 <= number < size)
    words = _Words(tokenizer, size, ends)
    made = LLTokenizer(llguidance.TokenizerWrapper(words), eos_token=list(ends or (size,)))
    control = {spelling: number for spelling, number in tokenizer.control_ids.items() if number < size}
    return Vocabulary(made, size, ends or (size,), control, words.tokens, words.ids)


class _Words:
    """A tokenizer by the interface of llguidance, which calls it to spell bytes that must come as tokens."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, size: int, ends: tuple[int, ...]) -> None:
        self._tokenizer = tokenizer
        self._control = {*tokenizer.special_ids, *tokenizer.control_ids.values(), *ends}
        read = bytes_of_each(tokenizer, range(size))
        self.tokens = [self._marked(number, raw) if number in self._control else raw for number, raw in enumerate(read)]
        self.special_token_ids = sorted(number for number in self._control if number < size)
        self.eos_token_id = (*ends, size)[0]
        if not ends:
            self.tokens.append(CONTROL + b"<end>")
            self.special_token_ids.append(size)
        spelled = self.ids = dict[bytes, int]()
        for number, raw in enumerate(self.tokens):
            spelled.setdefault(raw, number)
        self._spell = lru_cache(SPELLINGS)(self._spelled)

    @staticmethod
    def _marked(number: int, raw: bytes) -> bytes:
        return CONTROL + (raw or b"<%d>" % number)

    @cached_property
    def _letters(self):  # type: ignore[no-untyped-def]
        """The backend without names of control tokens, so that letters stay letters."""
        return with_names(for_continuation(self._tokenizer.backend), self._names)

    @cached_property
    def _names(self) -> dict[str, str]:
        """Names of control tokens that no text has."""
        return {spelling: f"\0{number}\0" for spelling, number in self._tokenizer.control_ids.items()}

    @cached_property
    def _added(self) -> dict[int, int]:
        """Added tokens by their ids in `_letters`, where those of renamed ones move the others."""
        added = self._tokenizer.backend.get_added_tokens_decoder().items()
        return {
            self._letters.token_to_id(self._names.get(token.content, token.content)): number for number, token in added
        }

    def __call__(self, raw: bytes) -> Sequence[int]:
        """The tokens of a text, whose bytes are exactly these; none where the model cannot spell them."""
        return self._spell(bytes(raw))

    def _spelled(self, raw: bytes) -> list[int]:
        try:
            return self._encode(raw.decode())
        except (UnicodeDecodeError, KeyError):
            return []

    def _encode(self, text: str) -> list[int]:
        found = [self._added.get(number, number) for number in self._letters.encode(text, add_special_tokens=False).ids]
        is_exact = all(number < len(self.tokens) for number in found)
        if is_exact and b"".join(self.tokens[number] for number in found) == text.encode():
            return found
        if len(text) > 1:
            half = len(text) // 2
            return self._encode(text[:half]) + self._encode(text[half:])
        raw = text.encode()
        return [self.ids[raw]] if raw in self.ids else [self.ids[bytes([byte])] for byte in raw]
