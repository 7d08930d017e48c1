"""The book: its navigation, its links, and what is made of the source. `python -m tests.book` mends what is stale."""

import re

import pytest

import tokenmill
from tests.book import environment
from tests.book.markdown import DOCS, ROOT
from tests.book.markdown import MADE as PARTS
from tests.book.navigation import config, pages
from tests.book.pages import MADE, old

ALL = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


def test_the_navigation_names_every_page():
    named = pages()
    missing = [name for name in ALL if name not in named]
    assert not missing, f"add a line to `nav` of mkdocs.yml (a commented one may be there) for {', '.join(missing)}"
    assert not [name for name in named if name not in ALL], "mkdocs.yml names pages that are not there"
    assert len(named) == len(set(named))


def test_the_readme_links_every_page():
    """But those of the log, which the page of the log links."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    missing = [name for name in ALL if not name.startswith("log/") and f"(docs/{name}" not in readme]
    assert not missing, f"link {', '.join(missing)} from the README"


@pytest.mark.parametrize("name", ALL)
def test_a_page_begins_with_its_title_and_links_pages(name):
    """A link out of docs/ leads nowhere in the book."""
    text = (DOCS / name).read_text(encoding="utf-8")
    assert re.match(r"# \S", text), f"{name} begins without a title"
    for link in re.findall(r"\]\((?!https?:)([^)\s#]+)", text):
        assert (DOCS / name).parent.joinpath(link).resolve().is_relative_to(DOCS), f"{name} links {link}"


@pytest.mark.parametrize("name", ALL)
def test_a_page_reads_as_it_is_written(name):
    """Text in angle brackets would be a tag, and a list that follows a paragraph without an empty line no list."""
    text = re.sub(r"^```.*?^```$", "", (DOCS / name).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    plain = re.sub(r"`[^`\n]*`", "", text)
    assert not re.findall(r"<(?!https?:|!--)[a-zA-Z|/][^>\n]*>", plain)
    for paragraph in re.split(r"\n\s*\n", plain):
        first, *others = paragraph.strip("\n").split("\n")
        is_list = re.match(r"\s*(-|\d+\.) ", first)
        assert is_list or not any(re.match(r" ?- ", line) for line in others), paragraph


@pytest.mark.parametrize("name", sorted(MADE))
def test_what_is_made_is_what_the_source_says(name):
    assert MADE[name](old(name)) == old(name), f"{name} is stale: python -m tests.book"


def test_every_public_name_of_python_is_on_a_page():
    text = "".join(old(name) for name in ALL if name.startswith("python"))
    named = set(re.findall(r"^::: [\w.]+\.(\w+)$|^ +- (\w+)$", text, re.MULTILINE))
    assert {first or second for first, second in named} - {"errors"} == set(tokenmill.__all__)


def test_parts_that_are_made_are_made_by_somebody():
    for name in ALL:
        text = (DOCS / name).read_text(encoding="utf-8")
        assert name in MADE or not PARTS.search(text), f"{name} has a part that nothing makes"


def test_every_variable_of_the_environment_is_told():
    """Those that are told and that nothing reads are left out of the page."""
    told = {**environment.READ, **environment.BUILD, **environment.SET}
    assert set(environment.found()) <= set(told), "give it a line in tests/book/environment.py"


def test_the_book_is_built_strictly_and_loads_nothing():
    """What the built pages load, `make docs` checks."""
    made = config()
    assert made["strict"] and made["theme"]["font"] is False
    assert set(made["validation"]["links"].values()) == set(made["validation"]["nav"].values()) == {"warn"}
