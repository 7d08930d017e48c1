"""Variants of a tokenizer that share its vocabulary: for the middle of a text, and with tokens under other names.

sentencepiece puts a space before a text that it encodes and takes one away from a text that it decodes. That is right
at the beginning of a text and wrong after it: " Paris" after "The capital is" would be two tokens, and decoded alone it
would lose its space. The model, with its vocabulary and merges, is shared and never copied; what is changed are the
settings around it, as JSON, which is the only form in which `tokenizers` shows all of them.
"""

import json
from collections.abc import Mapping
from typing import Any

import tokenizers

__all__ = ["for_continuation", "with_names"]


def for_continuation(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """The tokenizer for text that follows other text; itself where that makes no difference."""
    shell = _shell(backend)
    settings = json.loads(shell.to_str())
    edited = {key: _without_first_space(value) for key, value in settings.items()}
    if edited == settings:
        return backend
    return _fill(tokenizers.Tokenizer.from_str(json.dumps(edited)), backend, {})


def with_names(backend: tokenizers.Tokenizer, names: Mapping[str, str]) -> tokenizers.Tokenizer:
    """The tokenizer with added tokens known by other names alone: `names` maps the old ones to the new ones.

    A token that is renamed may get another id, since its new name is not in the vocabulary.
    """
    return _fill(_shell(backend), backend, names)


def _shell(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """A tokenizer with the same settings and an empty vocabulary."""
    shell = tokenizers.Tokenizer(tokenizers.models.BPE())
    for name in ("normalizer", "pre_tokenizer", "decoder"):
        if (setting := getattr(backend, name)) is not None:
            setattr(shell, name, setting)
    return shell


def _fill(shell: tokenizers.Tokenizer, backend: tokenizers.Tokenizer, names: Mapping[str, str]) -> tokenizers.Tokenizer:
    """Give a shell the model and the added tokens of a tokenizer, in the order of their ids, which they so keep."""
    shell.model = backend.model
    if names:  # new ids begin at the number of tokens, which are ids of the vocabulary where it has gaps
        gaps = 1 + max(shell.get_vocab().values(), default=-1) - shell.get_vocab_size()
        shell.add_tokens([f"{min(names.values())}{number}" for number in range(gaps)])
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    for _, token in sorted(backend.get_added_tokens_decoder().items()):
        kept = {flag: getattr(token, flag) for flag in flags}
        if token.content in names:
            kept["normalized"] = False
        shell.add_tokens([tokenizers.AddedToken(names.get(token.content, token.content), **kept)])
    return shell


def _without_first_space(setting: Any) -> Any:
    """A setting without what adds a space before a text, or takes one from it."""
    if isinstance(setting, list):
        return [_without_first_space(entry) for entry in setting if not _is_first_space(entry)]
    if not isinstance(setting, dict):
        return setting
    if _is_first_space(setting):
        return None
    changes = {"prepend_scheme": "never", "add_prefix_space": False}
    edited = {key: _without_first_space(value) for key, value in setting.items()}
    return edited | {key: value for key, value in changes.items() if key in edited}


def _is_first_space(setting: Any) -> bool:
    """Whether it is a normalizer that prepends, or a decoder that strips the beginning."""
    if not isinstance(setting, dict):
        return False
    return setting.get("type") == "Prepend" or (setting.get("type") == "Strip" and bool(setting.get("start")))
