"""Which tests a change reaches: `make test-affected` leaves no test out that could see the change."""

import pytest

from tests.affected import RUNS_DOCUMENTS, affected, reach_of_tree

REGISTRY = """
from tokenmill.errors import Wrong
COLOURS: Names = {
    "red": Entry("as blood", "tokenmill.paint.red:Red", "tokenmill.paint.red_mixed:mix"),
    "blue": "tokenmill.paint.blue:Blue",
}
def lookup(table, name, computes=False): ...
"""
FACE = """
from tokenmill.version import VERSION
if TYPE_CHECKING:
    from tokenmill.walls.wall import Wall
_ELSEWHERE = {"Wall": "tokenmill.walls.wall:Wall", "Brush": "tokenmill.paint.brush:Brush"}
"""
CONFTEST = """
from tests.walls_of_paper import paper
from tokenmill.walls.wall import Wall
from tokenmill.paint.brush import Brush
COUNT = Brush.hairs

@pytest.fixture(autouse=True)
def everywhere():
    from tokenmill.version import VERSION

@pytest.fixture
def wall():
    return Wall()

@pytest.fixture(name="painted")
def make_painted(wall):
    return helper(wall)

def helper(wall):
    return COUNT
"""
TREE = {
    "src/tokenmill/__init__.py": FACE,
    "src/tokenmill/__main__.py": "from tokenmill.paint.colour import find",
    "src/tokenmill/registry.py": REGISTRY,
    "src/tokenmill/errors.py": "",
    "src/tokenmill/version.py": "",
    "src/tokenmill/paint/__init__.py": "",
    "src/tokenmill/paint/red.py": "",
    "src/tokenmill/paint/red_mixed.py": "",
    "src/tokenmill/paint/blue.py": "DRAWING = HERE / 'static' / 'sea.svg'",
    "src/tokenmill/paint/brush.py": "",
    "src/tokenmill/paint/colour.py": "from tokenmill.registry import COLOURS, lookup\nlookup(COLOURS, name)",
    "src/tokenmill/paint/mixed.py": "lookup(COLOURS, 'red', computes=True)",
    "src/tokenmill/walls/__init__.py": "",
    "src/tokenmill/walls/wall.py": "if TYPE_CHECKING:\n    from tokenmill.paint.brush import Brush",
    "examples/paint.py": "import tokenmill\ntokenmill.Brush",
    "tests/__init__.py": "",
    "tests/conftest.py": CONFTEST,
    "tests/walls_of_paper.py": "from tokenmill.paint.blue import Blue",
    "tests/sources.py": "import tokenmill\nROOT = tokenmill.__file__",
    "tests/test_documents.py": "",
    "tests/paint/__init__.py": "",
    "tests/paint/conftest.py": "@pytest.fixture\ndef pot(): ...",
    "tests/paint/test_red.py": "from tokenmill.paint.red import Red",
    "tests/paint/test_mixed.py": "from tokenmill.paint import mixed",
    "tests/paint/test_colour.py": "from tokenmill.paint.colour import find",
    "tests/paint/test_table.py": "from tokenmill.registry import COLOURS\nfor name in COLOURS: ...",
    "tests/walls/test_face.py": "import tokenmill\ntokenmill.Wall",
    "tests/walls/test_whole_face.py": "import tokenmill\nsorted(vars(tokenmill))",
    "tests/walls/test_fixture.py": "def test_it(wall): ...",
    "tests/walls/test_painted.py": "@pytest.mark.usefixtures('painted')\ndef test_it(): ...",
    "tests/walls/test_paper.py": "def test_it(paper): ...",
    "tests/walls/test_child.py": "run([sys.executable, '-m', 'tokenmill', 'paint'])",
    "tests/walls/test_code.py": "run('-c', 'from tokenmill.paint import red as r, brush')",
    "tests/walls/test_example.py": "run(EXAMPLES / 'paint.py')",
    "tests/walls/test_file.py": "LINES = (HERE / 'lines.json').read_text()",
    "tests/walls/test_any_table.py": "from tokenmill import registry\nregistry.lookup(table, name)",
    "tests/test_sources.py": "from tests import sources",
    "tests/test_page.py": "PAGE = ROOT / 'docs' / 'page.md'",
}
OF_SOURCES = {"tests/test_sources.py", "tests/test_documents.py"}
CASES = {
    "an import, a table that is looked up, a name in a child's code": (
        "src/tokenmill/paint/red.py",
        {
            "paint/test_red.py",
            "paint/test_colour.py",
            "walls/test_child.py",
            "walls/test_code.py",
            "walls/test_any_table.py",
        },
    ),
    "what computes, of one entry": (
        "src/tokenmill/paint/red_mixed.py",
        {"paint/test_mixed.py", "walls/test_any_table.py"},
    ),
    "an entry, and a fixture that is imported": (
        "src/tokenmill/paint/blue.py",
        {"paint/test_colour.py", "walls/test_child.py", "walls/test_paper.py", "walls/test_any_table.py"},
    ),
    "a name of the face, and fixtures": (
        "src/tokenmill/walls/wall.py",
        {"walls/test_face.py", "walls/test_whole_face.py", "walls/test_fixture.py", "walls/test_painted.py"},
    ),
    "what a helper of a fixture uses": (
        "src/tokenmill/paint/brush.py",
        {"walls/test_whole_face.py", "walls/test_painted.py", "walls/test_code.py", "walls/test_example.py"},
    ),
    "a package above what is imported": (
        "src/tokenmill/walls/__init__.py",
        {"walls/test_face.py", "walls/test_whole_face.py", "walls/test_fixture.py", "walls/test_painted.py"},
    ),
    "a file that is read by its folder's name": (
        "src/tokenmill/paint/static/sea.svg",
        {f"paint/test_{name}.py" for name in ("red", "mixed", "colour")}
        | {
            f"walls/test_{name}.py"
            for name in ("whole_face", "painted", "paper", "child", "code", "example", "any_table")
        },
    ),
    "a file that is gone": ("src/tokenmill/walls/old.py", set()),
}


