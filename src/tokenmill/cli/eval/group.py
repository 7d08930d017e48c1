"""`tokenmill eval`: the group of verbs that say how good a model is."""

from typing import Any

from tokenmill.cli.parser.command import VerbGroup
from tokenmill.registry import lookup

__all__ = ["command"]

VERBS = {
    "perplexity": "tokenmill.cli.eval.perplexity",
    "compare": "tokenmill.cli.eval.compare",
    "tasks": "tokenmill.cli.eval.tasks",
}


class _Eval(VerbGroup):
    """Each verb measures in its own way."""

    names = tuple(VERBS)

    def module(self, name: str) -> Any:
        """See VerbGroup."""
        return lookup(VERBS, name, "verb")


command = _Eval(name="eval", help="How good a model is.", no_args_is_help=False, rich_markup_mode=None)
