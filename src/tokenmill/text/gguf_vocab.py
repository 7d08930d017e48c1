"""The vocabulary of a tokenizer as GGUF metadata, read back and compared: the inverse of vocab.py.

What is written is read again and must be the same tokenizer: the same vocabulary and merges, the same tokens for a few
texts that tell the known pre-tokenizers apart. A tokenizer that GGUF cannot say is refused, since another split gives
other tokens, and a model that answers worse without any error.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from tokenmill.errors import CheckpointError
from tokenmill.text.backend import for_continuation
from tokenmill.text.pre_tokenizers import GPT2, PRE_TOKENIZERS
from tokenmill.text.sentencepiece import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED
from tokenmill.text.templates import templates_to_gguf
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.text.vocab import BYTE_TOKEN, END_TOKENS, tokenizer_from_gguf
from tokenmill.text.wordpiece import in_gguf

log = logging.getLogger(__name__)

_UNSAID = ("lstrip", "rstrip", "single_word")  # flags of an added token that GGUF cannot say
PROBES = (
    "Hello world! It's 2024, isn't it? THEY'LL pay $1234567.89 for 42 apples.",
    "  two spaces,   three,\ttab\n\nand\n lines \r\n end   ",
    "def f(x):\n    return x**2 + 3.14  # naïve café “quoted”… 100%",
    "日本語のテキスト、中文文本。한국어 Привет мир ١٢٣ 🤗👍🏽",
    "a1b22c333d4444 _under_score camelCase <tag> http://x.y/z?q=1&r=2",
    "a",
    " a",
    "",
)


def gguf_of_tokenizer(tokenizer: Tokenizer, vocab_size: int, end_ids: Sequence[int] = ()) -> dict[str, Any]:
    """Return the keys `tokenizer.…` of a GGUF file. CheckpointError for a tokenizer that they cannot describe.

    vocab_size: rows of the embedding; ids that are no tokens get names of their own. end_ids: ids that end a text
    beside the tokenizer's own.
    """
    settings = json.loads(tokenizer.backend.to_str())
    model = settings["model"]
    if tokenizer.rules is not None:
        raise _refused("it changes characters or removes spaces, and GGUF has no keys for that")
    if model["type"] == "WordPiece":
        return _of_wordpiece(tokenizer, vocab_size)
    if model["type"] != "BPE":
        raise _refused(f"it is of kind {model['type']}, and only BPE and WordPiece can be written")
    is_sentencepiece = bool(model["byte_fallback"])
    tokens, types = _tokens(tokenizer, vocab_size, is_sentencepiece)
    ggml: dict[str, Any] = {"model": "llama" if is_sentencepiece else "gpt2", "tokens": tokens, "token_type": types}
    merges = [merge.split(" ", 1) if isinstance(merge, str) else merge for merge in model["merges"]]
    if is_sentencepiece:
        ggml |= {"pre": "default", "scores": _scores(tokens, merges)}
        ggml |= {"add_space_prefix": for_continuation(tokenizer.backend) is not tokenizer.backend}
    else:
        ggml |= {"pre": _pre_tokenizer(settings, bool(model["ignore_merges"])), "merges": list(map(" ".join, merges))}
    ggml |= _special(tokenizer, end_ids)
    if tokenizer.suppressed_ids:
        ggml["suppress_tokens"] = list(tokenizer.suppressed_ids)
    metadata = {f"tokenizer.ggml.{key}": value for key, value in ggml.items()}
    metadata |= templates_to_gguf(tokenizer.chat_template, tokenizer.named_templates)
    _check(tokenizer, merges, metadata)
    return metadata


def _of_wordpiece(tokenizer: Tokenizer, vocab_size: int) -> dict[str, Any]:
    """Describe a tokenizer of BERT's kind."""
    tokens, types = _tokens(tokenizer, vocab_size, is_sentencepiece=False)
    words = {
        "bos": "cls_token",
        "cls": "cls_token",
        "seperator": "sep_token",
        "unknown": "unk_token",
        "padding": "pad_token",
        "mask": "mask_token",
    }
    found = {key: tokenizer.backend.token_to_id(tokenizer.special_texts.get(word, "")) for key, word in words.items()}
    normalizer = json.loads(tokenizer.backend.to_str())["normalizer"] or {}
    ggml: dict[str, Any] = {
        **({"normalizer.lowercase": normalizer["lowercase"]} if "lowercase" in normalizer else {}),
        "model": "bert",
        "pre": "default",
        "tokens": [in_gguf(token, kind) for token, kind in zip(tokens, types, strict=True)],
        "token_type": types,
        **{f"{key}_token_id": number for key, number in found.items() if number is not None},
    }
    metadata = {f"tokenizer.ggml.{key}": value for key, value in ggml.items()}
    _check_texts(tokenizer, tokenizer_from_gguf(metadata))
    return metadata


