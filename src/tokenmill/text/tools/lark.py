"""The text of a grammar in llguidance's Lark, put together of literals, terminals, JSON schemas and rules."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from tokenmill.text.schema.grammar import JsonStyle, rules_of
from tokenmill.text.schema.spelled import all_spelled

ESCAPES = 'bfnrtu"\\'  # escapes that Python's json writes, so that an old call is written as the model wrote it
ANYTHING = r"(.|\n)*"


FORCING = '%llguidance {"no_forcing": false}\n'
"""The first line of a grammar in which llguidance looks for bytes that must come. The search for them has an end only
where each beginning of a text can be finished, which is so in grammars that no user has written."""
_SPECIAL = re.compile(r"([\\^$.|?*+()\[\]{}/\-&~#])")


def quoted(text: str) -> str:
    """Write a literal text."""
    return json.dumps(text, ensure_ascii=False)


def escaped(text: str) -> str:
    """Write a literal text inside a regular expression."""
    return _SPECIAL.sub(r"\\\1", text).replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")


class Lark:
    """A grammar in the making. control: spelling → id of the vocabulary's control tokens, which letters never spell."""

    def __init__(self, control: Mapping[str, int]) -> None:
        self.control = control
        self._rules: dict[str, tuple[str, str]] = {}
        self._references: dict[tuple[str, str], str] = {}

    def literal(self, text: str) -> str:
        """Return an expression for this text, with control tokens where it spells them.

        White space stands alone: the longest terminal that fits is read, so that a line break which is one terminal,
        and begins another, would never end where it does.
        """
        words = "|".join([*map(re.escape, sorted(self.control, key=len, reverse=True)), r"\s+"])
        return " ".join(
            f"<[{self.control[part]}]>" if part in self.control else quoted(part)
            for part in re.split(f"({words})", text)
            if part
        )

    def rule(self, name: str, body: str, options: str = "") -> str:
        """Add a rule or, with an upper-case name, a terminal; return its name, for use in others."""
        assert self._rules.get(name, (body, options)) == (body, options), name
        self._rules[name] = body, options
        return name

    def reference(self, owner: str, place: str) -> tuple[str, bool]:
        """Return the name of the rule for a place in a schema of this owner, and whether it must still be made."""
        is_new = (owner, place) not in self._references
        return self._references.setdefault((owner, place), f"reference_{len(self._references)}"), is_new

    def json(self, name: str, schema: Mapping[str, Any], strict: bool | None = None) -> str:
        """Add a rule for JSON text of a schema, as Python's json.dumps spaces it; return its name. strict: see
        Function. ValueError for a schema of which no rule can be made.
        """
        own = {
            "item_separator": ", ",
            "key_separator": ": ",
            "whitespace_flexible": False,
            "lenient": strict is not True,
            "json_allowed_escapes": ESCAPES,
        }
        try:
            read = all_spelled(schema)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        made = rules_of(read, f"{name}_json", JsonStyle(own, ", ", ": "))
        if made is None:
            return self.rule(name, "%json " + json.dumps({**read, "x-guidance": own}, ensure_ascii=False))
        first, rules = made
        for each, body in rules.items():
            self.rule(each, body)
        return self.rule(name, first)

    def text(self, *, without: Iterable[str] = ()) -> str:
        """Return an expression for any text that does not begin, after white space, with one of these."""
        if not (begins := [escaped(begin) for begin in without]):
            return self.rule("TEXT", f"/{ANYTHING}/")
        return self.rule("TEXT", rf"/{ANYTHING}/ & ~/[ \t\r\n]*({'|'.join(begins)}){ANYTHING}/")

    def until(self, name: str, mark: str, before: str) -> str:
        """Return an expression for text that goes on up to the first place where this mark stands, and for the mark.

        before: an expression for the text. A mark that is a control token ends it too when it is spelled in letters.
        """
        spelled = self.rule(f"{name}_spelled", f"{before} {quoted(mark)}", "[lazy]")
        return f"({before} <[{self.control[mark]}]> | {spelled})" if mark in self.control else spelled

    def __str__(self) -> str:
        lines = [f"{name}{options}: {body}" for name, (body, options) in self._rules.items()]
        return "\n".join(["%llguidance {}", *lines, ""])


def choice(expressions: Iterable[str]) -> str:
    """Return an expression for one of these."""
    found = list(expressions)
    return found[0] if len(found) == 1 else f"({' | '.join(found)})"
