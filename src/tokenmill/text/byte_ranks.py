"""Vocabularies of bytes and their ranks: tiktoken's files, as Llama 3's tokenizer.model, and Mistral's tekken.json.

Two neighbours are joined where that makes the token of the lowest rank. As merges, which `tokenizers` wants: every way
to make a token of two others, in the order of ranks. Special tokens come after the others in Llama 3, and before them
in a tekken.json.
"""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

from tokenmill.errors import CheckpointError
from tokenmill.text.pre_tokenizers import PRE_TOKENIZERS
from tokenmill.text.templates import templates_from_directory
from tokenmill.text.token_bytes import letters_of
from tokenmill.text.tokenizer import Tokenizer, read_json
from tokenmill.value_reader import ValueReader, brief

_LONGEST = 1 << 10  # bytes of a token, of which each split is tried

# The special tokens of older files, which do not name them: mistral_common's Tekkenizer.DEPRECATED_SPECIAL_TOKENS.
_OLD_TEKKEN = (
    "<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS] [TOOL_CALLS] "
    "[IMG] <pad> [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT]"
).split()


def llama3_specials(is_newer: bool) -> list[str]:
    """Return the special tokens of Llama 3, in the order of their ids; some have other names from Llama 3.1 on."""
    first = ["<|begin_of_text|>", "<|end_of_text|>", *map(_reserved, (0, 1))]
    headers = ["<|start_header_id|>", "<|end_header_id|>"]
    if not is_newer:
        rest = [*map(_reserved, (2, 3)), *headers, _reserved(4), "<|eot_id|>", *map(_reserved, range(5, 251))]
    else:
        turns = ["<|eom_id|>", "<|eot_id|>", "<|python_tag|>"]
        rest = ["<|finetune_right_pad_id|>", _reserved(2), *headers, *turns, *map(_reserved, range(3, 248))]
    return first + rest


def read_tiktoken(file: Path, specials: Sequence[str]) -> Tokenizer:
    """Return the tokenizer of Llama 3 from its list of bytes and ranks. CheckpointError for a damaged file."""
    tokens = list[bytes]()
    try:
        for number, line in enumerate(file.read_bytes().splitlines()):
            word, rank = line.split()
            if int(rank) != number:
                raise ValueError(f"rank {int(rank)} in line {number + 1}")
            tokens.append(base64.b64decode(word, validate=True))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} is damaged or no list of bytes and ranks: {error}") from error
    backend = tokenizers.Tokenizer(_bpe(file, tokens, 0))
    backend.pre_tokenizer = PRE_TOKENIZERS["llama3"].build()
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(each, special=True, normalized=False) for each in specials])
    names = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
    return _tokenizer(file, backend, names, ["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"])


def read_tekken(file: Path) -> Tokenizer:
    """Return the tokenizer of a tekken.json. CheckpointError for a damaged file."""
    reader = ValueReader(read_json(file), str(file), CheckpointError)
    config = reader.inside("config", required=True)
    pattern, size = config.text("pattern"), config.count("default_vocab_size")
    said = reader.take("special_tokens", None)
    specials = _OLD_TEKKEN if said is None else _specials_of(reader, said)
    count = config.count("default_num_special_tokens", len(specials), maximum=size)
    specials = [*specials, *(f"<SPECIAL_{number}>" for number in range(len(specials), count))]
    if not {"<s>", "</s>"} <= set(specials):
        raise CheckpointError(f"{file}: its special tokens lack '<s>' or '</s>'")
    vocabulary = reader.take("vocab")
    if not isinstance(vocabulary, list) or len(vocabulary) < size - count:
        raise reader.refuse("vocab", vocabulary, f"a list of at least {size - count} tokens")
    tokens = [_bytes_of(reader, each) for each in vocabulary[: size - count]]
    backend = tokenizers.Tokenizer(_bpe(file, tokens, len(specials), specials))
    try:
        split = pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated", invert=False)
    except Exception as error:  # tokenizers raises bare Exception
        raise CheckpointError(f"{file}: its pattern {brief(pattern)} cannot be used: {error}") from error
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_])
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(each, special=True, normalized=False) for each in specials])
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    return _tokenizer(file, backend, {key: name for key, name in names.items() if name in specials}, ["</s>"])


def begin_with(backend: tokenizers.Tokenizer, name: str) -> None:
    """Have a tokenizer put the token of this name before each text."""
    number = backend.token_to_id(name)
    backend.post_processor = processors.TemplateProcessing(
        single="bos $A", special_tokens=[{"id": "bos", "ids": [number], "tokens": [name]}]
    )


def _reserved(number: int) -> str:
    return f"<|reserved_special_token_{number}|>"


def _tokenizer(file: Path, backend: tokenizers.Tokenizer, names: Mapping[str, str], ends: Sequence[str]) -> Tokenizer:
    """Return the tokenizer, with the chat templates that lie beside its file."""
    begin_with(backend, names["bos_token"])
    found, templates = (backend.token_to_id(end) for end in ends), templates_from_directory(file.parent, {})
    return Tokenizer(
        backend,
        bos_token_id=backend.token_to_id(names["bos_token"]),
        eos_token_ids=[number for number in found if number is not None],
        special_texts=names,
        chat_template=templates.pop("default", None),
        named_templates=templates,
    )


def _bpe(file: Path, tokens: Sequence[bytes], first: int, specials: Sequence[str] = ()) -> models.BPE:
    """Return BPE of these tokens, whose ids are their ranks plus `first`; special tokens have the ids before them."""
    ranks = {token: rank for rank, token in enumerate(tokens)}
    if len(ranks) != len(tokens) or b"" in ranks or not all(bytes([byte]) in ranks for byte in range(256)):
        raise CheckpointError(f"{file} is damaged: its tokens must differ, and hold every byte")
    if (longest := max(map(len, tokens))) > _LONGEST:
        raise CheckpointError(f"{file} is damaged: it has a token of {longest} bytes")
    letters = {token: letters_of(token) for token in tokens}
    merges = list[tuple[str, str]]()
    for token in tokens:
        halves = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        pairs = [(ranks[a], ranks[b], a, b) for a, b in halves if a in ranks and b in ranks]
        merges += [(letters[a], letters[b]) for _, _, a, b in sorted(pairs)]
    vocabulary = {letters[token]: first + rank for rank, token in enumerate(tokens)}
    vocabulary |= {name: number for number, name in enumerate(specials)}
    return models.BPE(vocabulary, merges, ignore_merges=True)


def _specials_of(reader: ValueReader, said: Any) -> list[str]:
    """Return the names of special tokens in the order of their ranks, which must be all from 0 on."""
    found = dict[int, str]()
    for entry in said if isinstance(said, list) else [said]:
        if isinstance(entry, dict) and type(entry.get("rank")) is int and isinstance(entry.get("token_str"), str):
            found[entry["rank"]] = entry["token_str"]
    if not isinstance(said, list) or sorted(found) != list(range(len(said))) or len(set(found.values())) < len(said):
        raise reader.refuse("special_tokens", said, "tokens with their names, and ranks from 0 on")
    return [found[rank] for rank in range(len(said))]


def _bytes_of(reader: ValueReader, entry: Any) -> bytes:
    try:
        return base64.b64decode(entry["token_bytes"], validate=True)
    except (TypeError, KeyError, ValueError):
        raise reader.refuse("vocab", entry, "tokens with token_bytes in base64") from None
