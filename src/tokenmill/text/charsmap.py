"""sentencepiece's normalisation of a text before it is split (its src/normalizer.cc): characters, then needless spaces.

Among the keys of the map that begin at a place, the longest is replaced. The `Precompiled` of `tokenizers` reads the
same map and applies it to what is one character on a screen: there "\\r\\n" is one space, and two for sentencepiece.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from tokenmill.errors import CheckpointError

_SPACE = "▁"  # sentencepiece's letter for a space
_LONGEST = 64  # bytes of a key; published ones have at most 12
_Path = tuple[bytes, int, bool]  # its bytes, where its node's children begin, whether it is a key


def any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern for any of these texts, the longest that begins at a place; without texts it finds nothing."""
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or r"(?!)")


class TextRules:
    """The changes that sentencepiece makes to a text before it is split.

    charsmap: sentencepiece's `precompiled_charsmap`, maybe empty. removes_spaces: spaces around a text go, and all but
    one of several in a row. symbols: texts of the user, which stay as they are.
    """

    def __init__(self, charsmap: bytes, removes_spaces: bool, symbols: Sequence[str] = ()) -> None:
        self.charsmap, self.removes_spaces, self.symbols = charsmap, removes_spaces, tuple(symbols)
        self._kept = any_of(symbols)
        size = int.from_bytes(charsmap[:4], "little")
        if charsmap and (size % 4 or 4 + size >= len(charsmap) or charsmap[-1]):
            raise ValueError("its map of characters is damaged")
        self._units = memoryview(charsmap[4 : 4 + size]).cast("I")  # a double array as darts-clone writes it
        self._texts = charsmap[4 + size :]
        self._from = cache(self._keys_from)

    def as_json(self) -> dict[str, Any]:
        return {
            "charsmap": b64encode(self.charsmap).decode(),
            "removes_spaces": self.removes_spaces,
            "symbols": self.symbols,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "TextRules":
        """Read what as_json made; ValueError, TypeError or KeyError for anything else."""
        symbols = [str(symbol) for symbol in values["symbols"]]
        return cls(b64decode(values["charsmap"], validate=True), bool(values["removes_spaces"]), symbols)

    def apply(self, text: str, *, continues: bool = False) -> str:
        """Return the text that is split. `continues`: it follows other text, so that a space at its beginning stays."""
        if not text:
            return text
        shown, after_space = [], self.removes_spaces and not continues
        for part in self._parts(text):
            rest = part.lstrip(" ") if after_space else part
            if rest:
                shown.append(rest)
                after_space = self.removes_spaces and rest.endswith(" ")
        return "".join(shown).rstrip(f" {_SPACE}") if self.removes_spaces else "".join(shown)

    def _parts(self, text: str) -> Iterator[str]:
        """Yield the replacement of each key of the map, of each symbol and of each other character."""
        begin = 0
        for found in self._kept.finditer(text):
            yield from self._mapped(text[begin : found.start()])
            yield found[0]
            begin = found.end()
        yield from self._mapped(text[begin:])

    def _mapped(self, text: str) -> Iterable[str]:
        if not self.charsmap:
            yield from text
            return
        begin = 0
        while begin < len(text):
            keys, longest = self._from(text[begin])
            key = text[begin : begin + longest]
            while len(key) > 1 and key not in keys:
                key = key[:-1]
            yield keys.get(key, key)
            begin += len(key)

    def _keys_from(self, first: str) -> tuple[dict[str, str], int]:
        """Return the replacements of the keys that begin with a character, and the length of the longest key."""
        paths = [(b"", self._offset(0), False)]
        for byte in first.encode():
            paths = [self._step(path, byte) for path in paths if self._has(path, byte)]
        found: dict[str, str] = {}
        try:
            while paths:
                key, place, is_key = path = paths.pop()
                if is_key:
                    begin = self._units[place] & 0x7FFFFFFF
                    found[key.decode()] = self._texts[begin : self._texts.index(0, begin)].decode()
                if len(key) < _LONGEST:
                    paths += [self._step(path, byte) for byte in range(1, 256) if self._has(path, byte)]
        except (IndexError, ValueError) as error:
            raise CheckpointError("the tokenizer's map of characters is damaged") from error
        return found, max(map(len, found), default=1)

    def _offset(self, place: int) -> int:
        unit = self._units[place]
        return (unit >> 10) << ((unit & 512) >> 6)

    def _has(self, path: _Path, byte: int) -> bool:
        place = path[1] ^ byte
        return place < len(self._units) and self._units[place] & 0x800000FF == byte

    def _step(self, path: _Path, byte: int) -> _Path:
        """Return a path through the double array, one byte longer."""
        place = path[1] ^ byte
        return path[0] + bytes([byte]), place ^ self._offset(place), bool(self._units[place] >> 8 & 1)
