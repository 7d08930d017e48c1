"""The tokenizers of BERT and MPNet, from a GGUF file or a vocab.txt: words, of which the longest pieces are taken one
after the other.

llama.cpp has "▁" before a piece that begins a word, and nothing before others; the original has "##" before these. A
file may say whether letters are made small; where it does not, they are if no piece has a capital.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from tokenmill.errors import CheckpointError
from tokenmill.text.sentencepiece import CONTROL, NORMAL

_BEGINS, _FOLLOWS = "▁", "##"
_MPNET = "MPNet"  # the beginning of the names of its classes


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


_SWITCHES = {
    "lowercase": "do_lower_case",
    "strip_accents": "strip_accents",
    "handle_chinese_chars": "tokenize_chinese_chars",
}
"""What a normaliser does → the key of tokenizer_config.json that says it."""
_MARKS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
_MARKS_OF_MPNET = {
    "pad_token": "<pad>",
    "unk_token": "[UNK]",
    "cls_token": "<s>",
    "sep_token": "</s>",
    "mask_token": "<mask>",
}


def normalized_as(backend: tokenizers.Tokenizer, config: Mapping[str, Any]) -> None:
    """Have a tokenizer.json change letters as the tokenizer_config.json beside it says: transformers' classes for BERT
    and MPNet go by the latter.
    """
    if backend.normalizer is None or not str(config.get("tokenizer_class")).startswith(("Bert", _MPNET)):
        return
    state = json.loads(backend.normalizer.__getstate__())
    if state.get("type") != "BertNormalizer":
        return
    given = {key: config[name] for key, name in _SWITCHES.items() if config.get(name) is not None}
    if wrong := [name for name, value in given.items() if not isinstance(value, bool)]:
        name = _SWITCHES[wrong[0]]
        raise CheckpointError(f"tokenizer_config.json: {name} = {config[name]!r}: true or false are allowed")
    backend.normalizer = normalizers.BertNormalizer(**{**{k: v for k, v in state.items() if k != "type"}, **given})


def read_vocabulary(file: Path, config: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Read a vocab.txt, a token a line, with the settings of the tokenizer_config.json beside it. MPNet's has RoBERTa's
    marks around texts.
    """
    try:
        tokens = file.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error
    is_mpnet = str(config.get("tokenizer_class")).startswith(_MPNET)
    defaults = _MARKS_OF_MPNET if is_mpnet else _MARKS
    named = {word: config.get(word, mark) for word, mark in defaults.items()}
    marks = {word: mark.get("content") if isinstance(mark, dict) else mark for word, mark in named.items()}
    if missing := [marks[word] for word in ("unk_token", "cls_token", "sep_token") if marks[word] not in tokens]:
        raise CheckpointError(f"{file} has no token {missing[0]}, which stands around a text or for what is not known")
    kinds = [CONTROL if token in marks.values() else NORMAL for token in tokens]
    backend = wordpiece_backend(tokens, kinds, str(marks["unk_token"]), lowers=True, strips=None)
    normalized_as(backend, {"tokenizer_class": "BertTokenizer", **{k: config.get(k) for k in _SWITCHES.values()}})
    cls, sep = (str(marks[word]) for word in ("cls_token", "sep_token"))
    backend.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} {sep} $B {sep}" if is_mpnet else f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(mark, tokens.index(mark)) for mark in (cls, sep)],
    )
    there = [str(mark) for mark in marks.values() if mark in tokens]
    takes_space = marks["mask_token"] if is_mpnet else None  # before it, as a word would
    backend.add_special_tokens([tokenizers.AddedToken(mark, lstrip=mark == takes_space) for mark in there])
    return backend
