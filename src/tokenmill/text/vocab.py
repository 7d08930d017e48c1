"""A tokenizer from the vocabulary inside a GGUF file.

GGUF stores tokens, merges or scores, and the name of a pre-tokenizer. What a file leaves out has the value that
llama.cpp takes for it (src/llama-vocab.cpp, load), since files are written for that reader. A kind of vocabulary or a
pre-tokenizer that is not known here is refused: splitting digits or spaces another way gives other tokens, and a model
that answers worse without any error. So is every key `tokenizer.…` that is not known.
"""

import logging
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import decoders, models, processors

from tokenmill.errors import CheckpointError
from tokenmill.text.pre_tokenizers import PRE_TOKENIZERS
from tokenmill.text.sentencepiece import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    Prefix,
    TextRules,
    add_tokens,
    bpe_backend,
    unigram_backend,
)
from tokenmill.text.templates import KEY, templates_from_gguf
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.text.wordpiece import own_spelling, wordpiece_backend
from tokenmill.value_reader import MAX_COUNT, ValueReader

log = logging.getLogger(__name__)

MAX_TOKEN = 1024  # characters; the longest published tokens are runs of some hundred spaces
MODEL, TOKENS = "tokenizer.ggml.model", "tokenizer.ggml.tokens"
NO_VOCABULARY = ("none", "no_vocab")  # values of MODEL in a file without a vocabulary
BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")

# Tokens that end a text or a turn whatever the metadata says, and tokens that a model for code writes where a file or a
# repository ends: llama.cpp's lists (special_eog_ids, special_fim_pad_id, special_fim_rep_id, special_fim_sep_id).
END_TOKENS = frozenset(
    """<|eot_id|> <|eom_id|> <|im_end|> <|end|> <|endoftext|> <|end_of_text|> <end_of_turn> <end_of_utterance> </s>
    <eos> <EOT> _<EOT> [EOT] [EOS] <\uff5cend▁of▁sentence\uff5c> <|return|> <|call|> <|calls|> <|flush|> <turn|> [e~[
    <|tool_response> <|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD] <|fim_repo|> <|repo_name|> <fim-repo> <REPO>
    <reponame> <|file_sep|>""".split()
)
_TAGS = {"</s>"}  # of HTML too
_CALLS = {"<|call|>", "<|calls|>"}
_FILL_IN = frozenset(
    """<|fim_prefix|> <fim-prefix> <fim_prefix> <\uff5cfim▁begin\uff5c> <PRE> ▁<PRE> <|code_prefix|> <|prefix|>
    <|fim_suffix|> <fim-suffix> <fim_suffix> <\uff5cfim▁hole\uff5c> <SUF> ▁<SUF> <|code_suffix|> <|suffix|>
    <|fim_middle|> <fim-middle> <fim_middle> <\uff5cfim▁end\uff5c> <MID> ▁<MID> <|code_middle|> <|middle|>""".split()
)
_SHOWN = frozenset("<|channel|> <|message|> <|start|> <|constrain|>".split())  # parts of an answer, of any type

# The ids that a text begins and ends with where the file names none. llama.cpp's 11 for byte-level vocabularies is left
# out: it is Falcon's <|endoftext|>, which its spelling tells, and a comma in GPT-2's.
_DEFAULT_IDS = {"llama": {"bos": 1, "eos": 2, "unknown": 0}}
_ENDS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
# Other ids with a name. A file may hold one that is no token: nothing is drawn or encoded by it.
_OTHER_IDS = (
    *("unknown", "padding", "seperator", "separator", "mask", "cls", "fim_pre", "fim_suf", "fim_mid"),
    *("prefix", "suffix", "middle"),
)
# Keys that change nothing here: they belong to other kinds of vocabularies, or say once more what others have said.
_WITHOUT_EFFECT = (
    *("ggml.token_type_count", "ggml.add_sep_token", "ggml.added_tokens", "ggml.normalizer.lowercase"),
    *("ggml.normalizer.strip_accents", "huggingface.json", "rwkv.world"),
)
_PAIRS = {"bert": "bos $A eos $B:1 eos:1", "t5": "bos $A eos eos $B eos"}  # of BERT, and of XLM-RoBERTa
_OF_ROBERTA = "bos $A eos eos $B eos"
_PAIRS_OF = {"modern-bert": "bos $A eos $B eos", "bert": _OF_ROBERTA, "jina-bert-v2": _OF_ROBERTA}
"""The pairs of encoders whose vocabulary is GPT-2's, by architecture: RoBERTa's files are BERT's."""
_PHI_3_KEEPS = ("<unk>", "<s>", "<|endoftext|>")


