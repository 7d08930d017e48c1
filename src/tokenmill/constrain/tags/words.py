"""Words: the terminals of a structural tag's grammar, each a regular language, and how several become one.

llguidance's lexer takes the longest match. So a word may hold any regular expression, but where one word ends and the
next begins has to be checked (see check.py).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import product

from tokenmill.text.tools.lark import ANYTHING, escaped, quoted

MAX_BRACKETS = 8
_EXCLUDES = "& ~/"
BREAK = r"/\n?/"
MAX_COUNTED = 64
"""Characters that may be counted in a text that must not hold others. To see that none of these stands in it,
llguidance goes through all that could still come, and gives up where that is long.
"""


@dataclass(frozen=True, eq=False)
class Word:
    """A terminal. expr: its expression in Lark. head: what all its texts begin with. texts: all of them, if they are
    few. named: terminals that the expression names, each with its own expression. is_apart: it joins no other.

    ends_once: no text of it is the beginning of another. family, mark: it begins with any text up to the first mark of
    the family, which is this one; without a mark it is a text that holds none. excluded: none of these stands in it.
    counted: characters that are counted in such a text. plain: the expression without what is excluded. lazy: an
    expression for a lazy terminal (shortest match) that matches the same texts. leads: a line break may stand before
    the head.
    """

    place: str
    expr: str
    head: str = ""
    texts: tuple[str, ...] = ()
    named: Mapping[str, str] = field(default_factory=dict)
    is_apart: bool = False
    ends_once: bool = False
    family: str = ""
    mark: str = ""
    excluded: tuple[str, ...] = ()
    counted: int = 0
    plain: str = ""
    lazy: str = ""
    leads: bool = False

    @property
    def heads(self) -> tuple[str, ...]:
        """The prefixes of its texts: each text begins with one of these."""
        return (self.head, "\n" + self.head) if self.leads else (self.head,)

    @property
    def may_hang(self) -> bool:
        """Whether llguidance may not see that this has ended where nothing but a token may follow. Its search for
        forced bytes fails there, unless the shortest text is read.
        """
        is_any_text = self.family and not self.mark and not self.counted
        return not is_any_text and any(_EXCLUDES in expr for expr in (self.expr, *self.named.values()))

    @property
    def is_literal(self) -> bool:
        """Whether it is one text."""
        return len(self.texts) == 1

    def flat(self) -> "Word":
        """The same by a name, if it has many brackets, since Lark's may be nested about 25 deep."""
        if self.expr.count("(") <= MAX_BRACKETS:
            return self
        name = f"PART_{sha256(self.expr.encode()).hexdigest()[:16].upper()}"
        return replace(self, expr=name, named={**self.named, name: self.expr})


def one_text(place: str, text: str) -> Word:
    """The word of one text, which is not empty."""
    return Word(place, quoted(text), text, (text,), ends_once=True)


def text_without(place: str, excluded: Iterable[str], most: int | None = None, least: int = 0) -> Word:
    """Any text in which none of these stands, of so many characters at most, and at least."""
    is_counted = least > 0 or most is not None
    anything = rf"/(.|\n){{{least},{'' if most is None else most}}}/" if is_counted else f"/{ANYTHING}/"
    if not (found := sorted(set(excluded))):
        return Word(place, anything)
    marks = "|".join(map(escaped, found))
    expr = f"({anything} & ~/{ANYTHING}({marks}){ANYTHING}/)"
    if not is_counted:
        return Word(place, expr, family=marks, excluded=tuple(found))
    return Word(place, expr, excluded=tuple(found), counted=max(least, most or 0), plain=anything)


def text_until(place: str, mark: str, excluded: Iterable[str]) -> Word:
    """Any text that ends with the first of these that stands in it, which is the mark, and not with a longer one."""
    known = sorted({mark, *excluded})
    marks, longer = "|".join(map(escaped, known)), [each for each in known if each != mark and each.endswith(mark)]
    but = f" & ~/{ANYTHING}({'|'.join(map(escaped, longer))})/" if longer else ""
    expr = rf"(/{ANYTHING}{escaped(mark)}/ & ~/{ANYTHING}({marks})(.|\n)+/{but})"
    return Word(place, expr, ends_once=True, family=marks, mark=mark)


def one_word(one: Word, other: Word) -> Word:
    """The word of the concatenation of two words."""
    if one.is_literal and other.is_literal:
        return one_text(one.place, one.head + other.head)
    named, expr = {**one.named, **other.named}, f"{one.expr} {other.expr}"
    counted = max(one.counted, other.counted)
    if one.is_literal:
        plain = f"{one.expr} {other.plain}" if other.plain else ""
        head, excluded = one.head + other.head, other.excluded
        made = Word(one.place, expr, head, named=named, excluded=excluded, counted=counted, plain=plain)
        return replace(made, ends_once=other.ends_once)
    if one.expr == BREAK and other.head and not other.leads:
        return Word(one.place, expr, other.head, (), named, counted=counted, leads=True)
    is_ended = bool(other.texts) and set(other.texts) <= set(one.excluded) and _never_overlap(other.texts)
    once = is_ended or (one.ends_once and other.ends_once)
    mark, family = one.mark, one.family if one.mark else ""
    made = Word(one.place, expr, one.head, (), named, ends_once=once, family=family, mark=mark, counted=counted)
    made = replace(made, leads=one.leads)
    if is_ended and one.plain and set(other.texts) == set(one.excluded):
        return replace(made, lazy=f"{one.plain} {other.expr}", is_apart=True)
    return made


def one_of(words: Sequence[Word]) -> Word:
    """The word of the alternation of words."""
    if len(words) == 1:
        return words[0]
    flat = [word.flat() for word in words]
    named = {name: expr for word in flat for name, expr in word.named.items()}
    texts = tuple(text for word in words for text in word.texts) if all(word.texts for word in words) else ()
    head = "" if any(word.leads for word in words) else _common([word.head for word in words])
    counted = max(word.counted for word in words)
    return Word(words[0].place, f"({' | '.join(word.expr for word in flat)})", head, texts, named, counted=counted)


def word_repeated(word: Word, least: int, times: str) -> Word:
    """The word of a repetition. times: the quantifier in Lark."""
    flat = word.flat()
    expr, head = f"({flat.expr}){times}", word.head if least and not word.leads else ""
    return Word(word.place, expr, head, named=flat.named, counted=word.counted)


def _never_overlap(texts: Sequence[str]) -> bool:
    """Whether no suffix of one of these texts is a prefix of another or of the same, and none begins with another."""
    return not any(
        one[at:] and (other.startswith(one[at:]) or one[at:].startswith(other)) and (at or one is not other)
        for one, other in product(texts, repeat=2)
        for at in range(len(one))
    )


def _common(texts: Sequence[str]) -> str:
    """The longest common prefix."""
    least, most = min(texts), max(texts)
    return next((least[:at] for at, (one, other) in enumerate(zip(least, most, strict=False)) if one != other), least)
