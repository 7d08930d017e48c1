"""The grammar of a node in llguidance's Lark."""

from typing import Any

from tokenmill.constrain.tags.check import Checked
from tokenmill.constrain.tags.nodes import Choice, Concatenation, Node, Repetition, Token, Value, times
from tokenmill.constrain.tags.words import Word

NO_FORCING = '%llguidance {"no_forcing": true}\n'


def grammars_of(checked: Checked) -> list[dict[str, Any]]:
    """The grammar, and those that it names."""
    written = _Written(checked.lazy)
    lines = [f"start: {written.expr(checked.node)}"]
    lines += [f"{name}{options}: {body}" for (body, options), name in written.names.items()]
    lines += [f"{name}: {body}" for name, body in written.named.items()]
    head = "" if checked.may_force else NO_FORCING
    return [{"name": "tags", "lark_grammar": head + "\n".join(lines)}, *written.grammars]


class _Written:
    """names: the body and the options of each rule and terminal → its name. named: terminals in them → bodies."""

    def __init__(self, lazy: frozenset[Word]) -> None:
        self._lazy = lazy
        self.names: dict[tuple[str, str], str] = {}
        self.named: dict[str, str] = {}
        self.grammars: list[dict[str, Any]] = []

    def expr(self, node: Node) -> str:
        """An expression for a node, without brackets, which may not be nested deep: inner ones are rules."""
        if isinstance(node, Concatenation):
            return " ".join(map(self._inner, node.parts)) if node.parts else '""'
        if isinstance(node, Choice):
            return " | ".join(map(self._inner, node.parts))
        if isinstance(node, Repetition):
            return f"{self._inner(node.part)}{times(node.least, node.most)}"
        return self._inner(node)

    def _inner(self, node: Node) -> str:
        """The name of a node, or a token."""
        if isinstance(node, Word):
            self.named.update(node.named)
            is_lazy = node in self._lazy
            return self._name(node.lazy or node.expr, "lazy", "[lazy]") if is_lazy else self._name(node.expr, "WORD")
        if isinstance(node, Token):
            return node.expr
        if isinstance(node, Value):
            if node.grammar is not None and node.grammar not in self.grammars:
                self.grammars.append(node.grammar)
            return self._name(node.body, "value")
        return self._name(self.expr(node), "rule")

    def _name(self, body: str, kind: str, options: str = "") -> str:
        return self.names.setdefault((body, options), f"{kind}_{len(self.names)}")
