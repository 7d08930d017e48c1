"""Every command that a document shows can be typed, and those of the README's "Use it" run as they are written."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from tokenmill.cli.main import main

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(path):
    """The fenced blocks of a document: their language and their lines."""
    return [
        (language, text.splitlines())
        for language, text in re.findall(r"^```(\w*)\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL)
    ]


def commands(path):
    """The lines of its shell blocks that call tokenmill, with continued lines joined."""
    for language, lines in blocks(path):
        if language in ("", "sh", "bash", "console"):
            for shown in "\n".join(lines).replace("\\\n", " ").splitlines():
                line = shown.strip().removeprefix("$ ")
                if re.search(r"^(.*\| )?tokenmill ", line):
                    yield line


def arguments(line):
    """What the verb is given: the words after `tokenmill`, without a comment, a pipe or a redirection."""
    words = shlex.split(line, comments=True)
    words = words[words.index("tokenmill") + 1 :]
    ends = [index for index, word in enumerate(words) if word in ("|", ">", "2>", "&&", ";")]
    return words[: min(ends)] if ends else words


ALL = sorted({(path.name, line) for path in DOCUMENTS for line in commands(path)})


@pytest.mark.parametrize(("document", "line"), ALL)
def test_what_a_document_shows_can_be_typed(document, line, monkeypatch, capsys):
    monkeypatch.setattr(typer.core.TyperCommand, "invoke", lambda *_: None)  # options are read, and nothing is run
    assert main(arguments(line)) == 0, capsys.readouterr().err


def test_the_documents_show_commands():
    assert len(ALL) > 50
    assert {"README.md", "benchmarks.md", "compiling.md", "kv-cache.md"} <= {document for document, _ in ALL}


def section(title):
    """The blocks of one section of the README."""
    text = (ROOT / "README.md").read_text()
    return re.search(rf"^## {title}\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)[1]


@pytest.fixture
def folder(tmp_path):
    """An empty folder with the files that the README's commands read, and `tokenmill` on the path."""
    shutil.copy(ROOT / "README.md", tmp_path)
    (tmp_path / "notes.txt").write_text("The mill stands beside the river.\n")
    return tmp_path


@pytest.mark.model
@pytest.mark.compiler
def test_the_commands_of_the_readme_run_as_written(folder):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    lines = re.search(r"^```\n(.*?)^```$", section("Use it"), re.MULTILINE | re.DOTALL)[1].splitlines()
    assert len(lines) > 10
    for line in lines:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", line],
            cwd=folder,
            env=os.environ | {"PATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{line}: {done.stderr}"
        assert "Traceback" not in done.stderr, line


@pytest.mark.model
def test_the_python_of_the_readme_runs_as_written(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    programs = re.findall(r"^```python\n(.*?)^```$", section("Use it"), re.MULTILINE | re.DOTALL)
    assert programs
    for program in programs:
        exec(compile(program, "README.md", "exec"), {})
    assert "Paris" in capsys.readouterr().out
