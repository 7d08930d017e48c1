"""The tokenizer that a sentencepiece file, such as `tokenizer.model`, describes.

transformers' conversion of such a file leaves out what sentencepiece does with characters and with spaces, so nothing
of it is used here.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from tokenmill.errors import CheckpointError
from tokenmill.text.charsmap import TextRules
from tokenmill.text.pieces import NORMAL, UNKNOWN, USER_DEFINED, Prefix, add_tokens, bpe_backend, unigram_backend

_RANK = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\r?\n")
_BUILDERS = {"BPE": bpe_backend, "UNIGRAM": unigram_backend}
_MARK = re.compile(r"<\S+>|\[\S+\]")


def holds_ranks(file: Path) -> bool:
    """Return whether a file named tokenizer.model is tiktoken's list of bytes and ranks, as Llama 3's is."""
    try:
        with file.open("rb") as opened:
            return _RANK.match(opened.read(2**10)) is not None
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror or error}") from error


def read_sentencepiece(file: Path, config: Mapping[str, Any]) -> tuple[tokenizers.Tokenizer, TextRules | None]:
    """Return the tokenizer of a sentencepiece file, and its rules for texts; None where it changes no text.

    config: tokenizer_config.json, of which `add_prefix_space` and `legacy` count. CheckpointError, with its name, for a
    file that is damaged or of a kind that is not read. ImportError without the package sentencepiece.
    """
    from sentencepiece import sentencepiece_model_pb2 as protocol  # noqa: PLC0415  (optional)

    model = protocol.ModelProto()
    try:
        model.ParseFromString(file.read_bytes())
    except Exception as error:  # google.protobuf has no type stubs and an error of its own
        raise CheckpointError(f"{file} is damaged or no sentencepiece model: {error}") from error
    if not (model.pieces and model.HasField("trainer_spec") and model.HasField("normalizer_spec")):
        raise CheckpointError(f"{file} is damaged or no sentencepiece model: it is cut off, or has no pieces")
    kind = protocol.TrainerSpec.ModelType.Name(model.trainer_spec.model_type)
    _check_settings(file, model, kind)
    tokens, types, scores = zip(*((each.piece, each.type, each.score) for each in model.pieces), strict=True)
    if types.count(UNKNOWN) != 1 or len(set(tokens)) != len(tokens) or "" in tokens:
        raise CheckpointError(f"{file} is damaged: its pieces must differ, and one must be of type UNKNOWN")
    rules, symbols = (
        model.normalizer_spec,
        [token for token, of in zip(tokens, types, strict=True) if of == USER_DEFINED],
    )
    try:
        backend = _BUILDERS[kind](tokens, types, scores, _prefix(rules.add_dummy_prefix, config))
        texts = TextRules(rules.precompiled_charsmap, rules.remove_extra_whitespaces, symbols)
    except ValueError as error:
        raise CheckpointError(f"{file} cannot be used: {error}") from error
    # Other pieces may win over a symbol of Unigram, unless it is a mark that stands in no word. One with a space, which
    # is ▁ by then, is found in no text.
    inner = {each for each in symbols if " " in each or (kind == "UNIGRAM" and not _MARK.fullmatch(each))}
    add_tokens(backend, tokens, [NORMAL if token in inner else of for token, of in zip(tokens, types, strict=True)])
    return backend, texts if texts.charsmap or texts.removes_spaces else None


def _check_settings(file: Path, model: Any, kind: str) -> None:
    """Raise CheckpointError for settings of a sentencepiece model that are not read."""
    for name, value, allowed in (
        ("model_type", kind, tuple(_BUILDERS)),
        ("treat_whitespace_as_suffix", model.trainer_spec.treat_whitespace_as_suffix, (False,)),
        ("escape_whitespaces", model.normalizer_spec.escape_whitespaces, (True,)),
    ):
        if value not in allowed:
            raise CheckpointError(f"{file}: {name} = {value} is not allowed: {' or '.join(map(str, allowed))}")


def _prefix(adds: bool, config: Mapping[str, Any]) -> Prefix:
    """Read the prefix as transformers 5 does: `legacy` adds a space after every control token too."""
    if config.get("add_prefix_space") is not None:
        adds = bool(config["add_prefix_space"])
    if not adds:
        return "never"
    return "always" if config.get("legacy") else "first"
