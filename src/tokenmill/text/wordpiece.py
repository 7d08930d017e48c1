"""BERT's tokenizers in a GGUF file: words of letters, of which the longest pieces are taken one after the other.

llama.cpp has "▁" before a piece that begins a word, and nothing before others; the original has "##" before these. It
makes all letters small, as these models' own tokenizers do where no piece has a capital, and leaves the accents on them
that the own tokenizers take away. Here it is done as the models were trained.
"""

from collections.abc import Sequence

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from tokenmill.text.sentencepiece import CONTROL

_BEGINS, _FOLLOWS = "▁", "##"


def own_spelling(token: str, kind: int) -> str:
    """Spell llama.cpp's piece as the model's own vocabulary does."""
    if kind == CONTROL or (token.startswith("[") and token.endswith("]")):
        return token
    return token.removeprefix(_BEGINS) if token.startswith(_BEGINS) else _FOLLOWS + token


def in_gguf(token: str, kind: int) -> str:
    """Spell a piece of a model's own vocabulary as llama.cpp does."""
    if kind == CONTROL:
        return token
    return token.removeprefix(_FOLLOWS) if token.startswith(_FOLLOWS) else _BEGINS + token


def wordpiece_backend(
    tokens: Sequence[str], types: Sequence[int], unknown: str, lowers: bool | None, strips: bool | None
) -> tokenizers.Tokenizer:
    """Make the tokenizer. tokens: as the model's own vocabulary spells them. lowers, strips: whether letters are made
    small, and lose their accents; None where a file does not say it.
    """
    vocabulary = {token: number for number, token in enumerate(tokens)}
    plain = (token for token, kind in zip(tokens, types, strict=True) if kind != CONTROL and not token.startswith("["))
    is_lower = all(token == token.lower() for token in plain)
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=unknown, max_input_chars_per_word=100))
    lowers = is_lower if lowers is None else lowers
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowers, strip_accents=strips)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return backend
