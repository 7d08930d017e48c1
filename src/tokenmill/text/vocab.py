"""A tokenizer from the vocabulary inside a GGUF file.

GGUF stores tokens, merges or scores, and the name of a pre-tokenizer; the regular expressions behind that name are
llama.cpp's (src/llama-vocab.cpp). A name that is not in the table here is refused: splitting digits or spaces another
way gives other tokens and a model that answers worse without a word. Built with `tokenizers` alone in a fraction of a
second.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sized
from numbers import Integral, Real
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from tokenizers import (
    Tokenizer as Backend,
)

from tokenmill.errors import CheckpointError
from tokenmill.text.tokenizer import Tokenizer

__all__ = ["PRE_TOKENIZERS", "end_token_ids", "tokenizer_from_gguf"]

UNKNOWN, CONTROL, USER_DEFINED, BYTE = 2, 3, 4, 6  # GGUF's token types that matter here
MAX_TOKEN = 1024  # characters; the longest published tokens are runs of some hundred spaces

# Tokens that end a text or a turn whatever the metadata says: llama.cpp's list (src/llama-vocab.cpp, special_eog_ids),
# for the architectures that are read here.
END_TOKENS = frozenset(
    """<|eot_id|> <|eom_id|> <|im_end|> <|end|> <|endoftext|> <|end_of_text|> <end_of_turn> <end_of_utterance> </s>
    <eos> <EOT> _<EOT> [EOT] [EOS]""".split()
)

# One contraction, letters, up to three digits, punctuation, line ends, spaces: Llama 3's split; Qwen 2 takes one digit.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _split(digits: str) -> pre_tokenizers.PreTokenizer:
    regex = Regex(_SPLIT.format(digits=digits))
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(regex, behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


PRE_TOKENIZERS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    # `tokenizer.ggml.pre` → what splits a text before the merges
    "gpt-2": _gpt2,
    "gpt2": _gpt2,
    "phi-2": _gpt2,
    "mpt": _gpt2,
    "olmo": _gpt2,
    "jais": _gpt2,
    "smollm": _single_digits,
    "starcoder": _single_digits,
    "refact": _single_digits,
    "command-r": _single_digits,
    "codeshell": _single_digits,
    "llama3": lambda: _split("{1,3}"),
    "llama-bpe": lambda: _split("{1,3}"),
    "llama-v3": lambda: _split("{1,3}"),
    "dbrx": lambda: _split("{1,3}"),
    "smaug-bpe": lambda: _split("{1,3}"),
    "qwen2": lambda: _split(""),
    "deepseek-r1-qwen": lambda: _split(""),
    "stablelm2": lambda: _split(""),
}
# Llama 3's tokenizer takes a word that is a token whole, without asking the merges, and begins every text with its
# begin-of-text token: llama.cpp adds it where the file has no add_bos_token, as files made before that key have not.
_LLAMA_3 = ("llama3", "llama-bpe", "llama-v3")


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that GGUF metadata describes; CheckpointError when it is incomplete or of an unknown kind."""
    kind = metadata.get("tokenizer.ggml.model")
    tokens = _strings(metadata, "tokenizer.ggml.tokens")
    types = _numbers(metadata, "tokenizer.ggml.token_type", len(tokens), CONTROL - 2)
    builders = {"gpt2": _byte_level, "llama": _sentencepiece}
    if not isinstance(kind, str) or kind not in builders:
        raise CheckpointError(f"tokenizer.ggml.model = {kind!r} is not implemented: use one of {', '.join(builders)}")
    longest = max(map(len, tokens))
    if longest > MAX_TOKEN:
        raise CheckpointError(
            f"tokenizer.ggml.tokens has a token of {longest} characters; at most {MAX_TOKEN} are allowed"
        )
    if len(set(tokens)) != len(tokens):
        raise CheckpointError("tokenizer.ggml.tokens names a token twice")
    backend = builders[kind](metadata, tokens, types)
    ids = {name: _token_id(metadata, name, len(tokens)) for name in ("bos", "eos", "eot", "eom", "unknown", "padding")}
    _add_special(backend, tokens, types)
    begins = kind == "llama" or metadata.get("tokenizer.ggml.pre") in _LLAMA_3
    _add_template(backend, metadata, tokens, ids, by_default=begins)
    words = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    template = metadata.get("tokenizer.chat_template")
    return Tokenizer(
        backend,
        bos_token_id=ids["bos"],
        eos_token_ids=end_token_ids(metadata),
        chat_template=template if isinstance(template, str) else None,
        special_texts={word: tokens[number] for name, word in words.items() if (number := ids[name]) is not None},
    )


