"""A tokenizer from the vocabulary inside a GGUF file.

GGUF stores tokens, merges or scores, and the name of a pre-tokenizer; the regular expressions behind that name are
llama.cpp's (src/llama-vocab.cpp). A name that is not in the table here is refused: splitting digits or spaces another
way gives other tokens, and a model that answers worse without any error.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from tokenmill.errors import CheckpointError
from tokenmill.text.templates import templates_from_gguf
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.value_reader import ValueReader

__all__ = ["PRE_TOKENIZERS", "end_token_ids", "tokenizer_from_gguf"]

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # GGUF's types of tokens
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

_bytes = partial(pre_tokenizers.ByteLevel, add_prefix_space=False)  # by itself it splits as GPT-2 does
_single_digits = partial(pre_tokenizers.Sequence, [pre_tokenizers.Digits(individual_digits=True), _bytes()])


def _split(digits: str) -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(tokenizers.Regex(_SPLIT.format(digits=digits)), behavior="isolated", invert=False)
    return pre_tokenizers.Sequence([split, _bytes(use_regex=False)])


# Llama 3's tokenizer takes a word that is a token whole, without asking the merges, and begins every text with its
# begin-of-text token: llama.cpp adds it where the file has no add_bos_token, as files made before that key have not.
LLAMA_3 = ("llama3", "llama-bpe", "llama-v3")

# `tokenizer.ggml.pre` → what splits a text before the merges
PRE_TOKENIZERS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    **dict.fromkeys(("gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jais"), _bytes),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), _single_digits),
    **dict.fromkeys((*LLAMA_3, "dbrx", "smaug-bpe"), partial(_split, "{1,3}")),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2"), partial(_split, "")),
}


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that GGUF metadata describes; CheckpointError when it is incomplete or of an unknown kind."""
    keys = ValueReader(metadata, "GGUF metadata", CheckpointError)
    builders = {"gpt2": _byte_level, "llama": _sentencepiece}
    build = builders[keys.expect("tokenizer.ggml.model", ..., *builders)]
    tokens = keys.entries("tokenizer.ggml.tokens", str)
    types = _numbers(keys, "tokenizer.ggml.token_type", len(tokens), NORMAL)
    longest = max(map(len, tokens), default=0)
    if not 0 < longest <= MAX_TOKEN:
        raise CheckpointError(f"tokenizer.ggml.tokens: the longest has {longest} characters, not 1 to {MAX_TOKEN}")
    vocabulary = {token: number for number, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise CheckpointError("tokenizer.ggml.tokens names a token twice")
    ids = {
        name: keys.count(f"tokenizer.ggml.{name}_token_id", None, 0, len(tokens) - 1)
        for name in ("bos", "eos", "eot", "eom", "unknown", "padding")
    }
    backend = build(keys, vocabulary, types)
    for token, token_type in zip(tokens, types, strict=True):
        if token_type in (CONTROL, USER_DEFINED) or (token_type == UNKNOWN and token):
            backend.add_tokens([AddedToken(token, special=token_type != USER_DEFINED, normalized=False)])
    begins = metadata["tokenizer.ggml.model"] == "llama" or metadata.get("tokenizer.ggml.pre") in LLAMA_3
    wanted = {
        name: number
        for name, by_default in (("bos", begins), ("eos", False))
        if metadata.get(f"tokenizer.ggml.add_{name}_token", by_default) and (number := ids[name]) is not None
    }
    if wanted:
        # By names of ours: in a template, `$`, `:` and spaces inside a token's text would have a meaning.
        backend.post_processor = processors.TemplateProcessing(
            single=" ".join(part for part in ("bos", "$A", "eos") if part in (*wanted, "$A")),
            special_tokens=[{"id": name, "ids": [i], "tokens": [tokens[i]]} for name, i in wanted.items()],
        )
    words = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    templates = templates_from_gguf(metadata)
    return Tokenizer(
        backend,
        bos_token_id=ids["bos"],
        eos_token_ids=end_token_ids(metadata),
        chat_template=templates.pop("default", None),
        named_templates=templates,
        special_texts={word: tokens[number] for name, word in words.items() if (number := ids[name]) is not None},
    )


def end_token_ids(metadata: Mapping[str, Any]) -> list[int]:
    """The ids that end a text: those that keys of the metadata name, then control tokens of a well-known spelling."""
    named = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    tokens, types = (metadata.get(f"tokenizer.ggml.{key}") for key in ("tokens", "token_type"))
    pairs = zip(tokens, types, strict=False) if isinstance(tokens, list) and isinstance(types, Iterable) else ()
    spelled = [i for i, (token, kind) in enumerate(pairs) if kind in (CONTROL, USER_DEFINED) and token in END_TOKENS]
    return list(dict.fromkeys(number for number in (*named, *spelled) if type(number) is int))


def _byte_level(keys: ValueReader, vocabulary: dict[str, int], types: list[int]) -> tokenizers.Tokenizer:
    pre = keys.expect("tokenizer.ggml.pre", ..., *sorted(PRE_TOKENIZERS))
    merges = [tuple(merge.split(" ", 1)) for merge in keys.entries("tokenizer.ggml.merges", str)]
    for merge in merges:
        if len(merge) != 2 or not {*merge, "".join(merge)} <= vocabulary.keys():
            raise CheckpointError(f"tokenizer.ggml.merges holds {' '.join(merge)!r}, whose parts are no tokens")
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges, ignore_merges=pre in LLAMA_3))
    backend.pre_tokenizer = PRE_TOKENIZERS[pre]()
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(keys: ValueReader, vocabulary: dict[str, int], types: list[int]) -> tokenizers.Tokenizer:
    """BPE over characters with bytes as a last resort, as Llama 1 and 2 have it; merges follow from the scores."""
    tokens = list(vocabulary)
    scores = _numbers(keys, "tokenizer.ggml.scores", len(tokens))
    merges = _merges_from_scores(tokens, types, scores)
    number = keys.count("tokenizer.ggml.unknown_token_id", None, 0, len(tokens) - 1)
    unknown = None if number is None else tokens[number]
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    prefix = bool(keys.take("tokenizer.ggml.add_space_prefix", True))
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


def _numbers(keys: ValueReader, key: str, count: int, default: int | None = None) -> list[Any]:
    values = keys.take(key, ... if default is None else [default] * count)
    are_numbers = isinstance(values, list) and all(type(v) in (int, float) and not math.isnan(v) for v in values)
    if not are_numbers or len(values) != count:
        raise keys.refuse(key, values, f"{count} numbers, one per token")
    return list(values)