def has_vocabulary(metadata: Mapping[str, Any]) -> bool:
    """Return whether GGUF metadata hold a vocabulary; a file may say that it has none."""
    return TOKENS in metadata or metadata.get(MODEL, "none") not in NO_VOCABULARY


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """Return the tokenizer that GGUF metadata describe. CheckpointError where they are incomplete or of an unknown
    kind.
    """
    keys = ValueReader(metadata, "GGUF metadata", CheckpointError, "tokenizer.")
    builders = {
        "gpt2": _byte_level,
        "llama": _sentencepiece,
        "gemma4": _gemma4,
        "bert": _wordpiece,
        "t5": _unigram,
    }
    build = builders[model := keys.expect("ggml.model", ..., *builders)]
    tokens = _tokens(keys)
    ids = _named_ids(keys, model, len(tokens))
    types = _types(keys, tokens, ids, model)
    if model == "bert":
        _name_ends(tokens, types, ids)
    backend, begins = build(keys, tokens, types)
    add_tokens(backend, tokens, types, _stripping(metadata, tokens))
    ends = keys.flag("ggml.add_eos_token", model == "t5")
    if model == "bert":
        ends = keys.flag("ggml.add_sep_token", True) or ends
    put = {"bos": keys.flag("ggml.add_bos_token", begins), "eos": ends}
    around = {name: ids[name] for name, wanted in put.items() if wanted and name in ids}
    if around:
        # By names of ours: in a template, `$`, `:` and spaces inside a token's text would have a meaning.
        backend.post_processor = processors.TemplateProcessing(
            single=" ".join(part for part in ("bos", "$A", "eos") if part in (*around, "$A")),
            pair=_pairs(metadata, model) if len(around) == len(put) else None,
            special_tokens=[{"id": name, "ids": [i], "tokens": [tokens[i]]} for name, i in around.items()],
        )
    suppressed = keys.token_ids("ggml.suppress_tokens")
    rules = _rules(keys) if model == "t5" else None
    if rules is None:
        keys.expect("ggml.precompiled_charsmap", [])
    for key in _WITHOUT_EFFECT:
        keys.take(key, None)
    keys.refuse_unread(k for k in metadata if k.startswith(keys.prefix) and not k.startswith(KEY))
    words = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    templates = templates_from_gguf(metadata)
    return Tokenizer(
        backend,
        rules=rules,
        bos_token_id=ids.get("bos"),
        eos_token_ids=end_token_ids(metadata),
        chat_template=templates.pop("default", None),
        named_templates=templates,
        special_texts={word: tokens[ids[name]] for name, word in words.items() if name in ids},
        suppressed_ids=[number for number in suppressed if number < len(tokens)],
    )


def end_token_ids(metadata: Mapping[str, Any]) -> list[int]:
    """Return the ids that end a text: ids that keys of the metadata name, then tokens of a well-known spelling.

    Of a file that gives its tokens types, only control and user-defined ones: other letters may happen to be there, as
    in Qwen's `</s>`, and Gemma has that one among its user-defined HTML tags.
    """
    read = {name: metadata.get(f"tokenizer.ggml.{name}_token_id") for name in _ENDS}
    tokens, types = (metadata.get(f"tokenizer.ggml.{key}") for key in ("tokens", "token_type"))
    tokens = tokens if isinstance(tokens, list) else []
    defaults = {name: i for name, i in _DEFAULT_IDS.get(str(metadata.get(MODEL)), {}).items() if i < len(tokens)}
    named = [defaults.get(name) if number is None else number for name, number in read.items()]
    kinds: Iterable[Any] = types if isinstance(types, list) else [CONTROL] * len(tokens)
    spelled = {
        token: number
        for number, (token, kind) in enumerate(zip(tokens, kinds, strict=False))
        if token in END_TOKENS and (kind == CONTROL or (kind == USER_DEFINED and token not in _TAGS))
    }
    # Where a text of several parts ends by other tokens, <|end|> ends a part alone.
    if spelled.keys() >= {"<|return|>", "<|call|>"} or ("<|flush|>" in spelled and spelled.keys() & _CALLS):
        spelled.pop("<|end|>", None)
    return list(dict.fromkeys(number for number in (*named, *spelled.values()) if type(number) is int))


