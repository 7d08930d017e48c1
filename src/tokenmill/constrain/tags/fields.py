"""The fields of a format: each type has its own, and what is read of them is of its right type."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from tokenmill.constrain.tags.check import FormatError

MAX_COUNT = 2**31 - 1
MAX_TEXTS = 100


class Given(NamedTuple):
    """An object of the request, and its place in it."""

    place: str
    fields: Mapping[str, Any]

    def inner(self, key: str) -> str:
        """The place of a field."""
        return f"{self.place}.{key}"

    def wrong(self, key: str, why: str) -> FormatError:
        """The error for a field."""
        return FormatError(self.inner(key), why)

    def text(self, key: str, *, may_be_empty: bool = True) -> str:
        """A text that has to be there."""
        value = self.fields.get(key)
        if not isinstance(value, str) or not (value or may_be_empty):
            raise self.wrong(key, "must be a text" + ("" if may_be_empty else " that is not empty"))
        return value

    def flag(self, key: str, *, default: bool = False) -> bool:
        """A truth value."""
        value = self.fields.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "must be true or false")
        return value

    def number(self, key: str, least: int = 0) -> int | None:
        """A whole number; None if there is none."""
        value = self.fields.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
            raise self.wrong(key, "must be a whole number")
        if not least <= value <= MAX_COUNT:
            raise self.wrong(key, f"is from {least} to {MAX_COUNT:,}")
        return int(value)

    def items(self, key: str, *, may_lack: bool = False) -> list[Any]:
        """A list, which may be absent or else is not empty."""
        value = self.fields.get(key, [] if may_lack else None)
        if not isinstance(value, list) or not (value or may_lack):
            raise self.wrong(key, "must be a list" + ("" if may_lack else " that is not empty"))
        return value

    def texts(self, key: str, *, may_lack: bool = False) -> list[str]:
        """A list of texts that are not empty."""
        found = self.items(key, may_lack=may_lack)
        if len(found) > MAX_TEXTS:
            raise self.wrong(key, f"has {len(found)} texts; {MAX_TEXTS} are possible")
        for number, each in enumerate(found):
            if not isinstance(each, str) or not each:
                raise FormatError(f"{self.inner(key)}[{number}]", "must be a text that is not empty")
        return found


def given(place: str, value: Any, fields: Mapping[str, frozenset[str]], default: str = "") -> tuple[str, Given]:
    """The type of an object, and the object. FormatError for one of no known type, or with a field that is not its."""
    if not isinstance(value, dict):
        raise FormatError(place, "must be an object, {" + (f'"type": "{default}", …' if default else '"type": …') + "}")
    kind = value.get("type", default or None)
    if not isinstance(kind, str) or kind not in fields:
        raise FormatError(f"{place}.type", f"= {kind!r:.60} is not one of {', '.join(fields)}{_meant(kind, fields)}")
    if default and kind != default:
        raise FormatError(f"{place}.type", f"= {kind!r:.60} is not possible here: only {default} is")
    for key in value:
        if key != "type" and key not in fields[kind]:
            known = ", ".join(sorted(fields[kind])) or "nothing more"
            raise FormatError(place, f"has no key {key!r:.60}; {kind} has {known}{_meant(key, fields[kind])}")
    return kind, Given(place, value)


def _meant(word: Any, known: Any) -> str:
    near = get_close_matches(word, known, n=1) if isinstance(word, str) else []
    return f"; is {near[0]!r} meant?" if near else ""
