"""The navigation of mkdocs.yml: the pages of the book in their order."""

from collections.abc import Iterator
from typing import Any

import yaml

from tests.book.markdown import ROOT


class _Loader(yaml.SafeLoader):
    """Reads mkdocs.yml without making the objects that it names."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: None)


def config() -> dict[str, Any]:
    """What mkdocs.yml says."""
    found: dict[str, Any] = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), _Loader)
    return found


def pages() -> list[str]:
    """The pages that the navigation names."""
    return list(_pages_of(config()["nav"]))


def _pages_of(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for inner in entry.values() if isinstance(entry, dict) else entry:
            yield from _pages_of(inner)