def _tokens(keys: ValueReader) -> list[str]:
    """Return every token's text; an empty one gets a name, since it can stand in no text."""
    tokens = [token or f"[EMPTY_{number}]" for number, token in enumerate(keys.entries("ggml.tokens", str))]
    longest = max(map(len, tokens), default=0)
    if not 0 < longest <= MAX_TOKEN:
        raise CheckpointError(f"tokenizer.ggml.tokens: the longest has {longest} characters, not 1 to {MAX_TOKEN}")
    if len(set(tokens)) != len(tokens):
        raise CheckpointError("tokenizer.ggml.tokens names a token twice")
    return tokens


def _pairs(metadata: Mapping[str, Any], model: str) -> str | None:
    """Find how two texts are put together that an encoder reads as a pair."""
    return _PAIRS.get(model) or _PAIRS_OF.get(str(metadata.get("general.architecture")))


def _named_ids(keys: ValueReader, model: str, count: int) -> dict[str, int]:
    """Return the ids that have a name, by their names."""
    found = {name: number for name, number in _DEFAULT_IDS.get(model, {}).items() if number < count}
    for name in ("bos", *_ENDS):
        number = keys.count(f"ggml.{name}_token_id", None, 0, count - 1)
        found |= {} if number is None else {name: number}
    for name in _OTHER_IDS:
        number = keys.count(f"ggml.{name}_token_id", None, 0, MAX_COUNT)
        if number is not None and number >= count:
            log.warning("tokenizer.ggml.%s_token_id is %d, which is no token of %d: it is ignored", name, number, count)
        elif number is not None:
            found[name] = number
    return found


def _types(keys: ValueReader, tokens: Sequence[str], ids: Mapping[str, int], model: str) -> list[int]:
    """Return every token's type; where the file has none, sentencepiece's. Marks of a known spelling are control."""
    given = keys.take("ggml.token_type", None)
    types = (
        [NORMAL] * len(tokens) if given is None else [int(kind) for kind in _numbers(keys, "ggml.token_type", tokens)]
    )
    if given is None and model == "llama":
        types = [BYTE if BYTE_TOKEN.fullmatch(token) else NORMAL for token in tokens]
    if given is None:
        named = {"bos": CONTROL, "eos": CONTROL, "unknown": UNKNOWN}
        for name in named.keys() & ids.keys():
            types[ids[name]] = named[name]
    ends = {tokens[number] for number in end_token_ids(keys.values) if number < len(tokens)}
    for number, token in enumerate(tokens):
        is_mark = given is None or types[number] == USER_DEFINED
        if token in _SHOWN:
            types[number] = USER_DEFINED
        elif is_mark and (token in _FILL_IN or (token in END_TOKENS and token in ends)):
            types[number] = CONTROL
    return types


def _stripping(metadata: Mapping[str, Any], tokens: Sequence[str]) -> list[str]:
    """Return the added tokens that take the spaces after them: Phi 3's, which llama.cpp knows by the model's name."""
    name = str(metadata.get("general.name", "")).lower()
    return [token for token in tokens if token not in _PHI_3_KEEPS] if "phi-3" in name or "phi3" in name else []


def _byte_level(keys: ValueReader, tokens: list[str], types: list[int]) -> tuple[tokenizers.Tokenizer, bool]:
    """Return the tokenizer, and whether its texts begin with the begin-of-text token by default."""
    if (given := keys.take("ggml.pre", None)) in (None, "default"):
        log.warning(
            "tokenizer.ggml.pre is %s: texts are split as llama.cpp splits them then, which may not be what the model "
            "was trained with; the setting tokenizer names another model whose tokenizer is taken",
            "missing" if given is None else "'default'",
        )
    name = keys.expect("ggml.pre", "default", *sorted(PRE_TOKENIZERS))
    vocabulary = {token: number for number, token in enumerate(tokens)}
    merges = _merges(keys, vocabulary)
    pre = PRE_TOKENIZERS[name]
    keys.take("ggml.scores", None)  # some converters write them for every vocabulary
    keys.flag("ggml.add_space_prefix", False)  # of decoding whole texts in llama.cpp alone
    keys.flag("ggml.remove_extra_whitespaces", False)
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges, ignore_merges=pre.takes_words))
    backend.pre_tokenizer = pre.build()
    backend.decoder = decoders.ByteLevel()
    return backend, pre.begins


def _merges(keys: ValueReader, vocabulary: Collection[str]) -> list[tuple[str, str]]:
    """Read the pairs of tokens that are joined, the first ones first."""
    merges = [_pair(merge) for merge in keys.entries("ggml.merges", str)]
    known = set(vocabulary)
    for left, right in merges:
        if not {left, right, left + right} <= known:
            merge = f"{left} {right}".strip()
            raise CheckpointError(f"tokenizer.ggml.merges holds {merge!r}, whose parts are no tokens")
    return merges


