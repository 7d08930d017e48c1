"""DRY's sequence breakers as tokens: which tokens hold a breaker, and which begin one that the next tokens end.

As in llama.cpp (src/llama-sampler.cpp, `get_overlapping_token_sequences`, after Koboldcpp): a breaker may begin at the
end of a token and end in others, which are the usual tokens of its rest. Unlike there, the rest is encoded as it
stands behind other text, so that sentencepiece puts no space before it.
"""

from collections import defaultdict
from collections.abc import Mapping
from weakref import WeakKeyDictionary

from tokenmill.text.token_bytes import bytes_of_each
from tokenmill.text.tokenizer import Tokenizer

MAX_LISTS = 32  # of texts that requests name, whose tokens are kept
MAX_BYTES, MAX_TAIL = 40, 20  # llama.cpp's: of a breaker, and tokens after the first one
Breakers = Mapping[int, tuple[tuple[int, ...], ...]]
"""For each token that begins a breaker, the tokens that end it: none where the token holds all of it."""

_VOCABULARIES: "WeakKeyDictionary[Tokenizer, list[bytes]]" = WeakKeyDictionary()
_FOUND: "WeakKeyDictionary[Tokenizer, dict[tuple[str, ...], Breakers]]" = WeakKeyDictionary()


def breakers_of(tokenizer: Tokenizer, texts: tuple[str, ...]) -> Breakers:
    """Find the tokens of some breakers, of which the first MAX_BYTES bytes count."""
    known = _FOUND.get(tokenizer, {})
    if (found := known.get(texts)) is None:
        found = _find(tokenizer, [text.encode(errors="surrogatepass")[:MAX_BYTES] for text in texts if text])
        _FOUND[tokenizer] = {**(known if len(known) < MAX_LISTS else {}), texts: found}
    return found


def _find(tokenizer: Tokenizer, wanted: list[bytes]) -> Breakers:
    vocabulary = _vocabulary(tokenizer)
    of_byte = {raw: number for number, raw in reversed(list(enumerate(vocabulary))) if len(raw) == 1}
    beginnings: dict[bytes, list[tuple[bytes, tuple[int, ...]]]] = defaultdict(list)
    for text in wanted:
        for cut in range(1, len(text)):
            if (tail := _tail(tokenizer, of_byte, text[cut:])) is not None:
                beginnings[text[:cut]].append((text, tail))
    longest, last_bytes = max(map(len, beginnings), default=0), {beginning[-1:] for beginning in beginnings}
    found = {}
    for number, own in enumerate(vocabulary):
        held = [text for text in wanted if text in own]
        tails = [()] if held else list[tuple[int, ...]]()
        if own[-1:] in last_bytes:
            ends = [own[-size:] for size in range(1, min(len(own), longest) + 1)]
            tails += [tail for end in ends for text, tail in beginnings.get(end, ()) if text not in held]
        if tails:
            found[number] = tuple(dict.fromkeys(tails))
    return found


def _vocabulary(tokenizer: Tokenizer) -> list[bytes]:
    """Return the bytes of every token; 150,000 take a second, once."""
    if tokenizer not in _VOCABULARIES:
        _VOCABULARIES[tokenizer] = bytes_of_each(tokenizer, range(tokenizer.num_tokens))
    return _VOCABULARIES[tokenizer]


def _tail(tokenizer: Tokenizer, of_byte: Mapping[bytes, int], rest: bytes) -> tuple[int, ...] | None:
    """Encode the rest of a breaker; None where it begins or ends within a character that no tokens of bytes spell."""
    begin = next((place for place, byte in enumerate(rest) if byte & 0xC0 != 0x80), len(rest))
    text = rest[begin:].decode(errors="ignore")
    begun, cut = rest[:begin], rest[begin + len(text.encode()) :]
    if not all(bytes([byte]) in of_byte for byte in (*begun, *cut)):
        return None
    first, last = ([of_byte[bytes([byte])] for byte in part] for part in (begun, cut))
    middle = tokenizer.encode(text, add_special_tokens=False, continues=True) if text else []
    return (*first, *middle, *last)[:MAX_TAIL]
