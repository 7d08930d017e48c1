"""A grammar of rules in the making, without rules that no text with an end fits."""

import json
from collections.abc import Iterable, Mapping

Alternative = tuple[str, ...]
"""Names of rules, and terminals as Lark has them, one after the other."""


def literal(text: str) -> str:
    """Write a terminal for one text."""
    return json.dumps(text, ensure_ascii=False)


def json_text(text: str) -> str:
    """Write a text as JSON, in the one spelling that expressions have (charset.quoted)."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


class Rules:
    """Rules by their names, which all begin with one text."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._rules: dict[str, list[Alternative] | None] = {}
        self._same: dict[tuple[Alternative, ...], str] = {}
        self._terminals: dict[str, str] = {}

    def name(self) -> str:
        """Return a new name, whose rule comes later."""
        name = f"{self._prefix}_{len(self._rules)}"
        self._rules[name] = None
        return name

    def rule(self, alternatives: Iterable[Alternative], name: str | None = None) -> str:
        """Add a rule of this name, unless one says the same and no name is given; return its name."""
        made = tuple(alternatives)
        if name is None and made in self._same:
            return self._same[made]
        name = name or self.name()
        self._rules[name] = list(made)
        self._same.setdefault(made, name)
        return name

    def terminal(self, expression: str) -> str:
        """Return the name of a terminal, which needs one where it is made of others with & and ~."""
        return self._terminals.setdefault(expression, f"{self._prefix.upper()}_T{len(self._terminals)}")

    def finished(self) -> Mapping[str, str]:
        """Write the rules in Lark from which a text can be made."""
        kept = self._productive()
        terminals = {name: expression for expression, name in self._terminals.items()}
        return terminals | {
            name: " | ".join(
                " ".join(each) or '""'
                for each in self._rules[name] or ()
                if all(part not in self._rules or part in kept for part in each)
            )
            for name in self._rules
            if name in kept
        }

    def _productive(self) -> set[str]:
        """Return the rules that some text fits."""
        users: dict[str, list[tuple[str, list[str]]]] = {}
        kept, waiting = set[str](), list[str]()
        for name, alternatives in self._rules.items():
            for each in alternatives or ():
                needed = [part for part in dict.fromkeys(each) if part in self._rules]
                if not needed:
                    waiting.append(name)
                for part in needed:
                    users.setdefault(part, []).append((name, needed))
        while waiting:
            name = waiting.pop()
            if name not in kept:
                kept.add(name)
                waiting += [
                    user for user, needed in users.get(name, ()) if user not in kept and kept.issuperset(needed)
                ]
        return kept
