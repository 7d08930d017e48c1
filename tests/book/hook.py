"""Hooks of mkdocs: in a table a bar behind a backslash is a bar, in code too, as on GitHub; the log and the map of the
code are not searched, because they have every word and would hide the pages that answer a question.
"""

import re
from typing import Any

UNSEARCHED = ("log.md", "log/", "map.md")
"""Pages, and folders of pages, that the search leaves out."""


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """The page's text, as it is; marked for the search where that leaves it out."""
    if page.file.src_uri.startswith(UNSEARCHED):
        page.meta["search"] = {"exclude": True}
    return markdown


def on_page_content(html: str, **_: object) -> str:
    """The page as it was rendered, with bars in the cells of its tables."""
    return re.sub(r"<td\b.*?</td>", lambda cell: cell[0].replace("\\|", "|"), html, flags=re.DOTALL)
