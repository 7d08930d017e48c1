"""Changes to a tokenizer of the library `tokenizers`: how it begins a text, and which tokens are added.

Settings are changed as JSON, the only form in which the library shows all of them.
"""

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

import tokenizers

from tokenmill.text.tokenizer_config import FLAGS, TokenizerConfig

log = logging.getLogger(__name__)
Setting = dict[str, Any]
_CHANCE = ("dropout", "alpha", "nbest_size")  # of BPE; of Unigram, which draws one of its best cuts
_PARTS = ("normalizer", "pre_tokenizer", "decoder")


def is_byte_level(backend: tokenizers.Tokenizer) -> bool:
    """Return whether a tokenizer's tokens are spelled in GPT-2's letters for bytes."""
    return backend.decoder is not None and b"ByteLevel" in backend.decoder.__getstate__()


def without_chance(backend: tokenizers.Tokenizer) -> None:
    """Turn off the chance of training, by which the ids of one text differ from call to call. Warn where it was on."""
    for name in _CHANCE:
        if value := getattr(backend.model, name, None):
            log.warning("the tokenizer's %s = %.6g, which is of training, is off: a text has one encoding", name, value)
            setattr(backend.model, name, None)


def configured(backend: tokenizers.Tokenizer, config: TokenizerConfig, num_rows: int) -> tokenizers.Tokenizer:
    """Return the tokenizer of a tokenizer.json with what tokenizer_config.json says beside it.

    num_rows: rows of the model's embedding. A name that is no token gets the next id where there is a row for it, and
    stays a text where there is none.
    """
    known = {repr(token) for token in backend.get_added_tokens_decoder().values()}
    backend.add_tokens([token for token in config.declared if repr(token) not in known])
    added = {token.content: token for token in backend.get_added_tokens_decoder().values()}
    special = {token.content: added.get(token.content, token) for token in config.named}
    special |= {token.content: token for token in config.listed if token.content not in (added | special)}
    num_free = max(num_rows - backend.get_vocab_size(), 0)
    new = [name for name in special if backend.token_to_id(name) is None][num_free:]
    backend.add_special_tokens([token for name, token in special.items() if name not in new])
    if config.prefix_space is None:
        return backend
    change = _with_first_space(bool(config.values.get("legacy"))) if config.prefix_space else _without_first_space
    post_processor, backend = backend.post_processor, _edited(backend, change)
    if post_processor is not None:
        backend.post_processor = post_processor
    return backend


def for_continuation(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Return the tokenizer for text that follows other text; the given one where that makes no difference.

    sentencepiece puts a space before a text that it encodes and takes one away from a text that it decodes. After other
    text that is wrong: " Paris" after "The capital is" would be two tokens, and decoded alone it would lose its space.
    """
    return _edited(backend, _without_first_space)


def _edited(backend: tokenizers.Tokenizer, change: Callable[[Setting], Setting | None]) -> tokenizers.Tokenizer:
    """Change each setting of a tokenizer, inner ones first; return the given tokenizer where that changes nothing."""
    settings = _shell(backend).to_str()
    edited = json.loads(settings, object_hook=change)
    if edited == json.loads(settings):
        return backend
    return _fill(tokenizers.Tokenizer.from_str(json.dumps(edited)), backend, {})


def with_names(backend: tokenizers.Tokenizer, names: Mapping[str, str]) -> tokenizers.Tokenizer:
    """Return the tokenizer with added tokens known by other names alone: `names` maps the old ones to the new ones.

    A token that is renamed may get another id, since its new name is not in the vocabulary.
    """
    return _fill(_shell(backend), backend, names)


def _shell(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Return a tokenizer with the same settings and no vocabulary: vocabularies are shared and never copied."""
    shell = tokenizers.Tokenizer(tokenizers.models.BPE())
    for name in _PARTS:
        if (setting := getattr(backend, name)) is not None:
            setattr(shell, name, setting)
    return shell


def _fill(shell: tokenizers.Tokenizer, backend: tokenizers.Tokenizer, names: Mapping[str, str]) -> tokenizers.Tokenizer:
    """Give a shell the model and the added tokens of a tokenizer, in the order of their ids, so that ids are kept."""
    shell.model = backend.model
    added = []
    if names:  # new ids begin at the number of tokens; where the vocabulary has gaps, some of its ids are larger
        gaps = 1 + max(shell.get_vocab().values(), default=-1) - shell.get_vocab_size()
        added = [tokenizers.AddedToken(f"{min(names.values())}{number}") for number in range(gaps)]
    for _, token in sorted(backend.get_added_tokens_decoder().items()):
        kept = {flag: getattr(token, flag) for flag in FLAGS}
        if token.content in names:
            kept["normalized"] = False
        added.append(tokenizers.AddedToken(names.get(token.content, token.content), **kept))
    shell.add_tokens(added)  # all at once, since each call builds the automaton of all added tokens anew
    return shell


def _without_first_space(setting: Setting) -> Setting | None:
    """Return a setting without what adds a space before a text, or takes one from it; None where it does nothing else.

    The settings inside it were treated before, and each setting that is None now is left out here.
    """
    if setting.get("type") == "Prepend" or (setting.get("type") == "Strip" and setting.get("start")):
        return None
    changes = {"prepend_scheme": "never", "add_prefix_space": False}
    edited = setting | {key: value for key, value in changes.items() if key in setting}
    lists = ((key, value) for key, value in edited.items() if isinstance(value, list))
    return edited | {key: [entry for entry in value if entry is not None] for key, value in lists}


def _with_first_space(legacy: bool) -> Callable[[Setting], Setting]:
    """Return a change of settings after which a text gets a space before it, and loses it where sentencepiece takes it.

    legacy: as sentencepiece did once, a space is put behind every control token, too.
    """

    def change(setting: Setting) -> Setting:
        if setting.get("type") == "ByteLevel" and "use_regex" in setting:
            return setting | {"add_prefix_space": True}
        if setting.get("prepend_scheme") == "never":
            return setting | {"prepend_scheme": "always" if legacy else "first"}
        steps = setting.get("decoders", [])
        if any(step["type"] == "Fuse" for step in steps) and not any(step["type"] == "Strip" for step in steps):
            return setting | {"decoders": [*steps, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
        return setting

    return change