def _tokens(tokenizer: Tokenizer, vocab_size: int, is_sentencepiece: bool) -> tuple[list[str], list[int]]:
    """Return the text and the type of every id."""
    spellings, added = tokenizer.spellings, tokenizer.backend.get_added_tokens_decoder()
    if max(spellings, default=0) >= vocab_size:
        raise _refused(f"its ids go to {max(spellings)}, and the embedding has {vocab_size} rows")
    unsaid = [token.content for token in added.values() if any(getattr(token, flag) for flag in _UNSAID)]
    if unsaid:
        names = ", ".join(map(repr, unsaid[:5]))
        log.warning("GGUF cannot say that added tokens take spaces beside them, or are whole words: %s", names)
    unknown = tokenizer.special_texts.get("unk_token")
    texts, types = [], []
    for number in range(vocab_size):
        text = spellings.get(number)
        if text is None:
            kind = UNUSED
        elif is_sentencepiece and text == unknown:
            kind = UNKNOWN
        elif number in added:
            kind = CONTROL if added[number].special else USER_DEFINED
        else:
            kind = BYTE if is_sentencepiece and BYTE_TOKEN.fullmatch(text) else NORMAL
        texts.append(f"[PAD{number}]" if text is None else text)
        types.append(kind)
    return texts, types


def _scores(tokens: Sequence[str], merges: Sequence[Sequence[str]]) -> list[float]:
    """Return higher scores for tokens that are made earlier: sentencepiece joins what makes the best token first."""
    ranks: dict[str, int] = {}
    for pair in merges:
        ranks.setdefault("".join(pair), len(ranks))
    return [-float(ranks.get(token, len(ranks))) for token in tokens]


def _pre_tokenizer(settings: Mapping[str, Any], ignores_merges: bool) -> str:
    """Return the first name in PRE_TOKENIZERS under which texts are split as by this tokenizer."""
    normalizer = settings["normalizer"]
    if normalizer is not None and normalizer["type"] == "NFC":
        log.warning(
            "GGUF cannot say that the tokenizer normalises texts to NFC: others give the same tokens as they are"
        )
    elif normalizer is not None:
        raise _refused(f"its normalizer is {normalizer['type']}, and GGUF has no normalizer for byte-level tokens")
    wanted = _steps(settings["pre_tokenizer"])
    for name, pre in PRE_TOKENIZERS.items():
        if pre.takes_words == ignores_merges and _steps(json.loads(pre.build().__getstate__())) == wanted:
            return name
    known = ", ".join(PRE_TOKENIZERS)
    raise _refused(f"none of the known pre-tokenizers ({known}) splits as it does: {json.dumps(wanted)[:500]}")


def _steps(setting: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return the steps of a pre-tokenizer, each in one spelling, without settings that do not change the split."""
    if setting is None:
        return []
    if setting["type"] == "Sequence":
        return [step for inner in setting["pretokenizers"] for step in _steps(inner)]
    step = {key: value for key, value in setting.items() if key != "trim_offsets"}
    if step == {"type": "Digits", "individual_digits": True}:
        return [_isolated(r"\p{N}")]
    if step["type"] == "ByteLevel" and step["use_regex"]:
        return [_isolated(GPT2), step | {"use_regex": False}]
    return [step]


def _isolated(regex: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def _special(tokenizer: Tokenizer, end_ids: Sequence[int]) -> dict[str, Any]:
    """Return the ids that have a meaning, and which of them are put around a text."""
    plain, whole = (tokenizer.encode("a", add_special_tokens=added) for added in (False, True))
    first = next((i for i in range(len(whole)) if whole[i : i + len(plain)] == plain), None)
    before, after = ([], []) if first is None else (whole[:first], whole[first + len(plain) :])
    bos = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else next(iter(before), None)
    ends = list(dict.fromkeys((*tokenizer.eos_token_ids, *end_ids)))
    if first is None or before not in ([], [bos]) or after not in ([], ends[:1]):
        raise _refused(f"it encodes 'a' as {whole}, which is not {plain} between a token before and one after")
    spellings, texts = tokenizer.spellings, tokenizer.special_texts
    # Tokens of a well-known spelling end a text for every reader.
    more = [number for number in ends[1:] if spellings.get(number) not in END_TOKENS]
    if len(more) > 2:
        raise _refused(f"{len(ends)} tokens end a text, and GGUF has keys for 3")
    by_text = {key: tokenizer.backend.token_to_id(texts.get(name, "")) for key, name in _NAMED.items()}
    ids = {"bos": bos, "eos": next(iter(ends), None), **by_text, **dict(zip(("eot", "eom"), more, strict=False))}
    found = {f"{name}_token_id": number for name, number in ids.items() if number is not None}
    return {**found, "add_bos_token": bool(before), "add_eos_token": bool(after)}


_NAMED = {"unknown": "unk_token", "padding": "pad_token"}


def _check(tokenizer: Tokenizer, merges: list[list[str]], metadata: Mapping[str, Any]) -> None:
    """Raise CheckpointError where a reader of the metadata would split or join otherwise."""
    again = tokenizer_from_gguf(metadata)
    if json.loads(again.backend.to_str())["model"]["merges"] != merges:
        raise _refused("its merges are not in the order of the tokens that they make")
    _check_texts(tokenizer, again)


def _check_texts(tokenizer: Tokenizer, again: Tokenizer) -> None:
    for text in PROBES:
        have, found = tokenizer.encode(text), again.encode(text)
        if have != found:
            raise _refused(f"{text!r} is {have[:40]}, and would be read as {found[:40]}")
        if tokenizer.decode(have) != again.decode(have):
            raise _refused(f"{have[:40]} is {tokenizer.decode(have)!r}, and would be read as {again.decode(have)!r}")


def _refused(reason: str) -> CheckpointError:
    return CheckpointError(f"the tokenizer cannot be written as GGUF: {reason}")
