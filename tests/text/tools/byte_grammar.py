"""Whether llguidance's grammar admits a text, over a vocabulary of bytes and a few control tokens."""

from functools import lru_cache

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

END = 256


class _Bytes:
    bos_token_id = None
    eos_token_id = END

    def __init__(self, control):
        self.tokens = [bytes([number]) for number in range(256)] + [b"\xff<end>"]
        self.tokens += [b"\xff" + spelling.encode() for spelling in control]
        self.special_token_ids = list(range(END, len(self.tokens)))

    def __call__(self, text):
        return list(text)


@lru_cache
def tokenizer(control):
    return LLTokenizer(TokenizerWrapper(_Bytes(control)))


def ids_of(control):
    """Spelling → id of control tokens."""
    return {spelling: END + 1 + number for number, spelling in enumerate(control)}


def tokens_of(text, control=()):
    """A text as tokens, with control tokens where it spells them."""
    found, at = [], 0
    while at < len(text):
        mark = next((mark for mark in control if text.startswith(mark, at)), None)
        found += [ids_of(control)[mark]] if mark else text[at].encode()
        at += len(mark or "x")
    return found


def admitted(grammar, text, control=(), *, in_letters=False):
    """ "whole", "prefix", or the text up to the first token that the grammar refuses.

    in_letters: control tokens of the vocabulary are spelled.
    """
    matcher = LLMatcher(tokenizer(tuple(control)), grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = tokens_of(text, () if in_letters else control)
    taken = matcher.try_consume_tokens(tokens)
    if taken == len(tokens):
        return "whole" if matcher.is_accepting() else "prefix"
    return b"".join(bytes([token]) if token < END else b"#" for token in tokens[:taken]).decode(errors="replace")