def end_token_ids(metadata: Mapping[str, Any]) -> list[int]:
    """The ids that end a text: those that keys of the metadata name, then control tokens of a well-known spelling."""
    named = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    tokens, types = (metadata.get(f"tokenizer.ggml.{key}") for key in ("tokens", "token_type"))
    pairs = zip(tokens, types, strict=False) if isinstance(tokens, list) and isinstance(types, Iterable) else ()
    spelled = [i for i, (token, kind) in enumerate(pairs) if kind in (CONTROL, USER_DEFINED) and token in END_TOKENS]
    return list(dict.fromkeys(number for number in (*named, *spelled) if type(number) is int))


def _byte_level(metadata: Mapping[str, Any], tokens: list[str], types: list[int]) -> Backend:
    """BPE over bytes, as GPT-2 has it."""
    del types
    pre = metadata.get("tokenizer.ggml.pre")
    if not isinstance(pre, str) or pre not in PRE_TOKENIZERS:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise CheckpointError(f"tokenizer.ggml.pre = {pre!r} is not implemented: use one of {known}")
    merges = [tuple(merge.split(" ", 1)) for merge in _strings(metadata, "tokenizer.ggml.merges")]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    for merge in merges:
        if len(merge) != 2 or not {*merge, "".join(merge)} <= vocabulary.keys():
            raise CheckpointError(f"tokenizer.ggml.merges holds {' '.join(merge)!r}, whose parts are no tokens")
    backend = Backend(models.BPE(vocabulary, merges, ignore_merges=pre in _LLAMA_3))  # type: ignore[arg-type]  # pairs
    backend.pre_tokenizer = PRE_TOKENIZERS[pre]()
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(metadata: Mapping[str, Any], tokens: list[str], types: list[int]) -> Backend:
    """BPE over characters with bytes as a last resort, as Llama 1 and 2 have it; merges follow from the scores."""
    scores = _numbers(metadata, "tokenizer.ggml.scores", len(tokens), None)
    vocabulary = {token: number for number, token in enumerate(tokens)}
    merges = _merges_from_scores(tokens, types, scores)
    unknown = _token_id(metadata, "unknown", len(tokens))
    backend = Backend(
        models.BPE(
            vocabulary,
            merges,
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    spaces = normalizers.Replace(" ", "▁")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces] if prefix else [spaces])
    strip = [decoders.Strip(content=" ", left=1, right=0)] if prefix else []
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    return backend


def _merges_from_scores(tokens: list[str], types: list[int], scores: list[float]) -> list[tuple[str, str]]:
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


def _add_special(backend: Backend, tokens: list[str], types: list[int]) -> None:
    for token, kind in zip(tokens, types, strict=True):
        if kind in (CONTROL, USER_DEFINED) or (kind == UNKNOWN and token):
            backend.add_tokens([AddedToken(token, special=kind != USER_DEFINED, normalized=False)])


def _add_template(
    backend: Backend, metadata: Mapping[str, Any], tokens: list[str], ids: Mapping[str, int | None], by_default: bool
) -> None:
    """Begin and end of text around what is encoded, where the file asks for them."""
    parts, special = ["$A"], []
    wanted = {"bos": bool(metadata.get("tokenizer.ggml.add_bos_token", by_default))}
    wanted["eos"] = bool(metadata.get("tokenizer.ggml.add_eos_token", False))
    for name, wants in wanted.items():
        number = ids[name]
        if wants and number is not None:
            # By a name of ours: in a template, `$`, `:` and spaces inside a token's text would have a meaning.
            parts = [name, *parts] if name == "bos" else [*parts, name]
            special.append({"id": name, "ids": [number], "tokens": [tokens[number]]})
    if special:
        backend.post_processor = processors.TemplateProcessing(single=" ".join(parts), special_tokens=special)


def _token_id(metadata: Mapping[str, Any], name: str, count: int) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    value = metadata.get(key)
    if value is None:
        return None
    if not isinstance(value, Integral) or isinstance(value, bool) or not 0 <= int(value) < count:
        raise CheckpointError(f"{key} = {value!r} is outside the vocabulary of {count} tokens")
    return int(value)


def _strings(metadata: Mapping[str, Any], key: str) -> list[str]:
    values = metadata.get(key)
    if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
        raise CheckpointError(f"{key} must be a list of texts; it is {type(values).__name__}")
    return values


def _numbers(metadata: Mapping[str, Any], key: str, count: int, default: int | None) -> list[Any]:
    values = metadata.get(key)
    if values is None and default is not None:
        return [default] * count
    size = len(values) if isinstance(values, Sized) and not isinstance(values, str) else type(values).__name__
    if size != count:
        raise CheckpointError(f"{key} must be {count} numbers, one per token; it is {size}")
    numbers: list[Any] = list(values)  # type: ignore[arg-type]  # lists and numpy arrays alike
    for value in numbers:
        if not isinstance(value, Real) or math.isnan(value):
            raise CheckpointError(f"{key} must be {count} numbers, one per token; it holds {value!r}")
    return numbers
