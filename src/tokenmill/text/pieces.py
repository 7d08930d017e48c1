"""sentencepiece's BPE as a tokenizer: from the pieces of a GGUF file, or of a tokenizer.model.

sentencepiece has no list of merges. It joins, again and again, the two neighbours that make the piece with the best
score, so every way to make a piece of two others is a merge, ranked by the score of what it makes.
"""

from collections.abc import Sequence

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers

__all__ = [
    "BYTE",
    "CONTROL",
    "NORMAL",
    "UNKNOWN",
    "UNUSED",
    "USER_DEFINED",
    "add_tokens",
    "sentencepiece_backend",
]

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Types of pieces: sentencepiece's own numbers, which GGUF has taken over."""


def sentencepiece_backend(
    tokens: Sequence[str], types: Sequence[int], scores: Sequence[float], *, prefix: bool
) -> tokenizers.Tokenizer:
    """BPE over characters with bytes as a last resort. `prefix`: a space is put before a text."""
    merges = _merges_from_scores(tokens, types, scores)
    unknown = next((token for token, kind in zip(tokens, types, strict=True) if kind == UNKNOWN), None)
    vocabulary = {token: number for number, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    spaces = normalizers.Replace(" ", "▁")
    # Prepend, since Metaspace adds no ▁ to a text that begins with a space, and sentencepiece does.
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces] if prefix else [spaces])
    strip = [decoders.Strip(content=" ", left=1, right=0)] if prefix else []
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    return backend


def add_tokens(
    backend: tokenizers.Tokenizer, tokens: Sequence[str], types: Sequence[int], stripping: Sequence[str] = ()
) -> None:
    """Make control, unknown and user-defined tokens known in texts. `stripping` ones take the spaces after them.

    All at once, since each call builds the automaton of all added tokens anew: 6,000 single ones take eight seconds.
    """
    backend.add_tokens(
        [
            AddedToken(token, special=kind != USER_DEFINED, normalized=False, rstrip=token in stripping)
            for token, kind in zip(tokens, types, strict=True)
            if kind in (CONTROL, USER_DEFINED, UNKNOWN)
        ]
    )


def _merges_from_scores(tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every way to make a token of two tokens, best token first: what sentencepiece's search does, as a list.

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