def _pair(merge: str) -> tuple[str, str]:
    """Return the two tokens of a merge, which a space divides; a token may begin with one."""
    left, _, right = merge[1:].partition(" ")
    return merge[:1] + left, right


def _sentencepiece(keys: ValueReader, tokens: list[str], types: list[int]) -> tuple[tokenizers.Tokenizer, bool]:
    """See _byte_level; such texts do begin with that token."""
    scores = [0.0] * len(tokens)
    if keys.take("ggml.scores", None) is not None:
        scores = _numbers(keys, "ggml.scores", tokens)
    keys.expect("ggml.pre", "default", "llama-spm")
    keys.expect("ggml.remove_extra_whitespaces", False)
    prefix: Prefix = "always" if keys.flag("ggml.add_space_prefix", True) else "never"
    return bpe_backend(tokens, types, scores, prefix), True


def _gemma4(keys: ValueReader, tokens: list[str], types: list[int]) -> tuple[tokenizers.Tokenizer, bool]:
    """See _sentencepiece; merges stand in the file, in the place of scores, and nothing is put before a text."""
    merges = _merges(keys, tokens)
    keys.take("ggml.scores", None)
    keys.expect("ggml.pre", "gemma4", "default")  # whatever it says, llama.cpp takes it for the first
    keys.expect("ggml.remove_extra_whitespaces", False)
    keys.expect("ggml.add_space_prefix", False)
    return bpe_backend(tokens, types, (), "never", merges), True


def _name_ends(tokens: list[str], types: list[int], ids: dict[str, int]) -> None:
    """Name the tokens before and after a text of BERT's, and spell all tokens as its own vocabulary does."""
    tokens[:] = [own_spelling(token, kind) for token, kind in zip(tokens, types, strict=True)]
    first, last = (tokens.index(mark) if mark in tokens else 0 for mark in ("[CLS]", "[SEP]"))
    ids["bos"] = ids.get("bos", ids.get("cls", first))
    ids["eos"] = ids.get("seperator", ids.get("separator", ids.get("eos", last)))


def _wordpiece(keys: ValueReader, tokens: list[str], types: list[int]) -> tuple[tokenizers.Tokenizer, bool]:
    """See _byte_level; such texts do begin with that token."""
    keys.take("ggml.pre", None)  # the name of a tokenizer to which it is similar: llama.cpp splits all of them alike
    keys.take("ggml.scores", None)
    unknown = keys.count("ggml.unknown_token_id", None, 0, len(tokens) - 1)
    lowers, strips = (keys.take(f"ggml.normalizer.{key}", None) for key in ("lowercase", "strip_accents"))
    for key, value in (("lowercase", lowers), ("strip_accents", strips)):
        if value is not None and not isinstance(value, bool):
            raise keys.refuse(f"ggml.normalizer.{key}", value, "true or false")
    mark = "[UNK]" if unknown is None else tokens[unknown]
    return wordpiece_backend(tokens, types, mark, lowers, strips), True


def _unigram(keys: ValueReader, tokens: list[str], types: list[int]) -> tuple[tokenizers.Tokenizer, bool]:
    """See _byte_level: XLM-RoBERTa's, whose texts begin with that token where a key says so."""
    keys.expect("ggml.pre", "default")
    prefix: Prefix = "always" if keys.flag("ggml.add_space_prefix", True) else "never"
    try:
        return unigram_backend(tokens, types, _numbers(keys, "ggml.scores", tokens), prefix), False
    except ValueError as error:
        raise CheckpointError(f"the vocabulary of a GGUF file cannot be read: {error}") from error


def _rules(keys: ValueReader) -> TextRules:
    """Read the changes to a text before it is split."""
    charsmap, removes = keys.take("ggml.precompiled_charsmap", []), keys.flag("ggml.remove_extra_whitespaces", False)
    try:
        return TextRules(bytes(charsmap), removes)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"tokenizer.ggml.precompiled_charsmap cannot be read: {error}") from error


def _numbers(keys: ValueReader, key: str, tokens: Sequence[str]) -> list[Any]:
    """Return one number per token; further ones are left over."""
    values = keys.take(key)
    are_numbers = isinstance(values, list) and all(type(v) in (int, float) and not math.isnan(v) for v in values)
    if not are_numbers or len(values) < len(tokens):
        raise keys.refuse(key, values, f"{len(tokens)} numbers, one per token")
    return list(values[: len(tokens)])
