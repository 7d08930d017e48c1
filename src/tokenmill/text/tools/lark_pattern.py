"""A Lark grammar without recursion is converted to one regular expression.

So a text that follows it can be a string inside JSON. The patches of Codex have such a grammar.
"""

import re
from collections.abc import Iterator

from tokenmill.text.tools.lark import escaped

MAX_PATTERN = 200_000  # characters, since each rule is written out where it is used
COMMON = {
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
    "WS": r"[ \t\f\r\n]+",
    "WS_INLINE": r"[ \t]+",
    "DIGIT": r"[0-9]",
    "HEXDIGIT": r"[0-9a-fA-F]",
    "INT": r"[0-9]+",
    "SIGNED_INT": r"[+\-]?[0-9]+",
    "DECIMAL": r"(?:[0-9]+\.[0-9]*|\.[0-9]+)",
    "LCASE_LETTER": r"[a-z]",
    "UCASE_LETTER": r"[A-Z]",
    "LETTER": r"[a-zA-Z]",
    "WORD": r"[a-zA-Z]+",
    "CNAME": r"[_a-zA-Z][_a-zA-Z0-9]*",
}
"""Lark's library of terminals, as much of it as is short."""

_BEGIN = re.compile(r"[?!]*([A-Za-z_]\w*)(?:\.-?\d+)?\s*:(.*)", re.DOTALL)
_IMPORT = re.compile(r"%import\s+common\.(\w+)(?:\s*->\s*(\w+))?\s*(?://.*)?")
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<comment>//[^\n]*|\#[^\n]*)
      | (?P<string>"(?:\\.|[^"\\])*"i?)
      | (?P<regex>/(?:\\.|[^/\\\n])+/[imslux]*)
      | (?P<alias>->\s*\w+)
      | (?P<name>[A-Za-z_]\w*)
      | (?P<range>\.\.)
      | (?P<times>~\s*\d+(?:\s*\.\.\s*\d+)?|\{\s*\d*\s*,?\s*\d*\s*\})
      | (?P<sign>[|()\[\]?*+])
    )""",
    re.VERBOSE,
)
_BRACKET = re.compile(r"\\.|[()\[\]]", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


def pattern_of(grammar: str) -> str:
    """Return the regular expression of a grammar. ValueError, in words, for a grammar that cannot be one."""
    return Pattern(rules_of(grammar)).of_rule("start")


def pattern_of_text(text: str) -> str:
    """Return the regular expression of one text, range or expression of a grammar."""
    return _Reader(text, Pattern({})).whole()


def grouped(expression: str) -> str:
    """Write a regular expression as one group of another. ValueError where a bracket of its own would close it."""
    depth, sets = 0, list[int]()  # groups and sets that are open; of sets, where a ] is their end
    for found in _BRACKET.finditer(expression):
        bracket, at = found[0], found.start()
        if bracket == "[":
            sets.append(at + 2 + expression.startswith("^", at + 1))
        elif sets and bracket == "]" and at >= sets[-1]:
            sets.pop()
        elif not sets and bracket in "()":
            depth += 1 if bracket == "(" else -1
            if depth < 0:
                raise ValueError(f"a ) of {expression[:40]!r} closes no group")
    return f"(?:{expression})"


class RefersToItself(ValueError):
    """A rule is part of itself, which no regular expression says."""


def rules_of(grammar: str) -> dict[str, str]:
    """Return the text of each rule and terminal; of an imported one the name of what it is, after a %."""
    if len(grammar) > MAX_PATTERN:
        raise ValueError(f"it has more than {MAX_PATTERN:,} characters")
    found: dict[str, str] = {}
    last = ""
    for line in grammar.splitlines():
        stripped = line.strip()
        if stripped.startswith("%"):
            if (imported := _IMPORT.fullmatch(stripped)) is None or imported[1] not in COMMON:
                raise ValueError(f"{stripped[:60]!r} is not supported; there is %import common.NAME")
            found[imported[2] or imported[1]] = f"%{imported[1]}"
        elif (begun := _BEGIN.fullmatch(line.lstrip())) is not None and not stripped.startswith(("|", "//")):
            last = begun[1]
            if last in found:
                raise ValueError(f"the rule {last!r} is there twice")
            found[last] = begun[2]
        elif last:
            found[last] += f"\n{line}"
        elif stripped and not stripped.startswith(("//", "#")):
            raise ValueError(f"{stripped[:60]!r} is no rule")
    if "start" not in found:
        raise ValueError("it has no rule `start`")
    return found


class Pattern:
    """The expressions of the rules, each written out where it is used."""

    def __init__(self, rules: dict[str, str]) -> None:
        self._rules = rules
        self._made: dict[str, str] = {}
        self._open: list[str] = []  # rules that are being made

    def of_rule(self, name: str) -> str:
        """Return the expression of one rule."""
        if name in self._made:
            return self._made[name]
        if name not in self._rules:
            raise ValueError(f"there is no rule {name!r}")
        if name in self._open:
            raise RefersToItself(f"the rule {name!r} refers to itself")
        if self._rules[name].startswith("%"):
            return COMMON[self._rules[name][1:]]
        self._open.append(name)
        made = _Reader(self._rules[name], self).whole()
        self._open.pop()
        if len(made) > MAX_PATTERN:
            raise ValueError(f"written out it has more than {MAX_PATTERN:,} characters")
        self._made[name] = made
        return made


class _Reader:
    """A reader of the right side of a rule."""

    def __init__(self, text: str, pattern: Pattern) -> None:
        self._tokens = list(tokens_of(text))
        self._at, self._pattern = 0, pattern

    def whole(self) -> str:
        """Read all of it."""
        made = self._choice()
        if self._at < len(self._tokens):
            raise ValueError(f"{self._tokens[self._at][1]!r} is not expected")
        return made

    def _choice(self) -> str:
        found = [self._row()]
        while self._take("|"):
            found.append(self._row())
        return f"(?:{'|'.join(found)})" if len(found) > 1 else found[0]

    def _row(self) -> str:
        parts = []
        while self._at < len(self._tokens) and self._tokens[self._at][1] not in ("|", ")", "]"):
            if self._tokens[self._at][0] == "alias":
                self._at += 1
            else:
                parts.append(self._repeated(self._one()))
        return "".join(parts)

    def _one(self) -> str:
        kind, text = self._tokens[self._at]
        self._at += 1
        if kind == "name":
            return self._pattern.of_rule(text)
        if kind == "regex":
            return _regex(text)
        if kind == "string":
            return self._range(text) if self._at < len(self._tokens) and self._take("..") else _literal(text)
        if text in ("(", "["):
            inner = self._choice()
            if not self._take(")" if text == "(" else "]"):
                raise ValueError(f"a {text} is not closed")
            return f"(?:{inner}){'?' if text == '[' else ''}"
        raise ValueError(f"{text!r} is not expected")

    def _range(self, first: str) -> str:
        kind, last = self._tokens[self._at] if self._at < len(self._tokens) else ("", "")
        self._at += 1
        ends = [_spelled(each) for each in (first, last)] if kind == "string" else []
        if len(ends) != 2 or any(len(end) != 1 for end in ends):
            raise ValueError('a range has two characters: "a".."z"')
        return f"[{escaped(ends[0])}-{escaped(ends[1])}]"

    def _repeated(self, one: str) -> str:
        while self._at < len(self._tokens):
            kind, text = self._tokens[self._at]
            if text in ("?", "*", "+"):
                one = f"(?:{one}){text}"
            elif kind == "times":
                one = f"(?:{one}){times_of(text)}"
            else:
                break
            self._at += 1
        return one

    def _take(self, text: str) -> bool:
        if self._at < len(self._tokens) and self._tokens[self._at][1] == text:
            self._at += 1
            return True
        return False


def tokens_of(text: str) -> Iterator[tuple[str, str]]:
    """Yield the kind and the text of each token of a rule, without comments."""
    if text.startswith("%"):
        return
    at, text = 0, text.rstrip()
    while at < len(text):
        if (found := _TOKEN.match(text, at)) is None or found.lastgroup is None:
            raise ValueError(f"{text[at:].strip()[:40]!r} is not expected")
        at = found.end()
        if found.lastgroup != "comment":
            yield found.lastgroup, found[found.lastgroup]


def times_of(text: str) -> str:
    """Write how often something is repeated, as expressions have it: {2,3}."""
    numbers = re.findall(r"\d+|,|\.\.", text)
    numbers = ["0", *numbers] if numbers[:1] == [","] else numbers
    inner = ",".join(part for part in " ".join(numbers).replace(",", " , ").split() if part.isdigit())
    return f"{{{inner or 0}{',' if numbers and numbers[-1] == ',' else ''}}}"


def _spelled(text: str) -> str:
    """Return the characters of a string."""
    inner = text[1 : text.rindex('"')]

    def escape(found: re.Match[str]) -> str:
        body = found[1]
        return chr(int(body[1:], 16)) if body[0] in "xu" and len(body) > 1 else _ESCAPES.get(body, body)

    return re.sub(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", escape, inner, flags=re.DOTALL)


def _literal(text: str) -> str:
    made = escaped(_spelled(text))
    return f"(?i:{made})" if text.endswith("i") else made


def _regex(text: str) -> str:
    end = text.rindex("/")
    inner, flags = text[1:end].replace("\\/", "/"), text[end + 1 :]
    if "x" in flags:
        raise ValueError(f"{text[:40]!r}: the flag x is not supported")
    kept = "".join(flag for flag in flags if flag in "ims")
    made = grouped(inner)
    return f"(?{kept}:{inner})" if kept else made
