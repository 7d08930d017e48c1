"""Agents run in a scratch folder, against a server whose model says what a script wants."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.parallel.processes import wait_until
from tests.serve.conftest import served
from tests.serve.scripted import in_turn, save_scripted_model, scripted
from tokenmill.cli.launch.agents import AGENTS

HERE, REPOSITORY = Path(__file__).parent, Path(__file__).parents[3]
DOCUMENT = REPOSITORY / "docs" / "agents.md"
NAME = "local"  # of the model, in the document
SETTINGS = {"max_length": 64_000, "max_sequences": 4, "cache_tokens": 160_000, "block_size": 16, "dtype": "float32"}


def program(name):
    """The path of an agent's program."""
    folders = [HERE / "node_modules" / ".bin", *(REPOSITORY / ".venv" / "agents").glob("*/bin")]
    if (own := os.environ.get("TOKENMILL_AGENTS")) is not None:
        folders.insert(0, Path(own))
    found = shutil.which(name, path=os.pathsep.join(map(str, folders)))
    assert found, f"there is no {name}: `make test-agents` installs it, or TOKENMILL_AGENTS names a folder that has it"
    return found


@dataclass
class Desk:
    """A server and an empty folder. lines: the server's log. script: what the model was asked, and its departures."""

    url: str
    folder: Path
    home: Path
    script: object
    lines: list = field(default_factory=list)

    def run(self, name, *arguments, seconds=240, **environment):
        """Run an agent in the folder to its end; what it prints."""
        kept = {each: os.environ[each] for each in ("PATH", "LANG", "TERM") if each in os.environ}
        given = {**kept, "HOME": str(self.home), "XDG_CONFIG_HOME": str(self.home / ".config"), "NO_COLOR": "1"}
        done = subprocess.run(
            [name if Path(name).is_absolute() else program(name), *map(str, arguments)],
            cwd=self.folder,
            env={**given, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        said = done.stdout + done.stderr
        assert done.returncode == 0, said + "\n".join(self.lines)
        return said

    def documented(self, title, *more, number=-1, **environment):
        """Make the files that docs/agents.md shows under a title, and run its command, or one of several, with more
        arguments; what it prints.
        """
        section = DOCUMENT.read_text(encoding="utf-8").partition(f"\n## {title}\n")[2].partition("\n## ")[0]
        section = section.replace("http://127.0.0.1:8000", self.url).replace("~/", f"{self.home}/")
        for name, content in re.findall(r"^`(\S+)`:\n\n```\w+\n(.*?)^```$", section, re.MULTILINE | re.DOTALL):
            file = self.folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content, encoding="utf-8")
        section = re.sub(r"^```\w+\n.*?^```$", "", section, flags=re.MULTILINE | re.DOTALL)
        lines = re.findall(r"^```\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)[0].splitlines()
        words = shlex.split(lines[number])
        place = next(at for at, word in enumerate(words) if not re.fullmatch(r"[A-Z_]+=\S*", word))
        given = dict(word.split("=", 1) for word in words[:place])
        return self.run(*words[place:], *more, **given, **environment)

    def launched(self, agent, *arguments, **environment):
        """Run an agent by `tokenmill launch`, which finds it among these; what it prints."""
        place = Path(program(AGENTS[agent].program)).parent
        path = os.pathsep.join([str(place), os.environ["PATH"]])
        words = ["-m", "tokenmill", "launch", agent, "--url", self.url, "--", *arguments]
        return self.run(sys.executable, *words, PATH=path, PYTHONPATH=str(REPOSITORY / "src"), **environment)

    @property
    def posts(self):
        """(path, status) of each request that was posted."""
        found = [re.search(r" POST (\S+) (\d+) ", line) for line in self.lines]
        return [(each[1].partition("?")[0], int(each[2])) for each in found if each]

    def check(self, path, count, mark="# Tools"):
        """Every request went to a route and was answered, so many of them had the mark, and the script was followed.
        What stood before was found but for the rest of a block.
        """
        wait_until(lambda: len(self.posts) >= len(self.script.asked))  # a line is written after its answer
        assert set(self.posts) == {(path, 200)}, self.lines
        for stood, found in self.script.found():
            assert stood - SETTINGS["block_size"] <= found <= stood, self.script.found()
        assert sum(mark in prompt for prompt in self.script.asked) == count, self.lines
        assert not self.script.departures

    def output(self, *command):
        """What a command prints in the folder."""
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=True).stdout


def end_all_of(home):
    """End every process with this home: Cline leaves a daemon."""
    for each in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"HOME={home}".encode() in each.read_bytes().split(b"\0"):
                os.kill(int(each.parent.name), signal.SIGKILL)


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return save_scripted_model(tmp_path_factory.mktemp("scripted"))


@pytest.fixture
def desk(model, tmp_path):
    """Opens a Desk for the answers of a task."""

    @contextmanager
    def opened(answers, name=NAME, **how):
        folder, home, lines = tmp_path / "task", tmp_path / "home", []
        folder.mkdir()
        (home / ".config").mkdir(parents=True)
        subprocess.run(["git", "init", "-q", folder], check=True)
        with (
            served(model, SETTINGS, lines.append, name=name) as server,
            scripted(server.driver.core, in_turn(answers, **how)) as script,
        ):
            try:
                yield Desk(server.url, folder, home, script, lines)
            finally:
                end_all_of(home)

    return opened
