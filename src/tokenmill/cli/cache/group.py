"""`tokenmill cache`: the group of verbs for what lies in the cache folder."""

from typing import Any

from tokenmill.cli.parser.command import VerbGroup
from tokenmill.registry import lookup

__all__ = ["command"]

VERBS = {"list": "tokenmill.cli.cache.list", "clear": "tokenmill.cli.cache.clear"}


class _Cache(VerbGroup):
    """Verbs of the cache folder."""

    names = tuple(VERBS)

    def module(self, name: str) -> Any:
        """See VerbGroup."""
        return lookup(VERBS, name, "verb")


command = _Cache(name="cache", help="What lies in the cache folder.", no_args_is_help=False, rich_markup_mode=None)
