"""The vocabulary of a model for llguidance: the bytes of each token; the bytes of a control token begin with 0xFF.

0xFF is in no text, so that no grammar of letters admits a control token; a grammar names it by its id, `<[42]>`. A
model whose logits are wider than its tokenizer has tokens of no bytes there, which are never admitted.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import llguidance
from llguidance import LLTokenizer

from tokenmill.sample.masks import BITS
from tokenmill.text.backend import for_continuation, with_names
from tokenmill.text.token_bytes import bytes_of_each
from tokenmill.text.tokenizer import Tokenizer

CONTROL = b"\xff"
SPELLINGS = 4096  # kept, because a grammar demands the same bytes again and again


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The vocabulary of one model; see `vocabulary_of`.

    size: the number of logits. ends: ids that end a text; one after the last token stands for them where a model has
    none. control: spelling → id of control tokens. spelled: the bytes of each token.
    """

    tokens: LLTokenizer
    size: int
    ends: tuple[int, ...]
    control: dict[str, int]
    spelled: Sequence[bytes] = field(repr=False)

    @cached_property
    def words(self) -> int:
        """Words of 32 bits in the mask of one position."""
        return -(-int(self.tokens.vocab_size) // BITS)


def vocabulary_of(tokenizer: Tokenizer, size: int, ends: Iterable[int] = ()) -> Vocabulary:
    """Make the vocabulary of a model of `size` logits. It takes about a second for a large one, so it is made once."""
    ends = tuple(number for number in ends if 0 <= number < size)
    words = _Words(tokenizer, size, ends)
    made = LLTokenizer(llguidance.TokenizerWrapper(words), eos_token=list(ends or (size,)))
    control = {spelling: number for spelling, number in tokenizer.control_ids.items() if number < size}
    return Vocabulary(made, size, ends or (size,), control, words.tokens)


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
        spelled = self._ids = dict[bytes, int]()
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
        """Added tokens by their ids in `_letters`, where renamed ones move the others."""
        added = self._tokenizer.backend.get_added_tokens_decoder().items()
        return {
            self._letters.token_to_id(self._names.get(token.content, token.content)): number for number, token in added
        }

    def __call__(self, raw: bytes) -> Sequence[int]:
        """Return the tokens of a text, whose bytes are exactly these; none where the model cannot spell them."""
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
        return [self._ids[raw]] if raw in self._ids else [self._ids[bytes([byte])] for byte in raw]
