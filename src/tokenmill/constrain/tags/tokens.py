"""The texts and tokens that a format names, looked up in the model's vocabulary. A text that names a control token
becomes that token: the same letters in ordinary tokens do not count for it.
"""

import re
from collections.abc import Iterable
from typing import Any

from tokenmill.constrain.tags.check import ANY_BYTE, FormatError
from tokenmill.constrain.tags.fields import Given, given
from tokenmill.constrain.tags.nodes import Node, Stop, Token, concatenation, literal
from tokenmill.constrain.vocabulary import CONTROL, Vocabulary

FIELDS = {"token": frozenset({"token"})}


class Tokens:
    """The tokens of a vocabulary by their spelling."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        words = sorted(filter(None, vocabulary.control), key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(map(re.escape, words))})" if words else r"(?!)")

    def text(self, place: str, text: str) -> Node:
        """The nodes of a text: a token for each control token in it, and words for the rest."""
        control = self._vocabulary.control
        parts = filter(None, self._split.split(text))
        return concatenation(
            self.one(place, control[part]) if part in control else literal(place, part) for part in parts
        )

    def letters(self, texts: Iterable[str]) -> list[str]:
        """The texts in which no control token stands."""
        return [text for text in texts if self._split.search(text) is None]

    def one(self, place: str, number: int) -> Node:
        """The node of one token."""
        if number in self._vocabulary.ends:
            return Stop(place)
        raw = self._vocabulary.spelled[number]
        return Token(place, (number,), first=frozenset() if raw.startswith(CONTROL) else frozenset(raw[:1]))

    def but(self, place: str, ids: Iterable[int]) -> Token:
        """The node of one token that is neither among these ids nor ends the model's text."""
        return Token(place, tuple(sorted({*ids, *self._vocabulary.ends})), is_but=True, first=ANY_BYTE)

    def ids(self, fields: Given, key: str, *, may_lack: bool = False) -> list[int]:
        """The ids of the tokens that a field lists."""
        items = fields.items(key, may_lack=may_lack)
        return [self.id_of(f"{fields.inner(key)}[{number}]", each) for number, each in enumerate(items)]

    def id_of(self, place: str, value: Any) -> int:
        """The id of a token that is given as a number, or as what it spells."""
        known = self._vocabulary
        if isinstance(value, int) and not isinstance(value, bool):
            if not 0 <= value < min(known.size, len(known.spelled)) or not known.spelled[value]:
                raise FormatError(place, f"= {value} is no token of this model")
            return value
        if not isinstance(value, str) or not value:
            raise FormatError(place, "must be the id of a token, or the text that it spells")
        if value in known.control:
            return known.control[value]
        found = known.ids.get(value.encode())
        if found is None:
            raise FormatError(place, f"= {value!r:.60} is not one token of this model")
        return found

    def of_object(self, place: str, value: Any) -> int:
        """The token that stands for the beginning or the end of a tag, {"type": "token", "token": …}."""
        _, fields = given(place, value, FIELDS, "token")
        return self.id_of(fields.inner("token"), fields.fields.get("token"))
