"""sentencepiece's BPE and Unigram from their pieces and scores, which a GGUF file or a tokenizer.model holds.

Its BPE has no list of merges. It joins, again and again, the two neighbours that make the piece with the best
score, so every way to make a piece of two others is a merge, ranked by the score of what it makes.
"""

from collections.abc import Sequence
from typing import Literal

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Types of pieces: sentencepiece's own numbers, which GGUF has taken over."""

Prefix = Literal["never", "first", "always"]
"""The places at which a space is added to a text: none, its beginning, or after every added token too."""


def bpe_backend(
    tokens: Sequence[str], types: Sequence[int], scores: Sequence[float], prefix: Prefix
) -> tokenizers.Tokenizer:
    """Return BPE over characters with bytes as a last resort."""
    merges = _merges_from_scores(tokens, types, scores)
    unknown = next((token for token, kind in zip(tokens, types, strict=True) if kind == UNKNOWN), None)
    vocabulary = {token: number for number, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    _spell_spaces(backend, prefix)
    return backend


def unigram_backend(
    tokens: Sequence[str], types: Sequence[int], scores: Sequence[float], prefix: Prefix
) -> tokenizers.Tokenizer:
    """Return a tokenizer that finds the likeliest pieces of a text. ValueError for pieces of which `tokenizers` would
    make others.

    `tokenizers` finds pieces of every type in a text, and sentencepiece finds pieces of letters alone. So all other
    pieces are made unlikelier than any letters. That moves the score of letters which the model does not know: it does
    not matter where they are in no piece, and they stand alone so that no byte piece is found in their spelling.
    """
    letters = {token for token, kind in zip(tokens, types, strict=True) if kind in (NORMAL, USER_DEFINED)}
    normal = [token for token, kind in zip(tokens, types, strict=True) if kind == NORMAL]
    if strange := sorted({letter for token in normal for letter in token} - letters):
        raise ValueError(f"{strange[0]!r} is part of a piece and no piece itself")
    if UNUSED in types:
        raise ValueError("it has pieces that are not used")
    entries = [
        (token, score if kind == NORMAL else _OF_SYMBOL if kind == USER_DEFINED else _NEVER)
        for token, kind, score in zip(tokens, types, scores, strict=True)
    ]
    backend = tokenizers.Tokenizer(models.Unigram(entries, types.index(UNKNOWN), BYTE in types))
    _spell_spaces(backend, prefix)
    unknown = "".join(letter for letter in "<0x123456789ABCDEF>" if letter not in letters)
    if BYTE in types and unknown:
        alone = pre_tokenizers.Split(tokenizers.Regex(f"[{unknown}]"), "isolated")
        steps = [backend.pre_tokenizer, alone] if backend.pre_tokenizer is not None else [alone]
        backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    return backend


_NEVER = -1e6
_OF_SYMBOL = 0.1  # the score of a symbol of the user, whatever the file says (sentencepiece 0.2.3, found by trying)


def _spell_spaces(backend: tokenizers.Tokenizer, prefix: Prefix) -> None:
    """Have spaces written as ▁, one more of them where the prefix says so, and read back.

    Metaspace alone adds no ▁ to a text that begins with a space, and sentencepiece does. Spelled with another letter
    than the one that stands for spaces by then, it adds one to every text.
    """
    spaces = normalizers.Replace(" ", "▁")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces] if prefix == "always" else [spaces])
    if prefix == "first":
        first = pre_tokenizers.Metaspace(replacement=" ", prepend_scheme="first", split=False)
        back = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="never", split=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([first, back])
    strip = [] if prefix == "never" else [decoders.Strip(content=" ", left=1, right=0)]
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])


def add_tokens(
    backend: tokenizers.Tokenizer, tokens: Sequence[str], types: Sequence[int], stripping: Sequence[str] = ()
) -> None:
    """Make control, unknown and user-defined tokens known in texts. `stripping` ones take the spaces after them.

    All at once, since each call builds the automaton of all added tokens anew: 6,000 single ones take eight seconds.
    """
    backend.add_tokens(
        [
            # One with ▁ is looked for where spaces have become it.
            AddedToken(token, special=kind != USER_DEFINED, normalized="▁" in token, rstrip=token in stripping)
            for token, kind in zip(tokens, types, strict=True)
            if kind in (CONTROL, USER_DEFINED, UNKNOWN)
        ]
    )


def _merges_from_scores(tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Return every way to make a token of two tokens, best token first: what sentencepiece's search does, as a list.

    Control, unknown and byte tokens are not made of letters, and nothing is made of them.
    """
    made = {token: i for i, token in enumerate(tokens) if types[i] not in (UNKNOWN, CONTROL, BYTE)}
    found = []
    for token, number in made.items():
        cuts = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        local = [(made[left], made[right]) for left, right in cuts if left in made and right in made]
        found += [(scores[number], pair) for pair in sorted(local)]
    found.sort(key=lambda entry: -entry[0])
    return [(tokens[left], tokens[right]) for _, (left, right) in found]
