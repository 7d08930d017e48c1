"""Vocabularies of three kinds: bytes, byte-level tokens, and sentencepiece's pieces with bytes as a last resort."""

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from tests.byte_model import _bytes_to_letters
from tokenmill.constrain.vocabulary import vocabulary_of
from tokenmill.text.sentencepiece import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, add_tokens, bpe_backend
from tokenmill.text.tokenizer import Tokenizer

TURN, END, TAG = "<|turn|>", "<end>", "<tool>"


def byte_level():
    """Bytes, a few longer tokens, two control tokens and one added token that is text."""
    letters = _bytes_to_letters()
    vocabulary = {letters[byte]: byte for byte in range(256)}
    merges = [("t", "r"), ("tr", "u"), ("tru", "e"), ('"', ":"), ("{", '"'), (letters[32], "a"), ("Ã", "©")]
    vocabulary |= {left + right: 256 + number for number, (left, right) in enumerate(merges)}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([END])
    backend.add_tokens([TURN, TAG])
    return Tokenizer(backend, eos_token_ids=[backend.token_to_id(END)])


def sentencepiece():
    """Control tokens first, then a token for each byte, then pieces that begin with a space or do not."""
    pieces = ["▁", "a", "b", "▁a", '"', "{", "}", ":", "tr", "ue", "true", '{"', "é", "1", "t", "r", "u", "e"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, TAG]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces), USER_DEFINED]
    backend = bpe_backend(tokens, types, [-float(number) for number in range(len(tokens))], "always")
    add_tokens(backend, tokens, types)
    return Tokenizer(backend, bos_token_id=1, eos_token_ids=[2])


TOKENIZERS = {"byte-level": byte_level(), "sentencepiece": sentencepiece()}


@pytest.fixture(scope="session", params=TOKENIZERS)
def tokenizer(request):
    return TOKENIZERS[request.param]


@pytest.fixture(scope="session")
def vocabulary(tokenizer):
    """Of logits that are wider than the tokenizer."""
    return vocabulary_of(tokenizer, tokenizer.num_tokens + 7, tokenizer.eos_token_ids)


@pytest.fixture(scope="session")
def bytes_only():
    return vocabulary_of(TOKENIZERS["byte-level"], 512, TOKENIZERS["byte-level"].eos_token_ids)
