"""The registry: docs/names.md is made of it, and no other file repeats a table. `python -m tests.test_registry` writes
the page.
"""

import ast
import re
from pathlib import Path

import pytest

from tests.imports import nodes
from tokenmill import registry
from tokenmill.errors import ConfigError
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.settings.field import settings_of

REPOSITORY = Path(__file__).parent.parent
PAGE = REPOSITORY / "docs" / "names.md"
OTHERS = {
    "FAMILIES": "`model_type` of a config.json",
    "EXPORTS": "`tokenmill quantize --export`",
    "TOOL_FORMATS": "`tokenmill serve --tool-format`",
}
HEAD = """# Names

What can be plugged in, as `src/tokenmill/registry.py` has it. Options and refusals are made from it, and this page by
`python -m tests.test_registry`. "auto" is a value of each of the settings.
"""


def tables():
    """Title → table, of those whose names people type or read."""
    found = {f"`{name}`": told.names for name, told in settings_of(EngineConfig).items() if told.names is not None}
    return found | {title: getattr(registry, name) for name, title in OTHERS.items()}


def _in_table(text):
    """Tokens such as <|tool_call|> as code, since they would be tags, and ends of cells."""
    return re.sub(r"<[^<>]*>", lambda token: f"`{token[0]}`", text).replace("|", "\\|")


def page():
    parts = [HEAD]
    for title, table in tables().items():
        rows = "".join(f"| `{name}` | {_in_table(registry.help_of(entry))} |\n" for name, entry in table.items())
        parts.append(f"## {title}\n\n| name | what it is |\n|---|---|\n{rows}")
    return "\n".join(parts)


def test_the_page_of_names_is_what_the_registry_says():
    assert PAGE.read_text(encoding="utf-8") == page()


def test_no_list_repeats_a_table():
    known = {title: set(table) for title, table in tables().items()}
    for path in sorted((REPOSITORY / "src").rglob("*.py")):
        if path.name == "registry.py":
            continue
        for node in nodes(path):
            words = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", ())
            names = {each.value for each in words if isinstance(each, ast.Constant)}
            for title, table in known.items():
                assert not names or not table <= names, f"{path}:{node.lineno} repeats {title}"


@pytest.mark.parametrize("title", tables())
def test_every_name_is_found_and_another_is_refused(title):
    table = tables()[title]
    for name in table:
        assert registry.lookup(table, name, title)
    with pytest.raises(ConfigError, match="use one of "):
        registry.lookup(table, "nothing", title)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