@pytest.mark.parametrize("case", CASES)
def test_a_file_of_the_package_reaches_who_can_import_it(case):
    path, tests = CASES[case]
    found = affected([path], TREE)
    assert set(found) - OF_SOURCES == {f"tests/{name}" for name in tests}
    assert found == sorted(found) and set(found) >= OF_SOURCES


@pytest.mark.parametrize(
    ("path", "tests"),
    {
        "tests/walls/test_face.py": {"tests/walls/test_face.py"},
        "tests/sources.py": {"tests/test_sources.py"},
        "tests/walls_of_paper.py": {"tests/walls/test_paper.py"},
        "tests/paint/conftest.py": {f"tests/paint/test_{name}.py" for name in ("red", "mixed", "colour", "table")},
        "tests/walls/lines.json": {path for path in TREE if path.startswith("tests/walls/test_")},
        "docs/page.md": {"tests/test_documents.py", "tests/test_page.py"},
        "docs/new.md": {"tests/test_documents.py", "tests/test_page.py"},
        "README.md": {"tests/test_documents.py"},
        "examples/paint.py": {"tests/test_documents.py", "tests/walls/test_example.py"},
    }.items(),
)
def test_other_files_reach_who_names_them(path, tests):
    assert set(affected([path], TREE)) == tests


@pytest.mark.parametrize(
    "path",
    (
        *("native/step/step.cpp", "Makefile", "constraints.txt", "pyproject.toml", "hatch_build.py"),
        *("tests/conftest.py", "unknown/file.txt", "src/tokenmill/version.py"),
    ),
)
def test_what_all_need_reaches_all(path):
    assert affected([path], TREE) == [path for path in sorted(TREE) if "/test_" in path]


def test_no_change_reaches_none():
    assert affected([], TREE) == []


@pytest.mark.slow
def test_each_file_of_the_package_reaches_the_tests_of_its_name():
    reach = reach_of_tree()
    mirrored = 0
    for path in reach.sources:
        found = reach.of([path])
        folder, _, name = path.removeprefix("src/tokenmill/").removesuffix(".py").rpartition("/")
        own = f"tests/{folder}/test_{name}.py"
        if own in reach.tests:
            mirrored += 1
            assert own in found, path
        assert "tests/laws/test_law_13_structure.py" in found, path
        assert {test for test in reach.tests if test.startswith(RUNS_DOCUMENTS)} <= set(found), path
    assert mirrored > 150


@pytest.mark.slow
def test_a_test_reaches_no_more_than_it_needs():
    """Else all of it is in vain: the server needs no chat of the terminal, and a walk over pages no model."""
    reach = reach_of_tree()
    assert "tests/serve/openai/test_chat.py" not in reach.of(["src/tokenmill/cli/chat/verb.py"])
    assert "tests/memory/test_pages.py" not in reach.of(["src/tokenmill/model/decoder.py"])
